"""What SWAP adds to a training step's experience making and update, against stock group_norm on the same rollouts.

    python -m benchmarks.training_step

Runs OpenRLHF's experience maker and ours in turn, on real Ray and DeepSpeed actors of the embedded policy and on the
same responses of its base policy (16 prompts x 8, as in the quickstart), and prints the ratio of their times.
Generation and weight sync, which do not differ, are left out.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "examples" / "worlds"))

from addition import CLOSE, overthinking_trace, problems, prompt  # noqa: E402

from openrlhf_swap.config import RunConfig, SwapConfig  # noqa: E402
from openrlhf_swap.flags.configuration import configure  # noqa: E402
from openrlhf_swap.integration.runtime.cpu import set_cpu_environment  # noqa: E402
from openrlhf_swap.objectives.registry import build  # noqa: E402
from openrlhf_swap.recipes import as_words  # noqa: E402
from openrlhf_swap.rollouts.reader import StepReader  # noqa: E402

POLICY = ROOT / "examples" / "worlds" / "policies" / "addition"
PROMPTS, RESPONSES = 16, 8
FLAGS = {
    "actor.model_name_or_path": str(POLICY),
    "rollout.batch_size": str(PROMPTS),
    "rollout.n_samples_per_prompt": str(RESPONSES),
    "rollout.temperature": "1.0",
    "rollout.micro_batch_size": "32",
    "train.batch_size": str(PROMPTS * RESPONSES),
    "train.micro_batch_size": "32",
    "data.max_len": "400",
}


def make_responses(tokenizer) -> list[dict]:  # noqa: ANN001
    """Responses as vLLM's rollout actor returns them."""
    rng = random.Random(0)
    responses = []
    for problem, _ in zip(problems(5), range(PROMPTS), strict=False):
        head = tokenizer(prompt(problem), add_special_tokens=False)["input_ids"]
        for _ in range(RESPONSES):
            text = overthinking_trace(problem, rng)
            tail = tokenizer(text, add_special_tokens=False)["input_ids"]
            reward = float(CLOSE + problem.answer + "}" in text)
            responses.append(
                {
                    "prompt": prompt(problem),
                    "label": problem.answer,
                    "observation_tokens": head + tail,
                    "action_ranges": [(len(head), len(head) + len(tail))],
                    "rollout_log_probs": None,
                    "reward": reward,
                    "scores": reward,
                }
            )
    return responses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=10)
    repeats = parser.parse_args().repeats
    set_cpu_environment()

    import ray
    from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
    from openrlhf.trainer.ppo_utils.kl_controller import FixedKLController
    from openrlhf.trainer.ray.launcher import RayActorGroup
    from openrlhf.utils import get_strategy
    from transformers import AutoTokenizer

    from openrlhf_swap.integration.driver.experience_maker import SwapExperienceMaker
    from openrlhf_swap.integration.generation.response import make_sample, read_response
    from openrlhf_swap.integration.policy.actors import IntrinsicRewardActor
    from openrlhf_swap.integration.startup.launch import start_local_ray

    args = configure(as_words(FLAGS), on_cpu=True).args
    args.swap, args.swap_run = SwapConfig(step_tokens=8, end_of_thought="</think>", close_template=CLOSE), RunConfig()
    tokenizer = AutoTokenizer.from_pretrained(POLICY)
    responses = make_responses(tokenizer)

    start_local_ray(places=1)
    strategy = get_strategy(args)
    group = RayActorGroup(1, 1, ray.remote(num_gpus=1)(IntrinsicRewardActor))
    ray.get(group.async_init_model_from_pretrained(strategy, str(POLICY), 1000, None))
    reader = StepReader(tokenizer, args.swap.end_of_thought, *args.swap.segmentation)
    common = (group, None, None, None, FixedKLController(0.0), strategy, tokenizer)
    makers = {
        "group_norm": RemoteExperienceMaker(*common),
        "swap": SwapExperienceMaker(RemoteExperienceMaker(*common), build(args.swap), reader),
    }

    times: dict[str, list[tuple[float, float]]] = {name: [] for name in makers}
    for repeat in range(repeats + 1):
        for name, maker in makers.items():
            samples = [make_sample(read_response(response), 400) for response in responses]
            start = time.perf_counter()
            experiences = maker.make_experience_batch(samples)
            made = time.perf_counter()
            ray.get(group.async_run_method_batch(method_name="append", experience=experiences))
            ray.get(group.async_run_method(method_name="fit", kl_ctl=0.0))
            if repeat > 0:  # the first round warms up
                times[name].append((made - start, time.perf_counter() - made))
    ray.shutdown()

    totals = {}
    for name, rows in times.items():
        experience, update = (median(column) for column in zip(*rows, strict=True))
        totals[name] = median(sum(row) for row in rows)
        print(f"{name:12} experience {experience:.3f} s, update {update:.3f} s, together {totals[name]:.3f} s")
    ratio = totals["swap"] / totals["group_norm"]
    print(f"ratio {ratio:.2f}: experience and update with SWAP, to stock GRPO (medians of {repeats})")


if __name__ == "__main__":
    main()

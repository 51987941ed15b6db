r"""The policy's side of a training step on one GPU, beside what `openrlhf-swap plan` computes.

    python -m studies.benchmarks.policy_step --config scripts/train_swap_1gpu.yaml

Runs the policy's actor in this process, with DeepSpeed but without Ray and vLLM: a model of the
run's sizes with random weights, on random responses that fill --data.max_len, one a micro-batch.
For each phase it prints the peak that torch allocated, the plan's (without its allowance), seconds,
and the share of the GPU's peak operations; then how far scores are from those of one forward pass
per prefix, and how far two updates moved the log-probabilities. Further flags are the training's;
without them, those of a run of the quickstart's policy. Without a GPU the memory is left out.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from openrlhf_swap.config import RunConfig, SwapConfig
from openrlhf_swap.flags.configuration import configure
from openrlhf_swap.objectives.registry import build
from openrlhf_swap.packages.versions import replaced
from openrlhf_swap.quickstart import POLICY
from openrlhf_swap.scoring.answer import AnswerBranch, ScoreRequest
from openrlhf_swap.sizing import memory
from openrlhf_swap.sizing.models import GIB, Model, model_config
from openrlhf_swap.sizing.operations import step_flops
from openrlhf_swap.sizing.settings import ANSWER_TOKENS, BRANCH_TOKENS, Settings, read_run

PROMPT_TOKENS = 100
SMALL = f"""--actor.model_name_or_path {shlex.quote(str(POLICY))}
    --actor.gradient_checkpointing_enable --actor.num_gpus_per_node 1
    --vllm.num_engines 1 --train.colocate_all --data.max_len 400 --rollout.batch_size 4
    --rollout.max_new_tokens 300 --rollout.n_samples_per_prompt 2 --train.batch_size 8
    --swap.step_tokens 8"""
# The plan's names, where it has them.
ALONE = "alone"
SCORED = "score"
UPDATE = "update"
ADAM = "adam"
PHASES = {
    ALONE: "log-probabilities",
    SCORED: "log-probabilities and scores",
    UPDATE: "update",
    ADAM: "of it, Adam's step",
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--responses", type=int, default=4, help="of an update")
    parser.add_argument(
        "--peak",
        type=float,
        default=989e12,
        help="bf16 operations a second of the GPU's data sheet",
    )
    own, rest = parser.parse_known_args()
    one_row = ["--rollout.micro_batch_size", "1", "--train.micro_batch_size", "1"]
    training = configure([*(rest or shlex.split(SMALL)), *one_row], on_cpu=False)
    config = training.method
    run = training.run
    args = training.args
    model, settings = read_run(training, build(training.method))
    name = args.actor.model_name_or_path
    with tempfile.TemporaryDirectory() as folder:
        fill_in(args, config, run, own.responses, Path(folder))
        save_random_model(name, args.actor.model_name_or_path)
        measure(Policy(args), model, settings, args, own)


def fill_in(
    args: SimpleNamespace, config: SwapConfig, run: RunConfig, responses: int, folder: Path
) -> None:
    """Replace what names the run's files, and add what OpenRLHF's command fills in."""
    args.swap = config
    args.swap_run = run
    args.actor.model_name_or_path = str(folder / "model")
    args.ckpt.path = str(folder / "checkpoints")
    args.actor.eps_clip_low_high = (args.actor.eps_clip, args.actor.eps_clip)
    args.train.batch_size = responses


def save_random_model(name: str, folder: str) -> None:
    """Save a model of these sizes with random weights and the quickstart's tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    config = model_config(name)
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    AutoTokenizer.from_pretrained(POLICY).save_pretrained(folder)


def start_actor(args: SimpleNamespace) -> Any:
    """The policy's actor in this process, the only rank, without engines."""
    # The integration prepares the process before OpenRLHF is imported.
    from openrlhf_swap.integration.policy.actors import IntrinsicRewardActor
    from openrlhf_swap.integration.policy.strategy import SwapStrategy

    from openrlhf.utils import deepspeed, get_strategy  # isort: skip

    args.local_rank = -1
    with replaced(deepspeed, "DeepspeedStrategy", SwapStrategy, "openrlhf"):
        strategy = get_strategy(args)
    strategy.print = lambda *words: None  # the model, layer by layer
    actor: Any = IntrinsicRewardActor(1, 0, "127.0.0.1", None)
    actor.init_model_from_pretrained(strategy, args.actor.model_name_or_path, 1000, None)
    return actor


class Policy:
    """The policy's actor in this process, and what each of its phases took."""

    def __init__(self, args: SimpleNamespace) -> None:
        self.actor = start_actor(args)
        self.seconds: dict[str, float] = {}
        self.peaks: dict[str, float] = {}
        self._before_adam = 0.0
        engine = self.actor.actor.model
        step = engine.step
        # DeepSpeed takes a step after each micro-batch, and the last one is Adam's, unless OpenRLHF
        # itself says where an update ends.
        managed = engine.managed_gradient_accumulation()

        def step_of_engine(*a: Any, **k: Any) -> Any:
            if managed and not engine.is_gradient_accumulation_boundary():
                return step()
            return self._adam(step, *a, **k)

        engine.step = step_of_engine

    def phase(self, name: str, function: Callable[[], Any]) -> Any:
        """Run one phase, and keep its seconds and its peak in bytes."""
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
        start = time.perf_counter()
        result = function()
        torch.cuda.synchronize()
        self.seconds[name] = time.perf_counter() - start
        self.peaks[name] = max(allocated(torch.cuda.max_memory_allocated), self._before_adam)
        self._before_adam = 0.0
        return result

    def _adam(self, step: Callable[..., Any], *args: Any, **options: Any) -> None:
        """DeepSpeed's step, whose peak counts apart from the passes' before it."""
        before = allocated(torch.cuda.max_memory_allocated)
        self.phase(ADAM, lambda: step(*args, **options))
        self._before_adam = before
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()


def allocated(read: Callable[[], int]) -> float:
    """Bytes, or none without a GPU."""
    return float(read()) if torch.cuda.is_available() else 0.0


class Responses:
    """Random responses that fill the context, as the experience maker sends them.

    Attributes:
        sequences: (N, T) int64.
        mask: (N, T) of tokens.
        actions: (N, T - 1) of actions.
        request: the prefixes of each response to score, the only one of its micro-batch.
    """

    def __init__(
        self, number: int, context: int, steps: int, vocabulary: int, seed: int = 0
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.sequences = torch.randint(vocabulary, (number, context), generator=generator)
        self.mask = torch.ones_like(self.sequences)
        self.actions = torch.ones(number, context - 1, dtype=torch.bool)
        self.actions[:, : PROMPT_TOKENS - 1] = False
        ends = [
            PROMPT_TOKENS - 1 + k * (context - PROMPT_TOKENS) // steps for k in range(steps + 1)
        ]
        ids = torch.randint(vocabulary, (BRANCH_TOKENS,), generator=generator).tolist()
        branch = AnswerBranch(
            tuple(ids),
            tuple(place >= BRANCH_TOKENS - ANSWER_TOKENS for place in range(BRANCH_TOKENS)),
        )
        self.request = ScoreRequest(0, tuple(ends), branch)

    def batch(self, row: int) -> dict[str, torch.Tensor]:
        """A micro-batch of one response, by the names of the actor's arguments."""
        return {
            "sequences": self.sequences[row, None],
            "action_mask": self.actions[row, None],
            "attention_mask": self.mask[row, None],
        }


def measure(
    policy: Policy, model: Model, settings: Settings, args: SimpleNamespace, own: argparse.Namespace
) -> None:
    """Run the phases and print them beside the plan's."""
    responses = Responses(own.responses, settings.context, args.swap.max_steps, model.vocabulary)
    every = range(own.responses)
    actor = policy.actor
    request = [responses.request]
    idle = allocated(torch.cuda.memory_allocated)
    actor.forward(**responses.batch(0), requests=request)  # to warm up
    policy.phase(ALONE, lambda: [actor.forward(**responses.batch(row)) for row in every])
    scored = policy.phase(
        SCORED, lambda: [actor.forward(**responses.batch(row), requests=request) for row in every]
    )
    log_probs = torch.cat([each.action_log_probs for each in scored])
    difference = beside_per_prefix(policy, responses, scored)
    for update in (
        "first update",
        UPDATE,
    ):  # only the second one has Adam's moments, and gradients of earlier ones
        if args.ds.enable_sleep:
            policy.phase("waking", actor.reload_states)
        for row in every:
            actor.append(experience(responses.batch(row), log_probs[row, None]))
        status = policy.phase(update, actor.fit)
        if args.ds.enable_sleep:
            policy.phase("going to sleep", actor.offload_states)
    print_phases(policy, model, settings, args.swap.max_steps, own)
    asleep = allocated(torch.cuda.memory_allocated)
    print(
        f"between the phases: {idle / GIB:.2f} GiB before the first update, {asleep / GIB:.2f} "
        "after the last"
    )
    for name in ("going to sleep", "waking"):
        if name in policy.seconds:
            print(f"{name}: {policy.seconds[name]:.2f} s")
    moved = torch.cat([actor.forward(**responses.batch(row)) for row in every]) - log_probs
    print(
        f"scores differ from those of one forward pass per prefix by at most {difference:.4f} nats"
    )
    print(
        f"gradient norm {status['actor_grad_norm']:.4f}; log-probabilities moved by up to "
        f"{moved.abs().max():.4f}"
    )
    alone = policy.seconds[ALONE]
    both = policy.seconds[SCORED]
    print(
        f"ratio {both / alone:.3f}: log-probabilities with scores, to without, "
        f"{settings.context} tokens"
    )


def print_phases(
    policy: Policy, model: Model, settings: Settings, steps: int, own: argparse.Namespace
) -> None:
    """Print the table; an update's seconds include Adam's."""
    work = step_flops(model, settings, PROMPT_TOKENS, settings.context - PROMPT_TOKENS, steps, 1)
    phases = memory.phases(model, settings, gpu=0).items()
    planned = {name: sum(parts.values()) - memory.ALLOWANCE for name, parts in phases}
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    print(
        f"{own.responses} responses of {settings.context} tokens, {device}, torch "
        f"{torch.__version__}"
    )
    print(
        "| phase | planned GiB | measured GiB | seconds a response | of the peak operations "
        "|\n|---|---|---|---|---|"
    )
    rows = {
        ALONE: ("log-probabilities",),
        SCORED: ("log-probabilities", "score"),
        UPDATE: ("update",),
        ADAM: (),
    }
    for name, parts in rows.items():
        seconds = policy.seconds[name] / own.responses
        share = f"{sum(work[part] for part in parts) / seconds / own.peak:.1%}" if parts else "-"
        found = f"{policy.peaks[name] / GIB:.2f}" if torch.cuda.is_available() else "-"
        plan = f"{planned[name] / GIB:.2f}" if name in planned else "-"
        print(f"| {PHASES[name]} | {plan} | {found} | {seconds:.3f} | {share} |")


def beside_per_prefix(policy: Policy, responses: Responses, scored: list[Any]) -> float:
    """The largest difference of the first response's scores from those per prefix, in nats."""
    from openrlhf_swap.scoring.backends import PER_PREFIX, ScoringBackend

    engine = policy.actor.actor.model
    device = torch.cuda.current_device()
    batch = [part.to(device) for part in (responses.sequences[:1], responses.mask[:1])]
    engine.eval()
    with torch.no_grad():
        signals = ScoringBackend(PER_PREFIX).read(engine.module, *batch, [responses.request])
    engine.train()
    (alone,) = signals["answer_logprobs"]
    return float((alone - scored[0].signals[0]["answer_logprobs"].cpu()).abs().max())


def experience(batch: dict[str, torch.Tensor], log_probs: torch.Tensor) -> Any:
    """What an update reads of a response: here advantages that change their sign within it."""
    from openrlhf.trainer.ppo_utils.experience import Experience

    actions = batch["action_mask"]
    advantages = torch.linspace(1, -1, actions.shape[1])[None] * actions
    return Experience(
        **batch,
        action_log_probs=log_probs,
        advantages=advantages,
        returns=advantages,
        index=[0],
        info={"reward": torch.ones(1)},
    )


if __name__ == "__main__":
    sys.exit(main())

"""What a training step costs in the driver while all GPUs wait, against OpenRLHF's own loop.

    python -m studies.benchmarks.driver --responses 2048 --tokens 6000 [--json FILE]

Synthetic responses, one per micro-batch, go through what the loop does between sampling and update;
instead of the actors there is a function that returns made-up log-probabilities and answer scores.
OpenRLHF's loop is timed on some of the responses and scaled up; on these its advantages have to be
equal to ours. Also counted: the bytes of a response on its ways between driver, engines and actors.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import ray
import torch
from transformers import AutoTokenizer

from openrlhf_swap.flags.configuration import configure
from openrlhf_swap.integration.driver.advantages import set_advantages
from openrlhf_swap.integration.driver.batch import batch_of, cut_into_steps
from openrlhf_swap.integration.driver.experience import RemoteExperienceMaker, SwapExperienceMaker
from openrlhf_swap.integration.driver.policy import Policy
from openrlhf_swap.integration.policy.scorer import ScoredForward
from openrlhf_swap.objectives.base import Objective, evaluate
from openrlhf_swap.objectives.registry import build
from openrlhf_swap.quickstart import POLICY
from openrlhf_swap.recipes import as_words
from openrlhf_swap.rollouts.families import resolve_thought
from openrlhf_swap.rollouts.reader import StepReader
from openrlhf_swap.rollouts.rollout import Rollout

PROMPT = 200  # tokens
GROUP = 16  # responses to a prompt
LOOPED = 16  # responses that OpenRLHF's loop is timed on
VOCABULARY = 150_000  # of the model whose token ids travel


def embedded_tokenizer() -> tuple[Any, int]:
    """The tokenizer of the quickstart's policy, and the token that closes a thought."""
    tokenizer = AutoTokenizer.from_pretrained(POLICY)
    (close_id,) = tokenizer("</think>", add_special_tokens=False)["input_ids"]
    return tokenizer, close_id


def without_ray() -> Any:
    """A context in which Ray's put and get return objects unchanged, on one thread as in a run."""
    torch.set_num_threads(1)
    return mock.patch.multiple(ray, put=lambda value: value, get=lambda value, **_: value)


def make_rollouts(responses: int, tokens: int, vocabulary: int, close_id: int) -> list[Rollout]:
    """Make responses, two of three correct, their thought closed near the end."""
    torch.manual_seed(0)
    rollouts = []
    for number in range(responses):
        ids = torch.randint(vocabulary, (tokens,)).tolist()
        ids[-tokens // 10] = close_id
        reward = float(number % 3 > 0)
        record = {"label": "42", "scores": reward, "rollout_log_probs": None}
        rollouts.append(Rollout("p", "42", ids, range(PROMPT), reward, record=record))
    return rollouts


class MadeUpActors:
    """Stands for the policy's actor group and answers immediately.

    Keeps what the last call sent and returned.
    """

    def async_run_method_batch(
        self,
        method_name: str,
        action_mask: list[Any],
        requests: list[Any] | None = None,
        **others: Any,
    ) -> list[list[ScoredForward]]:
        """Return the results of a group of one actor."""
        self.sent = (action_mask, requests, others)
        results = []
        for mask, asked in zip(action_mask, requests or [[]] * len(action_mask), strict=True):
            signals = [
                {"answer_logprobs": -torch.rand(len(request.prefix_ends))} for request in asked
            ]
            results.append(ScoredForward(-mask.float(), signals, 0.0))
        self.returned = [results]
        return self.returned


class Driver:
    """The driver's part of a step, with our defaults."""

    def __init__(self, tokenizer: Any, objective: str = "swap") -> None:
        flags = {
            "actor.model_name_or_path": POLICY,
            "rollout.micro_batch_size": 1,
            "rollout.n_samples_per_prompt": GROUP,
        }
        configuration = configure(as_words({"swap.objective": objective, **flags}), on_cpu=False)
        args = configuration.args
        config, _ = resolve_thought(configuration.method, tokenizer)
        args.swap = config
        args.swap_run = configuration.run
        self.actors = MadeUpActors()
        strategy = SimpleNamespace(args=args)
        self._policy = Policy(strategy, tokenizer, self.actors, None, [])
        self._reader = StepReader(tokenizer, config.end_of_thought, *config.segmentation)
        self.objective: Objective = build(config)

    def learn(self, rollouts: list[Rollout]) -> list[Any]:
        """Return the experiences with their advantages."""
        rollouts = cut_into_steps([rollouts], self.objective, self._reader)
        forward = self._policy.forward(rollouts, self.objective)
        batch = batch_of(forward.rollouts, GROUP, self.objective, self._reader)
        judged = evaluate(self.objective, batch)
        maker = self._policy.experience_maker()
        set_advantages(maker, forward, self.objective, judged)
        return forward.micro_batches


def timed(function: Callable[[Any], Any], argument: Any) -> tuple[Any, float]:
    """Return the function's result, and the seconds that it took."""
    start = time.perf_counter()
    result = function(argument)
    return result, time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--responses", type=int, default=2048)
    parser.add_argument("--tokens", type=int, default=6000)
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="also write the seconds and bytes of a response"
    )
    args = parser.parse_args()
    tokenizer, close_id = embedded_tokenizer()
    driver = Driver(tokenizer)
    stock_loop = RemoteExperienceMaker.get_cumulative_returns
    with without_ray():
        part = make_rollouts(LOOPED, args.tokens, close_id, close_id)
        with mock.patch.object(SwapExperienceMaker, "get_cumulative_returns", stock_loop):
            torch.manual_seed(1)
            expected = [each.advantages for each in driver.learn(part)]
        torch.manual_seed(1)
        ours = [each.advantages for each in driver.learn(part)]
        equal = all(torch.equal(a, b) for a, b in zip(ours, expected, strict=True))

        rollouts = make_rollouts(args.responses, args.tokens, close_id, close_id)
        cpu = time.process_time()
        _, total = timed(driver.learn, rollouts)
        cpu = time.process_time() - cpu
    rewards = torch.zeros(1, PROMPT + args.tokens - 1)
    rewards[0, -1] = 0.5
    mask = torch.ones_like(rewards)
    _, loop = timed(
        lambda count: [stock_loop(None, rewards, mask, 1.0) for _ in range(count)], LOOPED
    )
    loop *= args.responses / LOOPED
    print(f"{args.responses} responses of {args.tokens} tokens, one a micro-batch")
    print(f"{total:.2f} s, {cpu:.2f} of them on the CPU")
    print(f"OpenRLHF's loop alone {loop:.0f} s (from {LOOPED} responses)")
    print(f"advantages equal to those of OpenRLHF's loop: {equal}")
    ways = bytes_of_a_response(Driver(tokenizer), args.tokens, close_id)
    print("bytes of a response, " + ", ".join(f"{way}: {size:,.0f}" for way, size in ways.items()))
    if args.json:
        measured = {
            "responses": args.responses,
            "tokens": args.tokens,
            "seconds": total / args.responses,
            "cpu_seconds": cpu / args.responses,
            "bytes": ways,
            "cores": os.cpu_count(),
            "load": os.getloadavg()[0],
        }
        args.json.write_text(json.dumps(measured, indent=2) + "\n")
    ratio = (total + loop) / total
    print(f"ratio {ratio:.0f}: the driver's seconds per step with OpenRLHF's loop, to ours")


def bytes_of_a_response(
    driver: Driver, tokens: int, close_id: int, responses: int = GROUP
) -> dict[str, float]:
    """Mean bytes of a response, pickled as Ray sends it, between the driver and the rest."""
    (response,) = make_rollouts(1, tokens, VOCABULARY, close_id)
    rollouts = make_rollouts(responses, tokens, close_id, close_id)
    with without_ray():
        experiences = driver.learn(rollouts)
    actors = driver.actors
    return {
        "engine to driver": len(pickle.dumps(response)),
        "driver to policy, to score": len(pickle.dumps(actors.sent)) / responses,
        "policy to driver": len(pickle.dumps(actors.returned)) / responses,
        "driver to policy, to update": len(pickle.dumps(experiences)) / responses,
    }


if __name__ == "__main__":
    main()

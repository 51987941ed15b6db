"""What each objective costs in the driver while all GPUs wait, against plain GRPO.

    python -m benchmarks.objectives --responses 512 --tokens 3000

Covers the objectives that generate and score nothing in addition. The same synthetic responses go
through the real experience maker with each of them in turn; the best of several rounds counts.
Outside the driver their steps do not differ: same responses, same forward, same update.
"""

from __future__ import annotations

import argparse
import random
import time
from dataclasses import replace
from typing import Any

from benchmarks.driver import GROUP, embedded_tokenizer, make_maker, make_samples, without_ray
from openrlhf_swap.integration.driver.experience_maker import SwapExperienceMaker
from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.objectives.registry import OBJECTIVES

NOT_ALONE = {
    "adaptthink",
    "lc_r1",
}  # need metadata that they attach to a response when it is sampled


def is_plain(objective: Objective) -> bool:
    """Whether an objective asks for log-probabilities alone, and samples nothing else."""
    return (
        not (objective.scores_steps or objective.reads_states)
        and objective.continues == "no"
        and objective.monitor() is None
    )


def seconds_of(maker: SwapExperienceMaker, responses: int, tokens: int, close_id: int) -> float:
    """Seconds of the driver's part of a step."""
    samples: list[Any] = make_samples(responses, tokens, close_id, close_id)
    for number, sample in enumerate(samples):
        prompt = maker._objective.rewrite_problem(
            f"p{number // GROUP}", random.Random(number // GROUP)
        )
        part = {"part": float(number % GROUP * 4 // GROUP)}  # HBPO's four budgets
        sample.rollout = replace(sample.rollout, prompt=prompt, metadata=part)
    start = time.perf_counter()
    experiences = maker.make_experience(maker.split_rollout_samples(samples))
    maker.compute_advantages_and_returns(experiences)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--responses", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    tokenizer, close_id = embedded_tokenizer()
    makers = {name: make_maker(tokenizer, name) for name in OBJECTIVES if name not in NOT_ALONE}
    plain = {name: maker for name, maker in makers.items() if is_plain(maker._objective)}
    best = dict.fromkeys(plain, float("inf"))
    with without_ray():
        for _ in range(args.rounds):
            for name, maker in plain.items():
                best[name] = min(
                    best[name], seconds_of(maker, args.responses, args.tokens, close_id)
                )
    print(
        f"{args.responses} responses of {args.tokens} tokens: seconds of the driver, the best of "
        f"{args.rounds}"
    )
    for name, seconds in sorted(best.items(), key=lambda item: item[1]):
        print(f"{name:16} {seconds:.3f}  {seconds / best['grpo']:.2f} of grpo")
    slowest = max(best, key=best.__getitem__)
    ratio = best[slowest] / best["grpo"]
    print(f"ratio {ratio:.2f}: the driver's seconds per step with {slowest}, the slowest, to grpo")


if __name__ == "__main__":
    main()

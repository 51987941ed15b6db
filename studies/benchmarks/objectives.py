"""What each objective costs in the driver while all GPUs wait, against plain GRPO.

    python -m studies.benchmarks.objectives --responses 512 --tokens 3000

Covers the objectives that generate and score nothing in addition. The same synthetic responses go
through the real experience maker with each of them in turn; the best of several rounds counts.
Outside the driver their steps do not differ: same responses, same forward, same update.
"""

from __future__ import annotations

import argparse
import random
import time
from dataclasses import replace

from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.objectives.registry import OBJECTIVES
from studies.benchmarks.driver import GROUP, Driver, embedded_tokenizer, make_rollouts, without_ray

NOT_ALONE = {
    "adaptthink",
    "lc_r1",
}  # need metadata that they attach to a response when it is sampled


def is_plain(objective: Objective) -> bool:
    """Whether an objective asks for log-probabilities alone, and samples nothing else."""
    return not objective.wanted_signals and not objective.continues and objective.monitor() is None


def seconds_of(driver: Driver, responses: int, tokens: int, close_id: int) -> float:
    """Seconds of the driver's part of a step."""
    rollouts = []
    for number, rollout in enumerate(make_rollouts(responses, tokens, close_id, close_id)):
        group = number // GROUP
        prompt = driver.objective.rewrite_problem(f"p{group}", random.Random(group))
        part = {"part": float(number % GROUP * 4 // GROUP)}  # HBPO's four budgets
        rollouts.append(replace(rollout, prompt=prompt, metadata=part))
    start = time.perf_counter()
    driver.learn(rollouts)
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
    drivers = {name: Driver(tokenizer, name) for name in OBJECTIVES if name not in NOT_ALONE}
    plain = {name: driver for name, driver in drivers.items() if is_plain(driver.objective)}
    best = dict.fromkeys(plain, float("inf"))
    with without_ray():
        for _ in range(args.rounds):
            for name, driver in plain.items():
                seconds = seconds_of(driver, args.responses, args.tokens, close_id)
                best[name] = min(best[name], seconds)
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

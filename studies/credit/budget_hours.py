r"""CPU hours of the test at three budgets, from single updates of each arm; nothing is kept.

    python -m studies.credit.budget_hours --tasks words --problems 100

An arm is timed at its middle strength, from the untrained policy, whose responses are the longest:
training makes them shorter, so the hours are an upper estimate. The seconds are those of the CPU
(getrusage), because other processes may share the machine. LASER-D's first update includes the
measurement of 256 responses that it makes before every tenth update.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass

import pandas as pd
import torch

from studies.credit.budget_design import (
    ARMS,
    CHOICE_SEEDS,
    FIRST_BUDGETS,
    LAST_BUDGETS,
    TASKS,
    TEST_SEEDS,
    Run,
)
from studies.credit.budgets import (
    HELD_OUT,
    TRAIN_SEED,
    cpu_seconds,
    held_out,
    steps_of,
    treatment,
)
from studies.credit.plain_loop import PROMPTS, RESPONSES, Loop, loop_of, updates

LIMITS = {"p50": 80, "p75": 80, "p90": 80}  # a limit shortens an update; this one hardly does
EVERY = 10  # updates between two measurements of LASER-D


@dataclass(frozen=True)
class Seconds:
    """CPU seconds of an update without a measurement of the policy before it, and of one with."""

    update: float
    measuring: float

    def training(self, count: int) -> float:
        """Of so many updates; the first measures, and every tenth after it."""
        with_measurement = math.ceil(count / EVERY)
        return with_measurement * self.measuring + (count - with_measurement) * self.update


def seconds_of(task: str, arm: str) -> Seconds:
    """Time two updates of an arm; only LASER-D measures the policy before its first."""
    strengths = ARMS[arm]
    strength = strengths[len(strengths) // 2]
    treated = treatment(Run(task, arm, strength, FIRST_BUDGETS[0], seed=0), LIMITS)
    settings = {"max_steps": TASKS[task].max_steps, **treated.settings}
    loop = loop_of(task, treated.arm, settings)
    torch.manual_seed(0)
    times = [cpu_seconds()]
    for _ in updates(loop, treated.arm, loop.world.problems(TRAIN_SEED), 2, TASKS[task].rate):
        times.append(cpu_seconds())
    start, middle, end = times
    if arm == "laser_d":
        return Seconds(update=end - middle, measuring=middle - start)
    mean = (end - start) / 2
    return Seconds(update=mean, measuring=mean)


def seconds_of_held_out(task: str, problems: int) -> float:
    """Of answering all held-out problems, from some of them."""
    loop = Loop(task)
    asked = held_out(loop, seed=0)[:problems]
    torch.manual_seed(0)
    start = cpu_seconds()
    loop.respond(asked)
    return (cpu_seconds() - start) * HELD_OUT / len(asked)


def table(task: str, problems: int) -> pd.DataFrame:
    """A row an arm: seconds of an update, trainings, and CPU hours by budget and in all."""
    at_end = seconds_of_held_out(task, problems)
    rows = []
    for arm, strengths in ARMS.items():
        seconds = seconds_of(task, arm)
        trainings = len(CHOICE_SEEDS) * len(strengths) + len(TEST_SEEDS)
        row = {"task": task, "arm": arm, "s an update": seconds.update, "trainings": trainings}
        total = 0.0
        for budget in (*FIRST_BUDGETS, *LAST_BUDGETS):
            hours = trainings * (seconds.training(steps_of(budget)) + at_end) / 3600
            row[f"h, {budget}"] = hours
            total += hours
        row["h"] = total
        rows.append(row)
        print(row, flush=True)
    return pd.DataFrame(rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--problems", type=int, default=HELD_OUT, help="held-out ones to time")
    args = parser.parse_args()
    torch.set_num_threads(1)
    found = pd.concat([table(task, args.problems) for task in args.tasks])
    print(f"an update is {PROMPTS * RESPONSES} responses")
    print(found.to_markdown(index=False, floatfmt=".2f"))
    print(f"in all {found['h'].sum():.1f} CPU hours")


if __name__ == "__main__":
    main()

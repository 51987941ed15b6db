r"""Train the test at three budgets, two trainings at a time; stopped at any time, it goes on.

    setsid nohup python -m studies.credit.budgets --output outputs/budgets > outputs/budgets.log &
    python -m studies.credit.budget_results --runs outputs/budgets/runs.jsonl \
        --keep studies/records/results/budgets.csv.gz

With `--kept studies/records/results/budgets.csv.gz` it trains what that file does not have.

Tasks, arms, strengths, seeds and the order of the runs: `budget_design.py`. A training has one
update for 64 responses, and a learning rate that falls to 0 at the end of its budget. Every seed
has 1,000 held-out problems of its own, none of which it trains on. A line of OUTPUT/runs.jsonl has
a training's task, arm, strength, budget and seed; for all, easy, middle and hard held-out problems
the means of accuracy, tokens, needed tokens (of the shortest sufficient response) and lines of each
label; when it began, its commit, its seconds and its CPU seconds. The first line of a task is the
policy before any training.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd
import torch

from openrlhf_swap.command import Parser, run_command
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.files import Row, appending, drop_unfinished_line, read_rows
from openrlhf_swap.process.locks import locked
from openrlhf_swap.quickstart.world import Problem
from studies.credit.budget_design import (
    ALL,
    ARMS,
    BASE,
    BUDGETS,
    KEYS,
    ONLY,
    PARTS,
    TASKS,
    Gate,
    Phase,
    Run,
    Task,
    part_of,
    phases,
)
from studies.credit.budget_results import read_kept
from studies.credit.loop_runs import begun, train_all
from studies.credit.plain_loop import PROMPTS, RESPONSES, Loop, loop_of, updates

HELD_OUT = 1000  # problems
HELD_OUT_SEED = 5000  # plus a training's seed; no other study reads these streams
TRAIN_SEED = 1000  # plus a training's seed, as in plain_loop.py
PERCENTILES = {"p50": 50, "p75": 75, "p90": 90}  # of the base's lengths
STAGES = ("p90", "p75", "p50")  # ThinkPrune's limits, a third of the training each
# Arm -> the loop's arm and gamma; the strength is theta.
STEPWISE = {
    "sum_tau1": ("steps.tau1", 1.0),
    "sum_uniform": ("steps.uniform", 1.0),
    "own": ("steps.uniform", 0.0),
    "needed": ("reward.need.4.1", 0.5),  # as the recipe `needed`
    "labels": ("steps.oracle", 0.0),
}


@dataclass(frozen=True)
class Treatment:
    """What the loop trains: an arm of `plain_loop.py`, with settings of SwapConfig."""

    arm: str
    settings: dict[str, Any] = field(default_factory=dict)


def treatment(run: Run, limits: Mapping[str, int]) -> Treatment:
    """What the loop trains for a run; `limits` are the base's lengths by percentile, in tokens."""
    if run.arm in STEPWISE:
        arm, discount = STEPWISE[run.arm]
        return Treatment(arm, {"process_weight": float(run.strength), "step_discount": discount})
    if run.arm == "outcome_only":
        return Treatment("objective.outcome_only", {"length_coef": float(run.strength)})
    if run.strength == "stages":
        stages = {
            "limits": ",".join(str(limits[name]) for name in STAGES),
            "stage_steps": str(math.ceil(steps_of(run.budget) / len(STAGES))),
        }
        return Treatment("objective.thinkprune", {"options": stages})
    if run.arm == "limit":
        return Treatment(f"grpo_limit{limits[run.strength]}")
    return Treatment({"grpo": "grpo", "laser_d": "objective.laser_d"}[run.arm])


def steps_of(budget: int) -> int:
    """The number of updates of a training with so many responses."""
    return budget // (PROMPTS * RESPONSES)


def held_out(loop: Loop, seed: int) -> list[Problem]:
    """The held-out problems of a training's seed."""
    return list(islice(loop.world.problems(HELD_OUT_SEED + seed), HELD_OUT))


def measured(
    loop: Loop, task: Task, problems: Sequence[Problem], responses: Sequence[list[int]]
) -> dict[str, float]:
    """Means over all, easy, middle and hard problems; a name is the part and the measure."""
    parts: dict[str, list[int]] = {part: [] for part in PARTS}
    for i, problem in enumerate(problems):
        parts[ALL].append(i)
        parts[part_of(loop.world.level(problem.question), task)].append(i)
    found: dict[str, float] = {}
    for part, chosen in parts.items():
        own = [problems[i] for i in chosen]
        means = loop.measured(own, [responses[i] for i in chosen])
        shortest = [loop.reader.ids(loop.world.shortest_trace(problem)) for problem in own]
        means["needed tokens"] = fmean(map(len, shortest))
        found |= {f"{part} {name}": value for name, value in means.items()}
    return found


def cpu_seconds() -> float:
    """CPU seconds of this process so far, user's and system's."""
    usage = getrusage(RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def train_run(run: Run, limits: Mapping[str, int]) -> Row:
    """Train, answer the held-out problems, and return the run's line."""
    torch.set_num_threads(1)
    beginning = begun()
    start = time.monotonic()
    cpu_before = cpu_seconds()
    task = TASKS[run.task]
    treated = treatment(run, limits)
    loop = loop_of(run.task, treated.arm, {"max_steps": task.max_steps, **treated.settings})
    test = held_out(loop, run.seed)
    stream = loop.world.problems(TRAIN_SEED + run.seed, exclude=frozenset(test))
    torch.manual_seed(run.seed)
    for _ in updates(loop, treated.arm, stream, steps_of(run.budget), task.rate):
        pass
    _, responses = loop.respond(test)
    return {
        **asdict(run),
        "treatment": f"{treated.arm} {treated.settings}",
        **measured(loop, task, test, responses),
        **beginning,
        "seconds": round(time.monotonic() - start, 1),
        "cpu seconds": round(cpu_seconds() - cpu_before, 1),
    }


def base_row(task: str) -> Row:
    """The line of a task's policy before any training, with the limits that its lengths give."""
    torch.set_num_threads(1)
    beginning = begun()
    loop = loop_of(task, "grpo", {})
    problems = held_out(loop, seed=0)
    torch.manual_seed(0)
    _, responses = loop.respond(problems)
    lengths = [len(response) for response in responses]
    limits = {name: math.ceil(np.percentile(lengths, q)) for name, q in PERCENTILES.items()}
    run = Run(task, BASE, ONLY, budget=0, seed=0)
    return {
        **asdict(run),
        **limits,
        **measured(loop, TASKS[task], problems, responses),
        **beginning,
    }


def train_phases(chosen: Iterable[Phase], file: Path) -> None:
    """Train whatever has no line yet in the file, phase after phase."""
    for phase in chosen:
        train = partial(train_run, limits=limits_of(phase.task, file))
        train_all(missing(phase.grpo_runs(), file), train, file)
        check_gate(phase.task, file)
        train_all(missing(phase.choice_runs(), file), train, file)
        runs = pd.DataFrame(read_rows(file))
        train_all(missing(phase.test_runs(runs), file), train, file)


def phases_of(tasks: Sequence[str], budgets: Sequence[int], arms: Sequence[str]) -> Iterator[Phase]:
    """The phases of some tasks, budgets and arms, in the order of all."""
    for phase in phases():
        own = tuple(arm for arm in phase.arms if arm in arms)
        if own and phase.task in tasks and phase.budget in budgets:
            yield replace(phase, arms=own)


def check_gate(task: str, file: Path) -> None:
    """Raise ConfigError if GRPO has made a task's policy less accurate than it was."""
    gate = Gate(pd.DataFrame(read_rows(file)), task)
    if not gate.passes:
        raise ConfigError(
            f"TASKS trains {task} with rate {TASKS[task].rate:g}, by which GRPO falls from "
            f"{gate.base:.1%} to {gate.grpo:.1%}; halve it, and delete the task's lines in {file}"
        )


def limits_of(task: str, file: Path) -> dict[str, int]:
    """The base's lengths by percentile; they are measured once, and kept in the file."""
    for row in read_rows(file):
        if row["task"] == task and row["arm"] == BASE:
            return {name: int(row[name]) for name in PERCENTILES}  # a kept file has decimals
    row = base_row(task)
    with appending(file) as append:
        append(row)
    return {name: row[name] for name in PERCENTILES}


def take_over(kept: Path, file: Path) -> None:
    """Append the kept runs that have no line in the file, so that they are not trained again."""
    if not kept.is_file():
        raise ConfigError(f"--kept {kept} does not exist; name a file that budget_results keeps")
    by_run = {run_of(row): row for row in read_kept(kept).to_dict("records")}
    with appending(file) as append:
        for run in missing(by_run, file):
            append({name: value for name, value in by_run[run].items() if not pd.isna(value)})


def missing(runs: Iterable[Run], file: Path) -> list[Run]:
    """The runs that have no line in the file."""
    done = {run_of(row) for row in read_rows(file)}
    return [run for run in runs if run not in done]


def run_of(row: Mapping[Any, Any]) -> Run:
    """The training that a line is of."""
    return Run(**{key: row[key] for key in KEYS})


def main(argv: list[str]) -> None:
    parser = Parser("budgets", __doc__)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--budgets", nargs="+", type=int, choices=BUDGETS, default=BUDGETS)
    arms_help = "GRPO's seeds of the choice are trained in any case"
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS), help=arms_help)
    kept_help = "begin with the runs of this .csv.gz, which are not trained again"
    parser.add_argument("--kept", type=Path, help=kept_help)
    parser.add_argument("--output", type=Path, required=True, help="folder of runs.jsonl")
    args = parser.parse_args(argv)
    args.output.mkdir(parents=True, exist_ok=True)
    with locked({"--output": args.output}):
        file = args.output / "runs.jsonl"
        drop_unfinished_line(file)
        if args.kept:
            take_over(args.kept, file)
        train_phases(phases_of(args.tasks, args.budgets, args.arms), file)


if __name__ == "__main__":
    sys.exit(run_command(main))

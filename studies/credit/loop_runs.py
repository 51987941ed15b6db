r"""Many runs of the plain loop, for fronts over theta: one line a run, two runs at a time.

    setsid nohup python -m studies.credit.loop_runs --worlds columns words --gammas 0 0.5 1 \\
        --arms steps.uniform weights.oracle reward.need --thetas 0.1 0.3 1 --seeds 11 12 13 \\
        --output outputs/need > outputs/need.log &
    python -m studies.credit.loop_runs --output outputs/need --table

Every combination of the worlds, arms, gammas, thetas and seeds is trained, seed after seed, and
appends its line to OUTPUT/runs.jsonl: the settings, what the trained policy does with the 500
held-out problems, the mean over the steps of ln(redundant lines a response + .05), when the
training began, its commit and its seconds. The same command goes on after a kill, and more seeds or
arms may be added to it. Steps and learning rate are a world's own (studies/records/comparison.md).
`--table` prints the means that there are so far.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import TypeVar

import pandas as pd
import torch

from openrlhf_swap.files import Row, appending, drop_unfinished_line, read_rows
from openrlhf_swap.process.locks import locked
from openrlhf_swap.runs.provenance import commit
from studies.credit.plain_loop import loop_of, train

# A world -> steps and learning rate of its map in studies/records/comparison.md.
TRAININGS = {
    "addition": (20, 3e-4),
    "columns": (16, 1.5e-3),
    "decomposition": (24, 3e-4),
    "words": (16, 6e-4),
}
MAX_STEPS = 25  # K
MEASURES = ["accuracy", "tokens", "essential", "redundant", "log redundant"]
PROCESSES = 2
AnyRun = TypeVar("AnyRun")


@dataclass(frozen=True)
class Run:
    """The settings of one training."""

    world: str
    arm: str
    gamma: float
    theta: float
    seed: int
    steps: int
    rate: float


def log_redundant(steps: Sequence[Row]) -> float:
    """The mean over the steps of ln(redundant lines a response + .05)."""
    return fmean(math.log(row["redundant"] + 0.05) for row in steps)


def begun() -> Row:
    """What a kept row says about a training that begins now: when, and by which commit."""
    now = datetime.now(timezone.utc)
    return {"started": now.isoformat(timespec="seconds"), "commit": commit()}


def train_run(run: Run) -> Row:
    """Train; returns the run's line."""
    torch.set_num_threads(1)
    beginning = begun()
    start = time.monotonic()
    settings = {"process_weight": run.theta, "max_steps": MAX_STEPS, "step_discount": run.gamma}
    loop = loop_of(run.world, run.arm, settings)
    *steps, held_out = train(loop, run.arm, run.seed, run.steps, run.rate)
    seconds = round(time.monotonic() - start, 1)
    measured = {**held_out, "log redundant": log_redundant(steps)}
    found = {**measured, **beginning, "seconds": seconds}
    return {**asdict(run), **{name: value for name, value in found.items() if name != "step"}}


def runs_of(args: argparse.Namespace) -> Iterator[Run]:
    """All combinations, seed after seed, so that a study that is stopped has whole seeds."""
    parts = (args.seeds, args.worlds, args.arms, args.gammas, args.thetas)
    for seed, world, arm, gamma, theta in product(*parts):
        steps, rate = TRAININGS[world]
        yield Run(world, arm, gamma, theta, seed, args.steps or steps, rate)


def settings_of(row: Row) -> Run:
    """The settings that a line has."""
    return Run(**{name: row[name] for name in Run.__dataclass_fields__})


def train_missing(args: argparse.Namespace) -> None:
    """Train the runs that have no line yet."""
    file = args.output / "runs.jsonl"
    drop_unfinished_line(file)
    done = {settings_of(row) for row in read_rows(file)}
    missing = [run for run in runs_of(args) if run not in done]
    print(f"{len(done)} runs in {file}", flush=True)
    train_all(missing, train_run, file)


def train_all(runs: Sequence[AnyRun], train: Callable[[AnyRun], Row], file: Path) -> None:
    """Train each run in a process, two at a time, and append its line as soon as it is there."""
    print(f"{len(runs)} runs to go", flush=True)
    context = get_context("spawn")
    with appending(file) as append, ProcessPoolExecutor(PROCESSES, context) as pool:
        running = [pool.submit(train, run) for run in runs]
        try:
            for number, finished in enumerate(as_completed(running), start=1):
                row = finished.result()
                append(row)
                print(f"[{number} of {len(runs)}] {json.dumps(row)}", flush=True)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def table(file: Path) -> str:
    """Means over seeds of each world, arm, gamma and theta; in parentheses deviations."""
    runs = pd.DataFrame(read_rows(file))
    grouped = runs.groupby(["world", "arm", "gamma", "theta"])
    means = grouped[MEASURES].mean()
    means.insert(0, "seeds", grouped.size())
    means["sd of redundant"] = grouped["redundant"].std()
    return str(means.reset_index().to_markdown(index=False, floatfmt=".3g"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--worlds", nargs="+", choices=TRAININGS, default=list(TRAININGS))
    parser.add_argument("--arms", nargs="+", default=["steps.uniform", "reward.need"])
    parser.add_argument("--gammas", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--thetas", type=float, nargs="+", default=[0.3, 1.0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--steps", type=int, help="of a training (default: the world's)")
    parser.add_argument("--output", type=Path, required=True, help="folder of runs.jsonl")
    parser.add_argument("--table", action="store_true", help="print the means and stop")
    args = parser.parse_args()
    if args.table:
        print(table(args.output / "runs.jsonl"))
        return
    args.output.mkdir(parents=True, exist_ok=True)
    with locked({"--output": args.output}):
        train_missing(args)


if __name__ == "__main__":
    main()

r"""Train and evaluate a list of configurations, in turn or in parallel; collect one table.

    python -m studies.comparison.run_sweep --vary process_weight 0.1 0.3 1 --seeds 1 2 3 \
        --output outputs/theta \
        --train 'bash scripts/train_swap.sh 1.5b --swap.output_dir {output} --train.seed {seed}' \
        --evaluate 'python my_evaluation.py --model {output}/policy --output {output}/result.json'

Each configuration and seed gets a folder {output} inside the sweep's folder {sweep}. `--train` runs
with the flags of the configuration appended; `--evaluate` writes `result.json` there, an object of
numbers. Finished work is not repeated: the same command resumes a stopped sweep, and repeats an
evaluation that failed. If you change the commands, delete the folders that have to run again.
`--parallel 2` keeps two runs going; each needs its own share of the cores or GPUs. They end with
the sweep, however that ends. On a Ray cluster, begin both commands with 'ray job submit --'; a job
that was submitted goes on.
"""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from tabulate import tabulate

from openrlhf_swap.command import Parser, run_command
from openrlhf_swap.config import ABLATION
from openrlhf_swap.files import write_text
from openrlhf_swap.recipes import read_recipe

PAPER = ("thinkprune", "lc_r1", "adaptthink", "laser_d", "laser_de", "l1_exact", "l1_max", "swap")
MOST_STEPS = read_recipe("swap").flags["swap.training_steps"]


def paper_row(recipe: str) -> dict[str, list[str]]:
    """A method by its recipe, but with no more training than SWAP's."""
    flags = ["--swap.recipe", recipe]
    if read_recipe(recipe).flags.get("swap.training_steps", 0) > MOST_STEPS:
        flags += ["--swap.training_steps", str(MOST_STEPS)]
    return {"train": flags}


PRESETS = {  # name -> its configurations; `paper` is both halves of its Table 1
    "paper": {name: paper_row(name) for name in PAPER},
    "ablation": {name: {"train": ["--swap.objective", name]} for name in ABLATION},
}
LEASH = [sys.executable, "-m", "openrlhf_swap.process.leash"]  # ends a command with this process
INTERRUPTED = (-signal.SIGINT, 128 + signal.SIGINT)  # how a command ends on Ctrl-C


def main(argv: list[str]) -> int:
    parser = Parser("run_sweep", __doc__)
    chosen = parser.add_mutually_exclusive_group(required=True)
    rows_help = 'JSON: [{"name": ..., "train": [flags], "evaluate": [flags]}, ...]'
    chosen.add_argument("--configurations", type=Path, help=rows_help)
    chosen.add_argument(
        "--preset", choices=PRESETS, help="the rows of a table of the paper, each with its recipe"
    )
    chosen.add_argument(
        "--vary", nargs="+", metavar=("SETTING", "VALUE"), help="a --swap.* flag, and its values"
    )
    parser.add_argument(
        "--only", nargs="+", help="names of the configurations to run; all by default"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument(
        "--output", type=Path, required=True, help="folder of all runs and of table.md"
    )
    parser.add_argument("--train", required=True, help="training command with {output} and {seed}")
    parser.add_argument(
        "--evaluate", required=True, help="evaluation command with {output} and {seed}"
    )
    parser.add_argument(
        "--parallel", type=int, default=1, metavar="N", help="number of runs at once (default: 1)"
    )
    args = parser.parse_args(argv)
    if args.configurations:
        rows = {
            row["name"]: row for row in json.loads(args.configurations.read_text(encoding="utf-8"))
        }
    elif args.preset:
        rows = PRESETS[args.preset]
    else:
        setting, *values = args.vary
        rows = {f"{setting}={value}": {"train": [f"--swap.{setting}", value]} for value in values}
    unknown = set(args.only or ()).difference(rows)
    if unknown:
        parser.error(f"--only has {' '.join(sorted(unknown))}; use any of {' '.join(rows)}")
    jobs = list(product(dict.fromkeys(args.seeds), args.only or rows))  # seed after seed
    pool = ThreadPoolExecutor(args.parallel)

    def work(job: tuple[int, str]) -> bool:
        seed, name = job
        return run(rows[name], name, seed, args, pool)

    try:
        worked = list(pool.map(work, jobs))
    finally:  # after Ctrl-C, which also ends the running commands, start no more
        pool.shutdown(cancel_futures=True)
    table = sweep_table(list(rows), args.output)
    write_text(args.output / "table.md", table)
    print(table)
    return 0 if all(worked) else 1


def run(
    row: dict[str, Any], name: str, seed: int, args: argparse.Namespace, pool: ThreadPoolExecutor
) -> bool:
    """Train and evaluate, each unless it is already done; returns whether both succeeded."""
    folder = run_folder(args.output, name, seed)
    trained = folder / "trained"
    result = folder / "result.json"
    folder.mkdir(parents=True, exist_ok=True)
    for step, template in (("train", args.train), ("evaluate", args.evaluate)):
        if result.exists() or (step == "train" and trained.exists()):
            continue
        print(
            f"[sweep] {name}, seed {seed}: {step}\n", end="", flush=True
        )  # in one piece: others print too
        words = [*shlex.split(template), *map(str, row.get(step, ()))]
        for place, value in {"{output}": folder, "{seed}": seed, "{sweep}": args.output}.items():
            words = [word.replace(place, str(value)) for word in words]
        path = folder / f"{step}.console.log"  # a training writes a train.log of its own
        with open(path, "w", encoding="utf-8") as log:
            print(shlex.join(words), file=log, flush=True)
            status = subprocess.call([*LEASH, *words], stdout=log, stderr=subprocess.STDOUT)
        if status in INTERRUPTED:
            pool.shutdown(wait=False, cancel_futures=True)  # the main thread may see Ctrl-C later
            raise KeyboardInterrupt
        if status:
            last = path.read_text(encoding="utf-8", errors="replace").splitlines()[-1]
            print(
                f"[sweep] {step} failed with status {status}: {last} ({path})\n", end="", flush=True
            )
            return False
        if step == "train":
            trained.touch()
    return True


def run_folder(output: Path, name: str, seed: int) -> Path:
    return output / name.replace("=", "_").replace("/", "_") / f"seed_{seed}"


def sweep_table(names: Sequence[str], output: Path) -> str:
    """A Markdown table of all results so far: means and, over seeds, standard deviations."""
    results: dict[str, list[dict[str, float]]] = {}
    columns: dict[str, None] = {}
    for name in names:
        files = sorted(run_folder(output, name, 0).parent.glob("seed_*/result.json"))
        rows = [json.loads(file.read_text(encoding="utf-8")) for file in files]
        if rows:
            results[name] = rows
        for row in rows:
            columns |= dict.fromkeys(row)
    lines = []
    for name, rows in results.items():
        line = [name, len(rows)]
        for column in columns:
            line.append(cell([row[column] for row in rows if column in row]))
        lines.append(line)
    return tabulate(lines, ["", "seeds", *columns], tablefmt="github", disable_numparse=True) + "\n"


def cell(values: list[float]) -> str:
    if not values:
        return ""
    mean = f"{fmean(values):.3f}"
    return f"{mean} ± {stdev(values):.3f}" if len(values) > 1 else mean


if __name__ == "__main__":
    sys.exit(run_command(main))

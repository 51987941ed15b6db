r"""Train and evaluate a list of configurations, one after the other, and collect one table.

    python -m openrlhf_swap.sweep --preset theta --seeds 1 2 3 --output outputs/theta \
        --train 'env OUTPUT={output} bash scripts/train_swap_1.5b.sh --train.seed {seed}' \
        --evaluate 'python my_evaluation.py --model {output}/policy --output {output}/result.json'

Each configuration and seed gets a folder {output}, in the sweep's own, {sweep}. `--train` runs with the flags of the
configuration appended; `--evaluate` writes `result.json` there, an object of numbers. What is done is not done again:
a sweep that was stopped goes on when it is started again, after a failed evaluation with the evaluation. After a
change of the commands, delete the folders that have to run again. `--prefix 'ray job submit --'` runs both as Ray jobs
on a cluster.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from openrlhf_swap.algorithm.recipe import VARIANTS
from openrlhf_swap.errors import ConfigError, SwapError


@dataclass(frozen=True)
class Configuration:
    """One row of the table: a name, flags for the training, and flags for the evaluation."""

    name: str
    train: tuple[str, ...] = ()
    evaluate: tuple[str, ...] = ()


def _vary(flag: str, values: Sequence[float | int | str], symbol: str) -> list[Configuration]:
    return [Configuration(f"{symbol}={value}", (f"--swap.{flag}", str(value))) for value in values]


# The paper's sweeps, and the ones over what it leaves open.
PRESETS = {
    "ablation": _vary("objective", VARIANTS, "objective"),
    "theta": _vary("process_weight", (0.05, 0.1, 0.2, 0.3, 0.5, 1.0), "theta"),
    "step_tokens": _vary("step_tokens", (150, 250, 350, 450, 550, 650), "M"),
    "max_steps": _vary("max_steps", (5, 10, 15, 25, 40), "K"),
    "lambda": _vary("length_coef", (0.0, 0.25, 0.5, 1.0, 2.0, 4.0), "lambda"),
    "tau": _vary("temperature", (0.1, 0.2, 0.5, 1.0, 2.0, "inf"), "tau"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status: 0, 1 if a run failed, or 2 after a one-line error."""
    parser = argparse.ArgumentParser(
        prog="python -m openrlhf_swap.sweep",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument(
        "--preset", choices=sorted(PRESETS), help="a list of configurations that comes with the package"
    )
    chosen.add_argument(
        "--configurations", type=Path, help='JSON: [{"name": ..., "train": [flags], "evaluate": [flags]}, ...]'
    )
    parser.add_argument("--only", nargs="+", help="names of the configurations to run; all by default")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--output", type=Path, required=True, help="folder of all runs and of table.md")
    parser.add_argument("--train", required=True, help="training command with {output} and {seed}")
    parser.add_argument("--evaluate", required=True, help="evaluation command with {output} and {seed}")
    parser.add_argument("--prefix", default="", help="put before both commands, such as 'ray job submit --'")
    args = parser.parse_args(argv)
    try:
        configurations = PRESETS[args.preset] if args.preset else read_configurations(args.configurations)
        names = [c.name for c in configurations]
        unknown = [name for name in args.only or () if name not in names]
        if unknown:
            raise ConfigError(f"--only has {' '.join(unknown)}; use some of {' '.join(names)}")
        failed = run_all([c for c in configurations if c.name in (args.only or names)], args)
    except SwapError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    table = make_table(names, args.output)
    (args.output / "table.md").write_text(table, encoding="utf-8")
    print(table)
    return 1 if failed else 0


def read_configurations(path: Path) -> list[Configuration]:
    """Read `--configurations`.

    Raises:
        ConfigError: when it cannot be read.
    """
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        return [Configuration(r["name"], tuple(r.get("train", ())), tuple(r.get("evaluate", ()))) for r in rows]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"--configurations is {path}, which cannot be read ({error}); give a JSON list of objects with a name"
        ) from None


def run_all(configurations: Sequence[Configuration], args: argparse.Namespace) -> int:
    """Run what has no result yet, seed by seed; returns how many runs failed."""
    runs = [(configuration, seed) for seed in args.seeds for configuration in configurations]
    failed = 0
    for number, (configuration, seed) in enumerate(runs, 1):
        folder = run_folder(args.output, configuration.name, seed)
        title = f"[sweep] {number}/{len(runs)} {configuration.name}, seed {seed}"
        if (folder / "result.json").exists():
            print(f"{title}: done before", flush=True)
            continue
        print(title, flush=True)
        folder.mkdir(parents=True, exist_ok=True)
        steps = (("train", args.train, configuration.train), ("evaluate", args.evaluate, configuration.evaluate))
        for name, template, flags in steps:
            words = [*shlex.split(args.prefix), *shlex.split(template), *flags]
            places = {"{output}": str(folder), "{seed}": str(seed), "{sweep}": str(args.output)}
            words = [_filled(word, places) for word in words]
            trained = folder / "trained"
            if name == "train" and trained.exists():
                continue
            with open(folder / f"{name}.log", "w", encoding="utf-8") as log:
                log.write(shlex.join(words) + "\n")
                log.flush()
                status = subprocess.run(words, stdout=log, stderr=subprocess.STDOUT, check=False).returncode
            if status != 0:
                tail = (folder / f"{name}.log").read_text(encoding="utf-8", errors="replace").splitlines()[-1]
                print(f"[sweep] {name} failed with status {status}: {tail} ({folder}/{name}.log)", flush=True)
                failed += 1
                break
            if name == "train":
                trained.touch()
    return failed


def _filled(word: str, places: dict[str, str]) -> str:
    for place, value in places.items():
        word = word.replace(place, value)
    return word


def run_folder(output: Path, name: str, seed: int) -> Path:
    """Where a run keeps its files."""
    return output / name.replace("=", "_").replace("/", "_") / f"seed_{seed}"


def make_table(names: Sequence[str], output: Path) -> str:
    """A Markdown table of all results there are, this call's and earlier ones'.

    Mean and, over several seeds, standard deviation of every number.
    """
    results: dict[str, list[dict[str, float]]] = {}
    for name in names:
        files = sorted(run_folder(output, name, 0).parent.glob("seed_*/result.json"))
        if files:
            results[name] = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    columns = list(dict.fromkeys(key for rows in results.values() for row in rows for key in row))
    lines = ["| | seeds | " + " | ".join(columns) + " |", "|---" * (len(columns) + 2) + "|"]
    for name, rows in results.items():
        cells = [_cell([row[column] for row in rows if column in row]) for column in columns]
        lines.append(f"| {name} | {len(rows)} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _cell(values: list[float]) -> str:
    if not values:
        return ""
    mean = fmean(values)
    digits = max(0, 3 - math.ceil(math.log10(abs(mean) + 1e-12))) if abs(mean) < 1000 else 0
    digits = min(digits, 4)
    spread = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{mean:.{digits}f}{spread}"


if __name__ == "__main__":
    sys.exit(main())

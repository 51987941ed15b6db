r"""Train and evaluate a list of configurations, one after the other or in parallel, and collect one table.

    python -m openrlhf_swap.sweep --preset theta --seeds 1 2 3 --output outputs/theta \
        --train 'env OUTPUT={output} bash scripts/train_swap_1.5b.sh --train.seed {seed}' \
        --evaluate 'python my_evaluation.py --model {output}/policy --output {output}/result.json'

Each configuration and seed gets a folder {output} inside the sweep's folder {sweep}. `--train` runs with the flags of
the configuration appended; `--evaluate` writes `result.json` there, an object of numbers. Finished work is not
repeated: the same command resumes a stopped sweep, and repeats an evaluation that failed. If you change the commands,
delete the folders that have to run again. `--parallel 2` keeps two runs going; each needs its own share of the cores
or GPUs. They end with the sweep, however that ends. `--prefix 'ray job submit --'` runs both commands as Ray jobs on a
cluster, where a job that was submitted goes on.

The presets paper, all and step_signal are lists of objectives. If `--configurations` is given as well, its row
replaces the preset's of the same name.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from threading import Event

from tabulate import tabulate

from openrlhf_swap.command import Parser, run_command
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.files import Row, write_text
from openrlhf_swap.objectives.ablation import ABLATION
from openrlhf_swap.objectives.registry import OBJECTIVES
from openrlhf_swap.runs.leash import ending_with_us

INTERRUPTED = (-signal.SIGINT, 128 + signal.SIGINT)  # how a command ends on Ctrl-C


@dataclass(frozen=True)
class Configuration:
    """One row of the table: a name, flags for the training, and flags for the evaluation."""

    name: str
    train: tuple[str, ...] = ()
    evaluate: tuple[str, ...] = ()


def _vary(flag: str, values: Sequence[float | int | str], symbol: str) -> list[Configuration]:
    return [Configuration(f"{symbol}={value}", (f"--swap.{flag}", str(value))) for value in values]


def _objectives(names: Iterable[str]) -> list[Configuration]:
    return [Configuration(name, ("--swap.objective", name)) for name in names]


# The paper's sweeps, and sweeps over what it leaves open.
PRESETS = {
    # The paper's main table; its other row is the policy before training.
    "paper": _objectives(("thinkprune", "lc_r1", "adaptthink", "laser_d", "laser_de", "swap")),
    "all": _objectives(OBJECTIVES),
    "step_signal": _objectives(("swap", "vsrm", "jet", "s_grpo", "decs")),
    "ablation": _vary("objective", tuple(ABLATION), "objective"),
    "theta": _vary("process_weight", (0.05, 0.1, 0.2, 0.3, 0.5, 1.0), "theta"),
    "step_tokens": _vary("step_tokens", (150, 250, 350, 450, 550, 650), "M"),
    "max_steps": _vary("max_steps", (5, 10, 15, 25, 40), "K"),
    "lambda": _vary("length_coef", (0.0, 0.25, 0.5, 1.0, 2.0, 4.0), "lambda"),
    "tau": _vary("tau", (0.1, 0.2, 0.5, 1.0, 2.0, "inf"), "tau"),
}


def main(argv: list[str]) -> int:
    """Run what has no result yet and write the table; returns 1 if a run failed, else 0.

    Raises:
        ConfigError: for unreadable or unknown configurations, or a `--parallel` below 1.
    """
    args = _parser().parse_args(argv)
    if args.parallel < 1:
        raise ConfigError(f"--parallel is {args.parallel}; give the number of runs at once, at least 1")
    configurations = _requested(args)
    names = [configuration.name for configuration in configurations]
    unknown = [name for name in args.only or () if name not in names]
    if unknown:
        raise ConfigError(f"--only has {' '.join(unknown)}; use any of {' '.join(names)}")
    chosen = [configuration for configuration in configurations if configuration.name in (args.only or names)]
    failed = run_all(chosen, args)
    table = sweep_table(names, args.output)
    write_text(args.output / "table.md", table)
    print(table)
    return 1 if failed else 0


def _parser() -> Parser:
    parser = Parser("openrlhf_swap.sweep", __doc__)
    parser.add_argument(
        "--preset", choices=sorted(PRESETS), help="a list of configurations that comes with the package"
    )
    parser.add_argument(
        "--configurations", type=Path, help='JSON: [{"name": ..., "train": [flags], "evaluate": [flags]}, ...]'
    )
    parser.add_argument("--only", nargs="+", help="names of the configurations to run; all by default")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--output", type=Path, required=True, help="folder of all runs and of table.md")
    parser.add_argument("--train", required=True, help="training command with {output} and {seed}")
    parser.add_argument("--evaluate", required=True, help="evaluation command with {output} and {seed}")
    parser.add_argument("--parallel", type=int, default=1, metavar="N", help="number of runs at once (default: 1)")
    parser.add_argument("--prefix", default="", help="put before both commands, such as 'ray job submit --'")
    return parser


def _requested(args: argparse.Namespace) -> list[Configuration]:
    own = read_configurations(args.configurations) if args.configurations else []
    if not args.preset:
        if not args.configurations:
            raise ConfigError("--preset and --configurations are missing; give one of them, or both")
        return own
    rows = {configuration.name: configuration for configuration in own}
    return [rows.get(configuration.name, configuration) for configuration in PRESETS[args.preset]]


def read_configurations(path: Path) -> list[Configuration]:
    """Read `--configurations`.

    Raises:
        ConfigError: when it cannot be read.
    """
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        return [Configuration(row["name"], _words(row, "train"), _words(row, "evaluate")) for row in rows]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"--configurations is {path}, which cannot be read ({error}); give a JSON list of objects with a name"
        ) from None


def _words(row: Row, key: str) -> tuple[str, ...]:
    """The words of a configuration's flags; numbers among them are fine."""
    if not isinstance(words := row.get(key, []), list):
        raise TypeError(f"{key} of {row['name']} is no list")
    return tuple(map(str, words))


def run_all(configurations: Sequence[Configuration], args: argparse.Namespace) -> int:
    """Run what has no result yet, seed by seed, `--parallel` at once; returns how many runs failed."""
    runs = [(configuration, seed) for seed in dict.fromkeys(args.seeds) for configuration in configurations]

    interrupted = Event()  # a thread of the pool may see Ctrl-C end its command before the main thread sees it

    def run(number: int) -> bool:
        if interrupted.is_set():
            return False
        configuration, seed = runs[number]
        title = f"[sweep] {number + 1}/{len(runs)} {configuration.name}, seed {seed}"
        try:
            return _run(title, configuration, seed, args)
        except KeyboardInterrupt:
            interrupted.set()
            raise

    pool = ThreadPoolExecutor(args.parallel)
    try:
        return sum(not worked for worked in pool.map(run, range(len(runs))))
    finally:  # after Ctrl-C, which also ends the running commands, start no more
        pool.shutdown(cancel_futures=True)


def _run(title: str, configuration: Configuration, seed: int, args: argparse.Namespace) -> bool:
    """Train and evaluate, each unless it is already done; returns whether both succeeded."""
    folder = run_folder(args.output, configuration.name, seed)
    if (folder / "result.json").exists():
        _say(f"{title}: already done")
        return True
    _say(title)
    folder.mkdir(parents=True, exist_ok=True)
    places = {"{output}": str(folder), "{seed}": str(seed), "{sweep}": str(args.output)}
    trained = folder / "trained"
    if not trained.exists():
        if not _succeeds("train", [args.prefix, args.train], configuration.train, places, folder):
            return False
        trained.touch()
    return _succeeds("evaluate", [args.prefix, args.evaluate], configuration.evaluate, places, folder)


def _succeeds(name: str, templates: Sequence[str], flags: Sequence[str], places: dict[str, str], folder: Path) -> bool:
    """Run one command with its output in `<name>.console.log`, whose last line is printed if it fails."""
    words = [word for template in templates for word in shlex.split(template)] + list(flags)
    for place, value in places.items():
        words = [word.replace(place, value) for word in words]
    path = folder / f"{name}.console.log"  # a training writes a train.log of its own
    with open(path, "w", encoding="utf-8") as log:
        log.write(shlex.join(words) + "\n")
        log.flush()
        status = subprocess.run(ending_with_us(words), stdout=log, stderr=subprocess.STDOUT, check=False).returncode
    if status != 0:
        tail = path.read_text(encoding="utf-8", errors="replace").splitlines()[-1]
        _say(f"[sweep] {name} failed with status {status}: {tail} ({path})")
    if status in INTERRUPTED:
        raise KeyboardInterrupt
    return status == 0


def _say(line: str) -> None:
    """Print a line in one piece, because another run may be printing too."""
    print(line + "\n", end="", flush=True)


def run_folder(output: Path, name: str, seed: int) -> Path:
    """Where a run keeps its files."""
    return output / name.replace("=", "_").replace("/", "_") / f"seed_{seed}"


def sweep_table(names: Sequence[str], output: Path) -> str:
    """A Markdown table of all results, of this call and earlier ones.

    Each number is given as its mean and, over several seeds, its standard deviation.
    """
    results: dict[str, list[dict[str, float]]] = {}
    for name in names:
        files = sorted(run_folder(output, name, 0).parent.glob("seed_*/result.json"))
        if files:
            results[name] = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    columns = list(dict.fromkeys(key for rows in results.values() for row in rows for key in row))
    lines = [
        [name, len(rows), *(_cell([row[column] for row in rows if column in row]) for column in columns)]
        for name, rows in results.items()
    ]
    return tabulate(lines, ["", "seeds", *columns], tablefmt="github", disable_numparse=True) + "\n"


def _cell(values: list[float]) -> str:
    if not values:
        return ""
    mean = fmean(values)
    digits = max(0, 3 - math.ceil(math.log10(abs(mean) + 1e-12))) if abs(mean) < 1000 else 0
    digits = min(digits, 4)
    spread = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{mean:.{digits}f}{spread}"


if __name__ == "__main__":
    sys.exit(run_command(main))

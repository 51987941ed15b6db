r"""How accuracy and length depend on theta, lambda, tau and M: a table of each, and one picture.

    python -m studies.comparison.sweeps --world decomposition \
        --output outputs/sweeps \
        --results studies/records/results/decomposition.csv.gz \
        studies/records/results/decomposition_sweeps.csv.gz

Reads what differences.py kept, where methods named such as theta_0.1, as compare.sh names the
folder of the configuration theta=0.1, are points of a sweep; swap and those ablations that change
nothing else are points too (theta 0 is GRPO, lambda 0 no_penalty, tau inf uniform_penalty). The
points of a sweep are compared on the seeds that all of them have. Intervals are those of
differences.py.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from pathlib import Path

from tabulate import tabulate

from openrlhf_swap.algorithm.coefficients import Tau
from openrlhf_swap.command import Parser, run_command
from openrlhf_swap.config import ABLATION, SwapConfig
from openrlhf_swap.errors import DataError
from openrlhf_swap.files import write_text
from openrlhf_swap.quickstart.world import World
from studies.comparison.differences import (
    BASE,
    Method,
    Results,
    by_level,
    difference,
    interval,
    read_kept,
    with_interval,
)
from studies.toy_tasks import NAMES, load

SWAP = "swap"
STEP_TOKENS = "M"  # its default is the world's
# Symbol of the paper -> setting.
SETTINGS = {
    "theta": "process_weight",
    "lambda": "length_coef",
    "tau": "tau",
    STEP_TOKENS: "step_tokens",
}


def points(symbol: str, methods: Mapping[str, Method], step_tokens: int) -> dict[float, Method]:
    """Value -> the method that was trained with it, in order."""
    config = SwapConfig(step_tokens=step_tokens)
    setting = SETTINGS[symbol]
    found = {
        float(name.split("_")[1]): method
        for name, method in methods.items()
        if name.startswith(f"{symbol}_")
    }
    for name, changes_of in ABLATION.items():
        changes = changes_of(config)
        if name in methods and changes.keys() <= {setting}:
            value = getattr(config.replaced(**changes), setting)
            found[value.number if isinstance(value, Tau) else float(value)] = methods[name]
    return dict(sorted(found.items()))


def common(found: Mapping[float, Method]) -> tuple[tuple[int, ...], dict[float, Results]]:
    """The seeds that all points have, and the results of these."""
    seeds = set.intersection(*(set(method.seeds) for method in found.values()))
    return tuple(sorted(seeds)), {value: method.of(seeds) for value, method in found.items()}


def tables(
    symbol: str,
    found: Mapping[float, Method],
    default: Method,
    labels: tuple[str, ...],
    levels: list[int],
) -> str:
    """A row a value: accuracy, tokens and lines, and the accuracy's distance from swap's.

    A second table is by difficulty.
    """
    seeds, results = common(found)
    reference = default.of(seeds)["accuracy"]
    rows = []
    for value, of_value in results.items():
        lines = [f"{of_value[label].mean():.2f}" for label in labels]
        cells = [with_interval(of_value[of]) for of in ("accuracy", "tokens")]
        change = SWAP if found[value] is default else difference(of_value["accuracy"] - reference)
        rows.append([f"{value:g}", *cells, *lines, change])
    header = [
        f"{symbol} (seeds {', '.join(map(str, seeds))})",
        *(
            "accuracy %",
            "tokens",
            *(f"{label} lines" for label in labels),
            "accuracy, points from swap",
        ),
    ]
    by_value = {
        f"{symbol} {value:g}": Method(seeds, of_value) for value, of_value in results.items()
    }
    return (
        tabulate(rows, header, "github", disable_numparse=True)
        + "\n\n"
        + by_level(by_value, levels)
    )


def draw(sweeps: Mapping[str, Mapping[float, Method]], base: Method, path: Path) -> None:
    """Accuracy above tokens, a column a sweep; dashed, the policy before training."""
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(
        *(2, len(sweeps)),
        sharex="col",
        sharey="row",
        figsize=(11, 5),
        layout="constrained",
        squeeze=False,
    )
    for column, (symbol, found) in zip(panels.T, sweeps.items(), strict=True):
        results = common(found)[1]
        for panel, of in zip(column, ("accuracy", "tokens"), strict=True):
            means, lows, highs = zip(
                *(interval(of_value[of]) for of_value in results.values()), strict=True
            )
            spread = [[mean - low for mean, low in zip(means, lows, strict=True)]]
            spread.append([high - mean for mean, high in zip(means, highs, strict=True)])
            panel.errorbar(range(len(means)), means, spread, marker="o", capsize=3)
            panel.axhline(base.results[of].mean(), linestyle="--", color="grey", linewidth=1)
        column[1].set_xticks(
            range(len(results)), ["∞" if math.isinf(value) else f"{value:g}" for value in results]
        )
        column[1].set_xlabel(symbol)
    panels[0, 0].set_ylabel("accuracy, %")
    panels[1, 0].set_ylabel("tokens a response")
    figure.savefig(path, dpi=100)
    plt.close(figure)


def report(world: World, files: list[Path], output: Path) -> str:
    """All tables; writes them and the picture.

    Raises:
        DataError: for files of different problems, and when no sweep is in them.
    """
    methods: dict[str, Method] = {}
    levels: list[int] = []
    for file in files:
        kept, kept_levels = read_kept(file)
        if levels not in ([], kept_levels):
            raise DataError(
                f"--results has {file}, which is of other problems than {files[0]}; name another "
                "file"
            )
        levels = kept_levels
        methods = kept | methods
    if SWAP not in methods:
        raise DataError(
            f"--results {' '.join(map(str, files))} is without {SWAP}, which the rest is "
            "compared with"
        )
    sweeps = {symbol: points(symbol, methods, world.STEP_TOKENS) for symbol in SETTINGS}
    sweeps = {
        symbol: found for symbol, found in sweeps.items() if len(found) > 1 and common(found)[0]
    }
    if not sweeps:
        raise DataError(
            f"--results {' '.join(map(str, files))} has no two points of a sweep with a seed in "
            "common"
        )
    parts = (
        tables(symbol, found, methods[SWAP], world.LABELS, levels)
        for symbol, found in sweeps.items()
    )
    text = "\n\n".join(parts) + "\n"
    output.mkdir(parents=True, exist_ok=True)
    write_text(output / "sweeps.md", text)
    draw(sweeps, methods[BASE], output / "sweeps.png")
    return text


def main(argv: list[str]) -> None:
    """Print the tables."""
    parser = Parser("sweeps", __doc__)
    parser.add_argument("--world", choices=NAMES, default=NAMES[0])
    parser.add_argument(
        "--results", type=Path, nargs="+", required=True, help="files that differences.py kept"
    )
    parser.add_argument(
        "--output", type=Path, required=True, help="folder for sweeps.md and sweeps.png"
    )
    args = parser.parse_args(argv)
    for file in args.results:
        if not file.is_file():
            raise DataError(
                f"--results names {file}, which is not there; keep one with differences.py "
                "--results"
            )
    print(report(load(args.world), args.results, args.output), end="")


if __name__ == "__main__":
    sys.exit(run_command(main))

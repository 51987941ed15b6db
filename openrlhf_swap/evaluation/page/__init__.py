r"""Write an HTML page that shows where the length of responses went; it opens offline.

    openrlhf-swap eval page outputs/eval/base outputs/eval/swap --output page.html

Each evaluation is a column: responses to the same problem are shown side by side, step by step,
shaded by how each step changed the answer's log-probability, with the penalty that SWAP would apply
to each step and a curve of that log-probability. The steps are read from `scored.jsonl` in the
evaluation's folder (see `openrlhf-swap eval traces`). Scored traces from elsewhere can be given as
a file. The evaluations' table stands above, and a training run's curves can be added (--metrics).
"""

import argparse
from dataclasses import asdict, dataclass
from pathlib import Path

from openrlhf_swap.command import Parser, counted
from openrlhf_swap.config import SwapConfig
from openrlhf_swap.files import write_text
from openrlhf_swap.flags.configuration import parse_with_settings

PROBLEMS = 200
LARGE = 20_000_000  # bytes of a page that browsers still open quickly
# The report's columns that a phone has the width for.
SUMMARY_COLUMNS = ("pass@1 %", "95%", "tokens", "cut off %")


def main(argv: list[str]) -> None:
    """Write the page.

    Raises ConfigError for an invalid penalty, DataError for traces that are not scored.
    """
    parser = Parser("openrlhf-swap eval page", __doc__)
    parser.add_argument(
        "inputs",
        type=Path,
        nargs="+",
        help="folders of evaluations, or scored traces: a column each",
    )
    parser.add_argument("--output", type=Path, required=True, help="HTML file to write")
    parser.add_argument(
        "--metrics",
        type=Path,
        help="metrics.jsonl of the training run whose curves to show",
    )
    parser.add_argument(
        "--limit",
        type=int,
        help=f"maximum number of problems on the page (default: {PROBLEMS}, or as many as make a "
        f"page of {LARGE // 10**6} MB)",
    )
    # Of the penalty that is shown.
    names = ("length_coef", "tau", "weights_from", "step_price")
    args = parse_with_settings(parser, names, argv)
    penalty = SwapConfig(**{name: getattr(args, name) for name in names})
    page = make_page(args, penalty, args.limit or PROBLEMS)
    note = ""
    if page.size > LARGE:
        note = f", {page.size / 1e6:.0f} MB, which browsers open slowly: give a smaller --limit"
    if page.size > LARGE and args.limit is None:
        note = (
            f" of {page.problems}: all would take {page.size / 1e6:.0f} MB, which browsers open "
            f"slowly; --limit {page.problems} shows them"
        )
        page = make_page(args, penalty, max(1, LARGE * page.problems // page.size))
    args.output.parent.mkdir(parents=True, exist_ok=True)
    write_text(args.output, page.html)
    print(f"{args.output}: {counted(page.problems, 'problem')}{note}")


@dataclass(frozen=True)
class Page:
    """An HTML page, the number of problems on it, and its size in bytes."""

    html: str
    problems: int
    size: int


def make_page(args: argparse.Namespace, penalty: SwapConfig, limit: int) -> Page:
    """The page with the first `limit` problems, those that the most columns have first."""
    from openrlhf_swap.evaluation.page.contents import charts, page_data, render  # imports torch

    data = page_data(args.inputs, penalty, limit)
    evaluations = [place for place in args.inputs if place.is_dir()]
    if args.metrics or evaluations:
        from openrlhf_swap.evaluation.measures import measure_evaluations
        from openrlhf_swap.evaluation.report import COLUMNS, difference_cells, evaluation_cells

        runs = measure_evaluations(evaluations)
        differences, notes = difference_cells(runs)
        shown = evaluation_cells(runs, {title: COLUMNS[title] for title in SUMMARY_COLUMNS})
        data["summary"] = {
            "notes": notes,
            "tables": [asdict(table) for table in (shown, differences) if table.rows],
            "charts": charts(args.metrics) if args.metrics else [],
        }
    html = render(data)
    return Page(html, len(data["problems"]), len(html.encode()))

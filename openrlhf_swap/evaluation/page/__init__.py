r"""Write an HTML page that shows where the length of responses went; it opens offline.

    openrlhf-swap eval page outputs/eval/base outputs/eval/swap --output page.html

Each evaluation is a column: responses to the same problem are shown side by side, step by step,
shaded by how each step changed the answer's log-probability, with the penalty that SWAP would apply
to each step and a curve of that log-probability. The steps are read from `scored.jsonl` in the
evaluation's folder (see `openrlhf-swap eval traces`). Scored traces from elsewhere can be given as
a file. The evaluations' table stands above, and a training run's curves can be added (--metrics).
"""

from dataclasses import asdict
from pathlib import Path

from openrlhf_swap.command import Parser, counted
from openrlhf_swap.config import SwapConfig
from openrlhf_swap.files import write_text
from openrlhf_swap.flags.configuration import parse_with_settings

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
        default=200,
        help="maximum number of problems on the page (default: 200)",
    )
    # Of the penalty that is shown.
    names = ("length_coef", "tau", "weights_from", "step_price")
    args = parse_with_settings(parser, names, argv)
    penalty = SwapConfig(**{name: getattr(args, name) for name in names})
    from openrlhf_swap.evaluation.page.contents import charts, page_data, render  # imports torch

    data = page_data(args.inputs, penalty, args.limit)
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
    args.output.parent.mkdir(parents=True, exist_ok=True)
    write_text(args.output, render(data))
    print(f"{args.output}: {counted(len(data['problems']), 'problem')}")

r"""One HTML page that shows where the length of responses went; opens offline.

    python -m evaluation.page --traces base.scored.jsonl swap.scored.jsonl --output page.html

Traces come from `python -m openrlhf_swap.score` (see `python -m evaluation.traces`). Each file is a column: responses
to the same problem stand side by side, step by step, shaded by information gain, with the penalty that SWAP would give
each step and the answer's log-probability as a curve. Above them, if wanted: a training's curves (--metrics) and the
table of evaluations (--evaluations).
"""

from __future__ import annotations

import sys
from pathlib import Path

from evaluation.measures import measure_evaluations
from evaluation.tables import evaluation_cells
from openrlhf_swap.command import Parser, counted, run_command
from openrlhf_swap.errors import ConfigError


def main(argv: list[str]) -> None:
    """Write the page; ConfigError for a penalty that there cannot be, DataError for a file without scored traces."""
    parser = Parser("evaluation.page", __doc__)
    parser.add_argument("--traces", type=Path, nargs="+", required=True, help="scored traces; one column each")
    parser.add_argument("--output", type=Path, required=True, help="HTML file to write")
    parser.add_argument("--length-coef", type=float, default=1.0, help="lambda of the penalty that is shown")
    parser.add_argument("--temperature", type=float, default=1.0, help="tau of the penalty that is shown")
    parser.add_argument("--metrics", type=Path, help="metrics.jsonl of the training whose curves stand above")
    parser.add_argument(
        "--evaluations", type=Path, nargs="+", default=[], help="folders of the evaluations whose table stands above"
    )
    parser.add_argument("--limit", type=int, default=200, help="most problems on the page (default: 200)")
    args = parser.parse_args(argv)
    if args.temperature <= 0 or args.length_coef < 0:
        raise ConfigError(
            f"--temperature is {args.temperature}, --length-coef {args.length_coef}; use tau > 0 and lambda >= 0"
        )
    from evaluation.page.contents import charts, page_data, render  # brings torch

    data = page_data(args.traces, args.length_coef, args.temperature, args.limit)
    if args.metrics or args.evaluations:
        header, rows = evaluation_cells(measure_evaluations(args.evaluations))
        data["summary"] = {
            "notes": [],
            "tables": [{"header": header, "rows": rows}] if rows else [],
            "charts": charts(args.metrics) if args.metrics else [],
        }
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(render(data), encoding="utf-8")
    print(f"{args.output}: {counted(len(data['problems']), 'problem')}")


if __name__ == "__main__":
    sys.exit(run_command(main))

r"""Write an HTML page that shows where the length of responses went; it opens offline.

    openrlhf-swap eval page --traces base.scored.jsonl swap.scored.jsonl --output page.html

Traces come from `openrlhf-swap score` (see `openrlhf-swap eval traces`). Each file is a column: responses
to the same problem are shown side by side, step by step, shaded by how each step changed the answer's log-probability,
with the penalty that SWAP would apply to each step and a curve of that log-probability. A training run's curves
(--metrics) and the table of evaluations (--evaluations) can be added above.
"""

from __future__ import annotations

import sys
from pathlib import Path

from openrlhf_swap.evaluation.tables import evaluation_cells

from openrlhf_swap.command import Parser, counted, run_command
from openrlhf_swap.config import SwapConfig
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.evaluation.measures import measure_evaluations


def main(argv: list[str]) -> None:
    """Write the page; ConfigError for an invalid penalty, DataError for a file without scored traces."""
    parser = Parser("openrlhf-swap eval page", __doc__)
    parser.add_argument("--traces", type=Path, nargs="+", required=True, help="scored traces; one column each")
    parser.add_argument("--output", type=Path, required=True, help="HTML file to write")
    parser.add_argument("--length-coef", type=float, default=1.0, help="lambda of the penalty shown")
    parser.add_argument("--tau", default="1.0", help="tau of the penalty shown, nats or deviations (0.5sd)")
    parser.add_argument("--metrics", type=Path, help="metrics.jsonl of the training run whose curves to show")
    parser.add_argument(
        "--evaluations", type=Path, nargs="+", default=[], help="folders of the evaluations whose table to show"
    )
    parser.add_argument("--limit", type=int, default=200, help="maximum number of problems on the page (default: 200)")
    args = parser.parse_args(argv)
    try:
        penalty = SwapConfig(tau=args.tau, length_coef=args.length_coef)
    except ConfigError:
        raise ConfigError(
            f"--tau is {args.tau}, --length-coef {args.length_coef}; use tau > 0 and lambda >= 0"
        ) from None
    from openrlhf_swap.evaluation.page.contents import charts, page_data, render  # imports torch

    data = page_data(args.traces, penalty.length_coef, penalty.tau, args.limit)
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

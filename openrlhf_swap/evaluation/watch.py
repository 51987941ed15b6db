"""Look at a run while it trains: a page with its curves and newest rollouts, which reloads itself.

    openrlhf-swap watch outputs/swap_laptop

Reads metrics.jsonl and rollouts/ of the run's folder, and writes watch.html beside them until the
run has finished or Ctrl-C. The page is one file without a network request.
"""

import json
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from openrlhf_swap.command import Parser
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.evaluation.traces import measured_steps
from openrlhf_swap.files import Row, read_rows, write_text
from openrlhf_swap.runs.checkpoints import CONFIGURATION
from openrlhf_swap.runs.metrics import METRICS

TABLES = 3  # newest tables of rollouts on the page
# Charts beside those of the page of traces: title -> the metric of each line.
CHARTS = {"reward": {"reward": "reward"}, "seconds a step": {"seconds": "timing/step_total"}}
# What is said of the last step: metric -> text.
SAID = {
    "swap/accuracy": "accuracy {:.1%}",
    "length/mean": "{:.0f} tokens",
    "reward": "reward {:.3f}",
    "timing/step_total": "{:.1f} s",
}


def main(argv: list[str]) -> None:
    """Write the page again and again. Raises ConfigError for a folder without a run."""
    parser = Parser("openrlhf-swap watch", __doc__)
    parser.add_argument("folder", type=Path, help="--swap.output_dir of a training")
    parser.add_argument("--output", type=Path, help="HTML to write (default: FOLDER/watch.html)")
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two looks")
    parser.add_argument("--once", action="store_true", help="write the page once, and end")
    args = parser.parse_args(argv)
    if not (args.folder / CONFIGURATION).exists():
        raise ConfigError(
            f"{args.folder} holds no {CONFIGURATION}; give the --swap.output_dir of a training "
            "that has started"
        )
    if args.every <= 0:
        raise ConfigError(f"--every is {args.every:g}; use a positive number of seconds")
    page = args.output or args.folder / "watch.html"
    print(f"[watch] open {page}; Ctrl-C ends this command, not the training", flush=True)
    while True:
        last = args.once or is_finished(args.folder)
        write_text(page, page_of(args.folder, 0.0 if last else args.every))
        if last:
            break
        time.sleep(args.every)
    print(f"[watch] {page} shows the run as it is now")


def is_finished(folder: Path) -> bool:
    """Whether the training has said that it is finished."""
    return "finished" in json.loads((folder / CONFIGURATION).read_text(encoding="utf-8"))


def page_of(folder: Path, reload_seconds: float) -> str:
    """The page as HTML. It reloads itself after so many seconds; 0 for never."""
    from openrlhf_swap.evaluation.page import contents

    rows = measured_steps(folder / METRICS)
    tables = sorted(folder.glob("rollouts/step_*.jsonl"))
    newest: list[Row] = []
    for table in reversed(tables[-TABLES:]):
        newest += map(contents.complete, _rollouts(table))
    data = contents.page_of_columns(["rollouts"], [newest], limit=len(newest))
    data["title"] = f"{folder.absolute().name}, as it trains" if reload_seconds else folder.name
    data["groups"] = "step"
    data["reload"] = reload_seconds
    data["summary"] = {
        "notes": [_state(rows), _about_rollouts(tables)],
        "tables": [],
        "charts": contents.curves(rows, contents.CHARTS | CHARTS),
    }
    return contents.render(data)


def _state(rows: list[Row]) -> str:
    """What the last step was like, in a sentence."""
    looked = f"looked at {datetime.now():%H:%M:%S}"
    if not rows:
        return f"No step has ended yet; {looked}."
    row = rows[-1]
    said = []
    for key, text in SAID.items():
        if row.get(key) is not None:
            said.append(text.format(row[key]))
    return f"Step {row['step']}: {', '.join(said)}; {looked}."


def _about_rollouts(tables: list[Path]) -> str:
    if tables:
        return "Below: rollouts of the newest steps that were kept (--swap.rollouts_every)."
    return "No rollouts were kept yet; --swap.rollouts_every says of which steps they are."


def _rollouts(table: Path) -> Iterator[Row]:
    """The rows of a table of rollouts as scored traces, with the penalties of the training."""
    for row in read_rows(table):
        steps = [step for step in row["steps"] if "answer_logprob" in step]
        before = [row["answer_logprob_0"]] if steps else []
        yield {
            **row,
            "benchmark": f"{_step_of(table)}",
            "problem": row["prompt"],
            "steps": [step["text"] for step in steps],
            "step_ends": [step["end"] for step in steps],
            "answer_logprobs": before + [step["answer_logprob"] for step in steps],
            "gains": [step["gain"] for step in steps],
            "local_gains": [step["local_gain"] for step in steps],
            "penalties": [step["penalty"] for step in steps],
        }


def _step_of(table: Path) -> int:
    return int(table.stem.removeprefix("step_"))

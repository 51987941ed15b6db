"""The page that ends the quickstart: the idea in one look, table, curves, and some problems.

They are the first held-out problems.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from openrlhf_swap.config import SwapConfig
from openrlhf_swap.files import Row, read_rows, write_text
from openrlhf_swap.quickstart.idea import idea_of, median_correct
from openrlhf_swap.quickstart.report import HEADER, cells

TITLES = ("before training", "after training")
NOTES = (
    "The first {problems} held-out problems, not chosen, with {responses} responses each before "
    "and after; the first one shown is the correct one of median length. A response is scored by "
    "the policy that wrote it, as in training; its penalty is what SWAP would assign within these "
    "{responses}."
)
# The training's settings that responses are scored with, and those of the penalty on the page.
SCORED_WITH = ("step_tokens", "max_steps", "newline_patience", "close_template")
CREDITED_WITH = ("length_coef", "tau", "weights_from", "step_price")


def write_page(policies: Mapping[str, Path], summary: Mapping[str, Any], output: Path) -> Path:
    """Score each named policy's traces, and write the page into the quickstart's folder.

    The traces are those of evaluate.py. Returns the page's file.
    """
    from openrlhf_swap.evaluation.page.contents import charts, page_data, render  # imports torch

    swap = json.loads((output / "train" / "swap_config.json").read_text(encoding="utf-8"))["swap"]
    files = []
    for name, model in policies.items():
        files.append(score(model, output / f"{name}.traces.jsonl", swap))
    config = SwapConfig(**{name: swap[name] for name in CREDITED_WITH if name in swap})
    data = page_data(files, config, limit=100)
    for problem in data["problems"]:
        problem["columns"] = [median_first(responses) for responses in problem["columns"]]
    responses = len(data["problems"][0]["columns"][0])
    sides = {title: list(read_rows(file)) for title, file in zip(TITLES, files, strict=True)}
    data["title"] = "Addition, before and after"
    data["idea"] = idea_of(sides, config, in_short(summary))
    data["summary"] = {
        "notes": [NOTES.format(problems=len(data["problems"]), responses=responses)],
        "tables": [{"header": HEADER, "rows": cells(summary)}],
        "charts": charts(output / "train" / "metrics.jsonl"),
    }
    page = output / "report.html"
    write_text(page, render(data))
    return page


def median_first(responses: Sequence[Row]) -> list[Row]:
    """The responses with the correct one of median length in front; the others keep their order.

    A column opens on its first response, which may be an exception.
    """
    median = median_correct(responses)
    return [median, *(response for response in responses if response is not median)]


def in_short(summary: Mapping[str, Any]) -> str:
    """What the training changed, in a sentence."""
    base = summary["base"]
    trained = summary["trained"]
    tokens = f"{base['tokens']:.0f} tokens a response became {trained['tokens']:.0f}"
    accuracy = f"accuracy went from {base['accuracy']:.0%} to {trained['accuracy']:.0%}"
    return f"Over all held-out problems, {tokens}, and {accuracy}."


def score(model: Path, traces: Path, swap: Mapping[str, Any]) -> Path:
    """Score traces with a policy and the training's settings.

    Returns the file, with its log beside it.
    """
    from openrlhf_swap.score import main

    scored = traces.with_name(traces.name.replace(".traces", ".scored"))
    scored.unlink(missing_ok=True)  # left by an earlier quickstart
    flags: dict[str, Any] = {"--model": model, "--input": traces, "--output": scored}
    for name in SCORED_WITH:
        flags[f"--swap.{name}"] = swap[name]
    flags["--swap.step_reward"] = "need"  # also reads what each step is needed for
    words = []
    for flag, value in flags.items():
        words += [flag, str(value)]
    log = scored.with_suffix(".log")
    with log.open("w", encoding="utf-8") as file, redirect_stdout(file), redirect_stderr(file):
        main(words)
    return scored

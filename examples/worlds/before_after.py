"""The page that ends the quickstart: the idea in one look, table, curves, and some problems.

They are the first held-out problems.
"""

from __future__ import annotations

import json
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from idea import idea_of, median_correct
from report import HEADER, cells

from openrlhf_swap.config import SwapConfig
from openrlhf_swap.files import read_rows, write_text

NOTES = (
    "The first {problems} held-out problems, not chosen, with {responses} responses each before "
    "and after; the first one shown is the correct one of median length. A response is scored by "
    "the policy that wrote it, as in training; its penalty is what SWAP would assign within these "
    "{responses}."
)


def write_page(policies: dict[str, Path], summary: dict, output: Path) -> Path:
    """Score each named policy's traces, and write the page into the quickstart's folder.

    The traces are those of evaluate.py.
    """
    from openrlhf_swap.evaluation.page.contents import charts, page_data, render  # imports torch

    swap = json.loads((output / "train" / "swap_config.json").read_text(encoding="utf-8"))["swap"]
    files = [
        score(model, output / f"{name}.traces.jsonl", swap) for name, model in policies.items()
    ]
    names = swap.keys() & {"length_coef", "tau", "weights_from", "step_price"}
    config = SwapConfig(**{name: swap[name] for name in names})
    data = page_data(files, config, limit=100)
    for problem in data["problems"]:
        problem["columns"] = [median_first(responses) for responses in problem["columns"]]
    responses = len(data["problems"][0]["columns"][0])
    data["title"] = "Addition, before and after"
    titles = ("before training", "after training")
    sides = {title: list(read_rows(file)) for title, file in zip(titles, files, strict=True)}
    data["idea"] = idea_of(sides, config, in_short(summary))
    data["summary"] = {
        "notes": [NOTES.format(problems=len(data["problems"]), responses=responses)],
        "tables": [{"header": HEADER, "rows": cells(summary)}],
        "charts": charts(output / "train" / "metrics.jsonl"),
    }
    page = output / "report.html"
    write_text(page, render(data))
    return page


def median_first(responses: list[dict]) -> list[dict]:
    """The responses with the correct one of median length in front; the others keep their order.

    A column opens on its first response, which may be an exception.
    """
    median = median_correct(responses)
    return [median, *(response for response in responses if response is not median)]


def in_short(summary: dict) -> str:
    """What the training changed, in a sentence."""
    base = summary["base"]
    trained = summary["trained"]
    return (
        f"Over all held-out problems, {base['tokens']:.0f} tokens a response became "
        f"{trained['tokens']:.0f}, and "
        f"accuracy went from {base['accuracy']:.0%} to {trained['accuracy']:.0%}."
    )


def score(model: Path, traces: Path, swap: dict) -> Path:
    """Score traces with a policy and the training's settings.

    Returns the file, with its log beside it.
    """
    from openrlhf_swap.score import main

    scored = traces.with_name(traces.name.replace(".traces", ".scored"))
    scored.unlink(missing_ok=True)  # left by an earlier quickstart
    arguments = {"--model": model, "--input": traces, "--output": scored}
    names = ("step_tokens", "max_steps", "newline_patience", "close_template")
    arguments |= {f"--swap.{name}": swap[name] for name in names}
    arguments["--swap.step_reward"] = "need"  # also reads what each step is needed for
    with (
        open(scored.with_suffix(".log"), "w", encoding="utf-8") as log,
        redirect_stdout(log),
        redirect_stderr(log),
    ):
        main([str(word) for pair in arguments.items() for word in pair])
    return scored

"""Make the pictures of a quickstart in README.md, concepts.md and the page of toy tasks, light and dark.

bash scripts/quickstart.sh && PYTHONPATH=scripts python docs/make_pictures.py outputs/quickstart

Those of the report need Chromium, as scripts/page_pictures.py does.
"""

import sys
from itertools import pairwise
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes
from page_pictures import SCHEMES, WIDTHS, Browser

from openrlhf_swap import StepTrace, SwapConfig, swap_advantages
from openrlhf_swap.evaluation.page.contents import add_penalties
from openrlhf_swap.files import read_rows

PICTURES = Path(__file__).parent / "pictures"
README_WIDTH = 1120  # pixels
THEMES = {  # background, text, muted text, gain, penalty
    "light": ("#ffffff", "#1f2328", "#8b949e", "#1a7f37", "#cf222e"),
    "dark": ("#0d1117", "#e6edf3", "#6e7681", "#3fb950", "#f85149"),
}


def take_pictures(report: Path) -> None:
    """The README's picture, which is the top of the report, and the report at both widths."""
    with Browser() as browser:
        for scheme in SCHEMES:
            browser.open(report, README_WIDTH, scheme)
            browser.ask("document.querySelectorAll('#idea .dim').forEach(each => each.remove())")
            browser.picture(PICTURES / f"thought_{scheme}.png", of="idea", scale=2)
            for name, width in WIDTHS.items():
                browser.open(report, width, scheme)
                height = 2000 if name == "phone" else 1000
                browser.picture(PICTURES / f"report_{name}_{scheme}.png", height)


def draw_concepts(row: dict, advantages: list[float], theme: str) -> None:
    """Draw l_k after each step, each step's gain and penalty, and each token's advantage."""
    background, text, muted, gain, penalty = THEMES[theme]
    figure, panels = pyplot.subplots(
        4,
        1,
        figsize=(9, 9),
        sharex=True,
        facecolor=background,
        layout="constrained",
        height_ratios=(3.4, 1.5, 1.5, 2),
    )
    scores, gains, penalties, tokens = panels
    starts = [0, *(end + 1 for end in row["step_ends"])]
    middles = [(start + end) / 2 for start, end in pairwise(starts)]
    widths = [0.8 * (end - start) for start, end in pairwise(starts)]
    scores.step(starts, row["answer_logprobs"], where="post", color=text, marker="o", markersize=4)
    for middle, step in zip(middles, row["steps"], strict=True):
        lines = step.strip().replace("\n", " / ")
        scores.text(
            middle + 3,
            -2.1,
            lines,
            color=muted,
            fontsize=8,
            rotation=32,
            ha="right",
            va="top",
            family="monospace",
        )
    gains.bar(middles, row["gains"], widths, color=gain)
    penalties.bar(middles, [-value for value in row["penalties"]], widths, color=penalty)
    tokens.bar(
        range(len(advantages)),
        advantages,
        1.0,
        color=[gain if a > 0 else penalty for a in advantages],
    )
    tokens.set_xlabel("token of the response", color=text)
    titles = (
        "1. How likely is the known answer, if the thought is closed here? ($\\ell_k$, nats per "
        "token)",
        "2. Gain: what each step newly adds ($\\Delta_k$)",
        "3. Penalty for excess length: the less a step raised the score, the larger its share "
        "($-P w_k$)",
        "4. Advantage of each token: the outcome's, plus $\\theta$ times the normalised step "
        "rewards still to come",
    )
    for axes, title in zip(panels, titles, strict=True):
        axes.set_title(title, color=text, fontsize=10, loc="left")
        style(axes, background, text, muted)
    scores.set(ylim=(-3.6, 0.15), yticks=[-2, -1, 0], xlim=(-1, row["tokens"]))
    figure.savefig(PICTURES / f"concepts_{theme}.png", dpi=110, facecolor=background)
    pyplot.close(figure)


def style(axes: Axes, background: str, text: str, muted: str) -> None:
    axes.set_facecolor(background)
    axes.axhline(0, color=muted, linewidth=0.8)
    axes.tick_params(colors=text)
    for side in axes.spines.values():
        side.set_visible(False)


def main(folder: Path) -> None:
    rows = list(read_rows(folder / "base.scored.jsonl"))
    problem = rows[0]["problem"]
    group = [row for row in rows if row["problem"] == problem]
    config = SwapConfig()
    for row in group:
        row["length"] = row["tokens"]  # as the page of traces calls it
    add_penalties(group, config)
    traces = [
        StepTrace(r["tokens"], r["correct"], r["answer_logprobs"], r["step_ends"]) for r in group
    ]
    penalised = next(
        i for i, row in enumerate(group) if row["correct"] and sum(row["penalties"]) > 0
    )
    for theme in THEMES:
        draw_concepts(group[penalised], swap_advantages(traces, config)[penalised].tolist(), theme)
    take_pictures(folder / "report.html")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

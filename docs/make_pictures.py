"""Draw the pictures of README.md and concepts.md from a quickstart's folder, in light and dark.

bash scripts/quickstart.sh && python docs/make_pictures.py outputs/quickstart
"""

import sys
from itertools import pairwise
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes

from openrlhf_swap import StepTrace, SwapConfig, swap_advantages
from openrlhf_swap.evaluation.page.contents import add_penalties
from openrlhf_swap.files import read_rows

PICTURES = Path(__file__).parent / "pictures"
THEMES = {  # background, text, muted text, gain, penalty
    "light": ("#ffffff", "#1f2328", "#8b949e", "#1a7f37", "#cf222e"),
    "dark": ("#0d1117", "#e6edf3", "#6e7681", "#3fb950", "#f85149"),
}


def essential_lines(text: str) -> list[tuple[str, bool]]:
    """The lines of a thought of `addition`, each with whether it states its column first."""
    lines, seen = [], set()
    for line in text.partition("</think>")[0].strip().splitlines():
        column = line.split(":")[0].split()[-1]
        lines.append((line, ":" in line and column not in seen))
        seen.add(column)
    return lines


def draw_thought(problem: str, base: dict, trained: dict, theme: str) -> None:
    """The same problem answered before and after the training, side by side.

    Redundant lines are muted.
    """
    background, text, muted, gain, _ = THEMES[theme]
    figure, axes = pyplot.subplots(figsize=(8, 3.4), facecolor=background)
    axes.set(xlim=(0, 100), ylim=(0, 14.4))
    axes.axis("off")
    axes.text(0, 13.7, problem, color=text, fontsize=13, weight="bold", va="center")
    for x, title, response in ((0, "before", base), (54, "after SWAP", trained)):
        axes.text(
            x, 12.4, f"{title}: {response['tokens']} tokens", color=gain, fontsize=11, va="center"
        )
        lines = [
            *essential_lines(response["response"]),
            ("", False),
            (f"answer: {response['answer']}", True),
        ]
        for number, (line, needed) in enumerate(lines):
            colour = text if needed else muted
            axes.text(
                x,
                11.2 - number * 1.02,
                line,
                color=colour,
                fontsize=10.5,
                family="monospace",
                va="center",
            )
    figure.savefig(
        PICTURES / f"thought_{theme}.png", dpi=150, bbox_inches="tight", facecolor=background
    )
    pyplot.close(figure)


def draw_concepts(row: dict, advantages: list[float], theme: str) -> None:
    """l_k after each step, what each step gains and pays, and each token's advantage."""
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
        "2. Each step earns what it newly adds ($\\Delta_k$)",
        "3. The excess length's penalty: the less a step changed, the more it pays ($-P w_k$)",
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
    add_penalties(group, config.length_coef, config.tau)
    traces = [
        StepTrace(r["tokens"], r["correct"], r["answer_logprobs"], r["step_ends"]) for r in group
    ]
    trained = [
        row
        for row in read_rows(folder / "trained.scored.jsonl")
        if row["problem"] == problem and row["correct"]
    ]
    penalised = next(
        i for i, row in enumerate(group) if row["correct"] and sum(row["penalties"]) > 0
    )
    for theme in THEMES:
        draw_concepts(group[penalised], swap_advantages(traces, config)[penalised].tolist(), theme)
        draw_thought(problem, group[0], min(trained, key=lambda row: row["tokens"]), theme)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

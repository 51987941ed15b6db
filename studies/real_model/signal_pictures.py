r"""Draw three kept thoughts, step by step: the truth, the paper's gain, and need.

    python -m studies.real_model.signal_pictures

Writes docs/pictures/signals_light.svg and signals_dark.svg: the first three kept thoughts with at
most `MOST_STEPS` steps, of which one has a necessity of at least `NEEDED`.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from openrlhf_swap.command import Parser, run_command
from openrlhf_swap.files import Row
from studies.pictures import save_svg
from studies.real_model.truth import KnownThought, read_kept

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
THOUGHTS = 3
MOST_STEPS = 7
NEEDED = 0.5
LABEL = 66  # characters of a step
# Of each panel: its title, and the width of its axis on both sides.
TITLES = ("necessity (lost success)", "gain g (nats)", "need, 4 steps (nats)")
THEMES = {  # text, muted, above zero, below zero
    "light": ("#1f2328", "#8b949e", "#1a7f37", "#cf222e"),
    "dark": ("#e6edf3", "#6e7681", "#3fb950", "#f85149"),
}


def shown(rows: Sequence[Row]) -> list[Row]:
    """The rows that are drawn."""
    found = []
    for row in rows:
        is_short = len(row["step_ends"]) <= MOST_STEPS
        if is_short and KnownThought.of(row).necessity.max() >= NEEDED:
            found.append(row)
    return found[:THOUGHTS]


def label_of(step: str) -> str:
    """A step in one short line."""
    return textwrap.shorten(step, LABEL, placeholder=" ...")


def draw_thought(panels: Sequence[Any], row: Row, theme: str) -> None:
    """One row of panels: the steps of a thought from top to bottom."""
    text, muted, above, below = THEMES[theme]
    thought = KnownThought.of(row)
    columns = (thought.necessity, thought.signals["gain"], thought.signals["need, 4 steps"])
    places = np.arange(len(thought.necessity))
    for panel, values in zip(panels, columns, strict=True):
        colors = [above if value > 0 else below for value in values]
        panel.barh(places, values, color=colors)
        panel.axvline(0, color=muted, linewidth=0.8)
        panel.set_facecolor("none")
        panel.tick_params(colors=muted, labelsize=7)
        panel.set_yticks([])
        for edge in panel.spines.values():
            edge.set_visible(False)
    first = panels[0]
    first.set_yticks(places, [label_of(step) for step in row["steps"]])
    for label in first.get_yticklabels():
        label.set(color=text, fontsize=7, parse_math=False)
    first.invert_yaxis()
    first.set_xlim(-1, 1)


def draw(rows: Sequence[Row], theme: str, path: Path) -> None:
    """The picture of some thoughts."""
    import matplotlib.pyplot as plt

    heights = [len(row["step_ends"]) for row in rows]
    figure, panels = plt.subplots(
        len(rows),
        len(TITLES),
        figsize=(10, 0.6 + 0.26 * sum(heights)),
        sharey="row",
        squeeze=False,
        layout="constrained",
        height_ratios=heights,
    )
    for own, row in zip(panels, rows, strict=True):
        draw_thought(own, row, theme)
    for panel, title in zip(panels[0], TITLES, strict=True):
        panel.set_title(title, fontsize=8, color=THEMES[theme][0])
    save_svg(figure, path, transparent=True)
    plt.close(figure)


def main(argv: list[str]) -> None:
    Parser("signal_pictures", __doc__).parse_args(argv)
    rows = shown(read_kept())
    for theme in THEMES:
        draw(rows, theme, PICTURES / f"signals_{theme}.svg")


if __name__ == "__main__":
    sys.exit(run_command(main))

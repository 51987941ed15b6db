"""Save pictures so that the same rows give the same file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def save_svg(figure: Figure, path: Path, transparent: bool = False) -> None:
    """Write an SVG with selectable text and neither a date nor random ids."""
    from matplotlib import rc_context  # takes a second, so not at module level

    with rc_context({"svg.fonttype": "none", "svg.hashsalt": path.stem}):
        figure.savefig(path, metadata={"Date": None}, transparent=transparent)

"""The same rows give the same picture, byte for byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from studies.pictures import save_svg


def drawn(path: Path) -> bytes:
    """A small picture, saved and read."""
    figure_module = pytest.importorskip("matplotlib.figure")
    figure = figure_module.Figure()
    figure.subplots().plot([1, 2], [3, 5], label="accuracy")
    save_svg(figure, path)
    return path.read_bytes()


def test_a_picture_is_the_same_file_again(tmp_path: Path) -> None:
    again = tmp_path / "again"
    again.mkdir()
    first = drawn(tmp_path / "curve.svg")
    assert b"<svg" in first
    assert drawn(again / "curve.svg") == first

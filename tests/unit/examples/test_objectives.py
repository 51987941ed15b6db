"""The rows of the comparison: every method has one, with flags that can be read."""

import json

import pytest
from support.paths import STUDIES, WORLDS
from support.scripts import bash

from openrlhf_swap.flags.configuration import configure
from openrlhf_swap.objectives.registry import OBJECTIVES, build

FILES = [path for folder in (WORLDS, STUDIES) for path in sorted((folder / "objectives").iterdir())]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_rows_of_a_file_can_be_run(path):
    rows = json.loads(path.read_text())
    assert len({row["name"] for row in rows}) == len(rows)
    for row in rows:
        config = configure(list(map(str, row["train"])), on_cpu=True).method
        assert config.objective == build(config).config.objective


@pytest.mark.parametrize(
    ("world", "variants"),
    [
        ("addition", {"swap_zero": "swap"}),
        ("decomposition", {"swap_zero": "swap", "swap_taught": "swap"}),
    ],
)
def test_every_method_has_a_row_that_can_be_run(world, variants):
    rows = json.loads((WORLDS / "objectives" / f"{world}.json").read_text())
    assert {row["name"] for row in rows} == set(OBJECTIVES) | set(variants)
    assert all(
        configure(list(map(str, row["train"])), on_cpu=True).method.objective == variants.get(row["name"], row["name"])
        for row in rows
    )


def test_a_comparison_without_a_policy_says_how_to_make_one(tmp_path):
    result = bash(
        "examples/worlds/compare.sh", MODEL=str(tmp_path), OUTPUT=str(tmp_path / "out"), WORLD="decomposition"
    )
    assert result.returncode == 2
    assert f"MODEL is {tmp_path}, where no policy is; make one with WORLD=decomposition bash" in result.stderr
    assert not any(tmp_path.iterdir())

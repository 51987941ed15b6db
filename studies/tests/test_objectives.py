"""The rows of the comparisons: their flags can be read, and name what they should."""

import json

import pytest
from support.paths import ROOT

from openrlhf_swap.flags.configuration import configure
from openrlhf_swap.objectives.registry import build
from studies.comparison.objectives import configurations

FILES = sorted((ROOT / "studies" / "comparison" / "rows").iterdir())
ROWS = {path.name: json.loads(path.read_text()) for path in FILES}
ROWS |= {world: configurations(world) for world in ("addition", "decomposition", "words")}


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
def test_the_rows_of_a_comparison_can_be_run(rows):
    configs = {}
    for row in rows:
        configs[row["name"]] = configure(list(map(str, row["train"])), on_cpu=True).method
    assert len(configs) == len(rows)
    assert all(config.objective == build(config).config.objective for config in configs.values())

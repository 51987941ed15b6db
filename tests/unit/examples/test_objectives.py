"""The rows of the comparison: every method has one, with flags that can be read."""

from support.paths import ROOT

from openrlhf_swap.flags import parse_swap_arguments
from openrlhf_swap.objectives.registry import METHODS, build
from openrlhf_swap.sweep import read_configurations


def test_every_method_has_a_row_that_can_be_run():
    rows = read_configurations(ROOT / "examples" / "addition" / "objectives.json")
    assert {row.name for row in rows} == set(METHODS)
    assert len(rows) == len(METHODS)
    for row in rows:
        config, _, rest = parse_swap_arguments(list(row.train))
        assert config.objective == row.name == build(config).config.objective
        assert all(not flag.startswith("--swap") for flag in rest)

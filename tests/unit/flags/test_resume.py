"""Each setting is bound, named or free for a resumed run; a new one cannot be forgotten."""

import pytest

from openrlhf_swap.config import RunConfig, SwapConfig
from openrlhf_swap.flags.configuration import training_parser
from openrlhf_swap.flags.resume import BOUND, FREE, NAMED


def test_every_setting_has_one_place_in_the_table():
    settings = set(vars(training_parser().parse_args([])))
    for kind in (SwapConfig, RunConfig):
        assert {f"swap.{name}" for name in kind.declared()} <= settings
    assert settings == BOUND | NAMED | FREE
    assert len(settings) == len(BOUND) + len(NAMED) + len(FREE)


@pytest.mark.parametrize("name", SwapConfig.declared())
def test_no_setting_of_the_equations_is_free(name):
    assert f"swap.{name}" not in FREE

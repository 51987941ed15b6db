"""Every objective can be built, and so can one of one's own, named as module:Class."""

import re
import sys

import pytest
from support.objectives import assert_rows, batch, group, objective, restored, rollout
from support.paths import ROOT

from openrlhf_swap.errors import ConfigError
from openrlhf_swap.flags.configuration import configure
from openrlhf_swap.objectives.registry import OBJECTIVES, build


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_can_be_built_and_saves_a_state_that_it_reads(name):
    method = objective(name)
    if method.state_dict():
        method.rewards(batch(group((50, 55, 70), (True, True, False))))
    assert restored(method).state_dict() == method.state_dict()


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """The example of the documentation."""
    page = (ROOT / "docs" / "use" / "custom_objective.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "per_token.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield "per_token:PerToken"
    sys.modules.pop("per_token", None)


def test_the_example_of_the_documentation_works(plugin):
    config = configure(["--swap.objective", plugin, "--swap.PerToken.rate", "2"]).method
    method = build(config)
    assert type(method).__name__ == "PerToken"
    assert config.options == {"rate": "2"}
    # c (1 - 2 L/100): right with 10 tokens .8, wrong 0.
    pair = [rollout(length=10), rollout(length=10, correct=False)]
    assert_rows(method.rewards(batch(pair)), [[0.8, 0]])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("nowhere:PerToken", "--swap.objective is 'nowhere:PerToken', which cannot be imported"),
        ("per_token:Other", "which cannot be imported (module 'per_token' has no attribute"),
        ("per_token:Batch", "which is not a subclass of openrlhf_swap.objectives.base.Objective"),
        ("per_token:PerToken --swap.PerToken.share 1", "PerToken has: rate"),
        ("per_token:PerToken --swap.PerToken.rate -1", "--swap.PerToken.rate is '-1', which"),
        ("per_token:PerToken --swap.laser.bonus 1", "--swap.laser.bonus belongs to laser, but"),
        ("swap --swap.PerToken.rate 1", "unknown flag --swap.PerToken.rate"),
    ],
)
def test_an_objective_of_ones_own_is_refused_in_one_line(plugin, flags, message):
    with pytest.raises(ConfigError) as error:
        build(configure(["--swap.objective", *flags.split()]).method)
    assert message in str(error.value)
    assert "\n" not in str(error.value)

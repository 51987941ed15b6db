"""Patches where another version is installed."""

import pydoc
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from openrlhf_swap.errors import CompatibilityError
from openrlhf_swap.integration import patches
from openrlhf_swap.integration.patches import NAMES
from openrlhf_swap.packages import versions


@pytest.mark.parametrize(("where", "targets"), NAMES.items())
def test_names_stay_as_they_are_where_another_version_is_installed(monkeypatch, where, targets):
    before = [pydoc.locate(target) for target in targets]
    monkeypatch.setattr(versions, "installed_version", lambda _: "0.0.1")
    with pytest.raises(
        CompatibilityError, match=r"0\.0\.1 is installed, but this package extends .*; remedy: pip"
    ):
        patches.installed(where, dict.fromkeys(targets, print))
    assert all(pydoc.locate(target) is value for target, value in zip(targets, before, strict=True))


@pytest.mark.parametrize("name", ["skip_bad_gradients", "sleep", "reward_func", "head"])
def test_objects_stay_as_they_are_where_another_version_is_installed(monkeypatch, name):
    from openrlhf_swap.algorithm.log_probs import HeadPass, LogitTransform
    from openrlhf_swap.integration.engine.actor import SwapRolloutActor
    from openrlhf_swap.integration.policy import chunked_actor, strategy

    optimizer = SimpleNamespace(_overflow_check_and_loss_scale_update=print, offload_states=print)
    engine = SimpleNamespace(executor=SimpleNamespace(reward_func=lambda end_of_thought: None))
    layer, nothing = torch.nn.Linear(1, 1), torch.zeros(0, dtype=torch.int64)
    how = HeadPass(LogitTransform(), 1.0, 1, False)
    head = chunked_actor._HeadOfRows(layer, nothing, nothing, how, None)
    replacing = {
        "skip_bad_gradients": lambda: strategy._skip_bad_gradients(optimizer),
        "sleep": lambda: strategy._let_torchs_adam_sleep(optimizer),
        "reward_func": lambda: SwapRolloutActor.prepare(engine, None, 9, end_of_thought="</think>"),
        "head": lambda: head.replacing().__enter__(),
    }
    before = [dict(vars(thing)) for thing in (optimizer, engine.executor, layer)]
    monkeypatch.setattr(versions, "installed_version", lambda _: "0.0.1")
    with pytest.raises(
        CompatibilityError, match=r"0\.0\.1 is installed, but this package extends .*; remedy: pip"
    ):
        replacing[name]()
    assert [dict(vars(thing)) for thing in (optimizer, engine.executor, layer)] == before


def test_no_test_library_is_in_the_package():
    for path in Path(patches.__file__).parents[1].rglob("*.py"):
        assert "unittest" not in path.read_text(encoding="utf-8"), path

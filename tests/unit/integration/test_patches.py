"""The inventory of patches, against what processes have really replaced."""

import json
import os
import pydoc
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support.paths import ROOT

from openrlhf_swap.errors import CompatibilityError
from openrlhf_swap.integration import inventory, patches
from openrlhf_swap.integration.inventory import PATCHES, Kind
from openrlhf_swap.integration.runtime import attention
from openrlhf_swap.integration.runtime.cpu import is_cpu_build
from openrlhf_swap.packages import versions

NAME = Kind.NAME
IMPORT = "import of openrlhf_swap.integration"
LASTING = {"POLICY_LOADS": ["POLICY"], "DRIVER": ["TRAINS", "TRAINS_ALONE", "TRAINS_ON_CPU"]}


def entries(*names):
    """(kind, target) of the inventory for those of its constants."""
    places = {getattr(inventory, name) for name in names}
    return {(patch.group.kind.name, patch.target) for patch in PATCHES if patch.group.where in places}


@pytest.fixture(scope="module")
def observed(tmp_path_factory):
    """What was replaced in a fresh process, which has no setting in its environment yet."""
    if not is_cpu_build():
        pytest.skip("on a CUDA build only a part is in force")
    result = tmp_path_factory.mktemp("observed") / "result.json"
    kept = {name: os.environ[name] for name in ("HOME", "VIRTUAL_ENV") if name in os.environ}
    environment = {**kept, "PATH": "/usr/bin:/bin", "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "support.observed_processes", str(result)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return {where: [tuple(entry) for entry in found] for where, found in json.loads(result.read_text()).items()}


def assert_same(found, expected):
    """Each (kind, target) of the inventory was found, and nothing else; a METHOD by any class of its object."""
    matched = [{(kind, target) for target in targets} & expected for kind, *targets in found]
    assert [entry for entry, match in zip(found, matched, strict=True) if not match] == []
    assert expected - set().union(*matched) == set()


def test_importing_replaces_what_the_inventory_says_and_once_only(observed):
    places = ["EVERY", "EVERY_CPU", "NO_CLUSTER"] + ([] if attention.is_installed() else ["NO_FLASH"])
    assert_same(observed[IMPORT], entries(*places))
    assert observed["import of all other modules"] == []


PLACES = [
    *(
        "STARTS_RAY",
        "CPU_COMMAND",
        "GENERATES_ON_CPU",
        "CONSOLE",
        "GRADER",
        "DRIVER",
        "SFT",
        "TRAINER",
        "ASYNC_TRAINER",
    ),
    *("POLICY_LOADS", "REFERENCE_LOADS", "STAGE_3", "STAGE_3_SLEEPS", "LOG_PROBS", "SCORING", "SCORED"),
    *("WEIGHT_SYNC", "ENGINE", "ENGINE_RECEIVES"),
]


@pytest.mark.parametrize("where", PLACES)
def test_a_process_has_replaced_what_the_inventory_says(observed, where):
    lasting = LASTING.get(where, ["SCORED"] if where == "SCORING" else [])
    assert_same(observed[where], entries(where, *lasting))
    if f"after {where}" in observed:
        assert_same(observed[f"after {where}"], entries(*lasting))


def test_every_place_of_the_inventory_was_observed(observed):
    """An entry of a process that nobody observes would never be wrong."""
    seen = {name for name in observed if name.isupper()} | {"EVERY", "EVERY_CPU", "NO_CLUSTER", "NO_FLASH"}
    seen |= {name for names in LASTING.values() for name in names}
    assert {patch.group.where for patch in PATCHES} == {getattr(inventory, name) for name in seen}


@pytest.mark.parametrize("where", sorted({p.group.where for p in PATCHES if p.group.kind is NAME and p.group.package}))
def test_names_stay_as_they_are_where_another_version_is_installed(monkeypatch, where):
    targets = [patch.target for patch in PATCHES if (patch.group.kind, patch.group.where) == (NAME, where)]
    before = [pydoc.locate(target) for target in targets]
    monkeypatch.setattr(versions, "installed_version", lambda _: "0.0.1")
    with pytest.raises(CompatibilityError, match=r"0\.0\.1 is installed, but this package extends .*; remedy: pip"):
        patches.in_force(where, dict.fromkeys(targets, print))
    assert all(pydoc.locate(target) is value for target, value in zip(targets, before, strict=True))


@pytest.mark.parametrize("name", ["skip_bad_gradients", "sleep", "reward_func", "head"])
def test_objects_stay_as_they_are_where_another_version_is_installed(monkeypatch, name):
    from openrlhf_swap.algorithm.log_probs import HeadPass, LogitTransform
    from openrlhf_swap.integration.generation.rollout_actor import SwapRolloutActor
    from openrlhf_swap.integration.policy import chunked_actor, strategy, trainer

    optimizer = SimpleNamespace(_overflow_check_and_loss_scale_update=print, offload_states=print)
    engine = SimpleNamespace(executor=SimpleNamespace(reward_func=lambda end_of_thought: None))
    layer, nothing = torch.nn.Linear(1, 1), torch.zeros(0, dtype=torch.int64)
    how = HeadPass(LogitTransform(), 1.0, 1, False)
    replacing = {
        "skip_bad_gradients": lambda: trainer.skip_bad_gradients_of_stage_3(optimizer),
        "sleep": lambda: strategy._let_torchs_adam_sleep(optimizer),
        "reward_func": lambda: SwapRolloutActor.configure_reward(engine, end_of_thought="</think>"),
        "head": lambda: chunked_actor._giving_log_probs(layer, nothing, nothing, how).__enter__(),
    }
    before = [dict(vars(thing)) for thing in (optimizer, engine.executor, layer)]
    monkeypatch.setattr(versions, "installed_version", lambda _: "0.0.1")
    with pytest.raises(CompatibilityError, match=r"0\.0\.1 is installed, but this package extends .*; remedy: pip"):
        replacing[name]()
    assert [dict(vars(thing)) for thing in (optimizer, engine.executor, layer)] == before


def test_no_test_library_is_in_the_package():
    for path in Path(patches.__file__).parents[1].rglob("*.py"):
        assert "unittest" not in path.read_text(encoding="utf-8"), path

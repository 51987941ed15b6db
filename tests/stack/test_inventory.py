"""The table of patches, against what processes have really replaced."""

import json
import os
import subprocess
import sys

import pytest
from support.paths import ROOT

from openrlhf_swap.integration import patches
from openrlhf_swap.integration.patches import PATCHES
from openrlhf_swap.integration.runtime import attention
from openrlhf_swap.integration.runtime.cpu import is_cpu_build
from openrlhf_swap.packages.kernels import has_fast_products

IMPORT = "import of openrlhf_swap.integration"
LASTING = {"POLICY_LOADS": ["POLICY"], "DRIVER": ["TRAINS", "TRAINS_ALONE", "TRAINS_ON_CPU"]}


def entries(*names):
    """(kind, target) of the table for those of its places."""
    places = {getattr(patches, name) for name in names}
    return {(group.kind, target) for group, targets in PATCHES.items() if group.where in places for target in targets}


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
    """Each (kind, target) of the table was found, and nothing else; a METHOD by any class of its object."""
    matched = [{(kind, target) for target in targets} & expected for kind, *targets in found]
    assert [entry for entry, match in zip(found, matched, strict=True) if not match] == []
    assert expected - set().union(*matched) == set()


def test_importing_replaces_what_the_table_says_and_once_only(observed):
    places = ["EVERY", "EVERY_CPU", "NO_CLUSTER", "NO_CUDNN"] + ([] if attention.is_installed() else ["NO_FLASH"])
    places += [] if has_fast_products() else ["NO_BFLOAT16"]
    assert_same(observed[IMPORT], entries(*places))
    assert_same(observed["import of all other modules"], entries("GRADES"))


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
    *("POLICY_LOADS", "REFERENCE_LOADS", "STAGE_3", "STAGE_3_SLEEPS", "LOG_PROBS", "SCORING"),
    *("ENGINE", "ENGINE_STARTS", "CPU_RANKS_MEET"),
]


@pytest.mark.parametrize("where", PLACES)
def test_a_process_has_replaced_what_the_table_says(observed, where):
    lasting = LASTING.get(where, [])
    assert_same(observed[where], entries(where, *lasting))
    if f"after {where}" in observed:
        assert_same(observed[f"after {where}"], entries(*lasting))


def test_every_place_of_the_table_was_observed(observed):
    """An entry of a process that nobody observes would never be wrong."""
    seen = {name for name in observed if name.isupper()}
    seen |= {"EVERY", "EVERY_CPU", "NO_CLUSTER", "NO_CUDNN", "NO_FLASH", "NO_BFLOAT16", "GRADES"}
    seen |= {name for names in LASTING.values() for name in names}
    assert {group.where for group in PATCHES} == {getattr(patches, name) for name in seen}

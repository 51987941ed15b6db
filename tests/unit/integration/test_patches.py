"""Patches where another version is installed, and what the variables of a run do to a process."""

import os
import platform
import pydoc
import subprocess
import sys

import pytest

from openrlhf_swap.errors import CompatibilityError
from openrlhf_swap.integration import patches
from openrlhf_swap.integration.patches import CPU_COMMAND, REPLACEMENTS, VARIABLES
from openrlhf_swap.packages import versions


@pytest.mark.parametrize(("where", "targets"), REPLACEMENTS.items())
def test_names_stay_as_they_are_where_another_version_is_installed(monkeypatch, where, targets):
    before = [pydoc.locate(target) for target in targets]
    monkeypatch.setattr(versions, "installed_version", lambda _: "0.0.1")
    refused = r"0\.0\.1 is installed, but this package extends .*; remedy: pip"
    with pytest.raises(CompatibilityError, match=refused):
        patches.installed(where, dict.fromkeys(targets, print))
    for target, value in zip(targets, before, strict=True):
        assert pydoc.locate(target) is value


BLOCK = 2**26  # bytes, more than glibc keeps of what is freed
TAKE_FOUR_BLOCKS = f"""
import resource
def pages_filled():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt * resource.getpagesize()
b"1" * {BLOCK}
before = pages_filled()
for _ in range(4):
    b"1" * {BLOCK}
print(pages_filled() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the variables are glibc's")
@pytest.mark.parametrize(
    ("variables", "least", "most"),
    [({}, 4 * BLOCK, 5 * BLOCK), (VARIABLES[CPU_COMMAND], 0, BLOCK / 4)],
)
def test_a_process_of_a_run_on_a_cpu_takes_the_same_pages_again(variables, least, most):
    inherited = {name: value for name, value in os.environ.items() if "MALLOC_" not in name}
    command = [sys.executable, "-c", TAKE_FOUR_BLOCKS]
    result = subprocess.run(
        command, capture_output=True, text=True, check=True, env=inherited | variables
    )
    assert least <= int(result.stdout) <= most

"""The one entry of all benchmarks."""

import re
import subprocess
import sys

from support.paths import ROOT


def entry(*words):
    command = [sys.executable, "-m", "benchmarks", *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)


def test_the_ratios_become_a_table():
    result = entry("advantages")
    _, _, row = result.stdout.splitlines()
    assert re.fullmatch(r"\| advantages +\| [\d.]+ +\| advantages by a loop over steps, to ours \| \d+ +\|", row)
    assert "largest difference" in result.stderr


def test_every_benchmark_is_known():
    parts = {"__init__", "__main__", "trl_trial"}
    files = {path.stem for path in (ROOT / "benchmarks").glob("*.py")} - parts
    result = entry("no_such")
    assert result.returncode == 2
    assert result.stderr.rpartition("use any of ")[2].strip().split(", ") == sorted(files)

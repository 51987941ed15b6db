"""The one entry of all benchmarks."""

import re

from support.paths import ROOT
from support.scripts import python


def test_the_ratios_become_a_table_and_every_benchmark_is_known():
    _, _, row = python("-m", "benchmarks", "advantages").stdout.splitlines()
    meaning = "advantages by a loop over steps, to ours"
    assert re.fullmatch(rf"\| advantages +\| [\d.]+ +\| {meaning} \| \d+ +\|", row)
    parts = {"__init__", "__main__", "gpu_check", "trl_trial", "stages"}
    files = {path.stem for path in (ROOT / "benchmarks").glob("*.py")} - parts
    result = python("-m", "benchmarks", "no_such")
    assert result.stderr.rpartition("use any of ")[2].strip().split(", ") == sorted(files)

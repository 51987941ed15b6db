"""The one entry of all benchmarks."""

import json
import os
import subprocess
import sys
import time
from contextlib import suppress

import psutil
import pytest
import torch
from support.paths import ROOT
from support.scripts import make_tool

from benchmarks import beside_trl, gpu_check
from benchmarks.stages import STOPPED

OURS = """
for word; do [[ "$previous" == --swap.output_dir ]] && mkdir -p "$word" && cd "$word"; previous="$word"; done
for step in 1 2 3; do echo "{\\"step\\": $step, \\"timing/step_total\\": $step}"; done > metrics.jsonl
[[ "$PWD" == */grpo ]] && sleep 600 || echo out of memory
[[ "$PWD" != */swap ]]
"""  # noqa: E501


def test_a_stage_that_fails_or_hangs_leaves_its_steps_and_the_others_go_on(tmp_path, monkeypatch):
    """Ours with swap ends with an error, with grpo it hangs, and TRL works."""
    environment = tmp_path / "trl" / "bin"
    environment.mkdir(parents=True)
    make_tool(environment / "python", """for s in 4 5; do echo 'TRIAL {"step": '$s'}'; done""")
    monkeypatch.setattr(sys, "executable", str(make_tool(tmp_path / "python", OURS)))
    output = tmp_path / "out"
    words = ["--output", str(output), "--environment", str(tmp_path / "trl"), "--limit", "2"]
    assert beside_trl.main(words) == 1
    results = json.loads((output / "results.json").read_text())
    stages = results["stages"]
    assert [stage["fault"] and stage["fault"].split(";")[0] for stage in stages.values()] == [
        "ended with status 1",
        "cut off after 2 s",
        None,
    ]
    assert [len(stage["steps"]) for stage in stages.values()] == [3, 3, 2]
    assert stages["swap"]["steps"][2]["step"] == 3 and results["prompts"] == 16
    assert "out of memory" in (output / "swap.log").read_text()  # nothing is deleted


STAGE = """
from pathlib import Path
from benchmarks.stages import ended_by_sigterm, run_stage
with ended_by_sigterm():
    run_stage(["bash", "-c", "sleep 600 & echo $! > new; mv new pid; wait"], Path("log"), 600)
"""


def test_what_a_stage_started_ends_after_sigterm(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", STAGE]
    process = subprocess.Popen(command, cwd=tmp_path, env=environment)
    pid = tmp_path / "pid"
    while not pid.exists():
        assert process.poll() is None
        time.sleep(0.1)
    started = psutil.Process(int(pid.read_text()))
    process.terminate()
    assert process.wait() == STOPPED
    # On a busy machine it takes a moment to be gone.
    deadline = time.monotonic() + 20
    with suppress(psutil.NoSuchProcess):
        while started.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline
            time.sleep(0.1)


@pytest.mark.parametrize(
    ("broken", "wrong"),
    [
        (False, "training: an error (status 2); see the error above"),
        (True, "an error: ZeroDivisionError: division by zero; see the traceback"),
    ],
)
def test_the_report_of_a_gpu_check_is_complete_whatever_fails(tmp_path, monkeypatch, broken, wrong):
    monkeypatch.setattr(gpu_check, "check_scoring", lambda *_: 1 / 0 if broken else None)
    tool = make_tool(tmp_path / "python", "echo error: an engine died >&2; exit 2")
    monkeypatch.setattr(sys, "executable", str(tool))
    gpu = gpu_check.Gpu(torch.device("cpu"), lambda: 0, 2**30)
    findings = gpu_check.check("policy", tmp_path / "run", gpu)
    assert findings.wrong.startswith(wrong) and findings.print_table() == 1
    report = json.loads((tmp_path / "run" / "gpu_check.json").read_text())
    example = json.loads((ROOT / "docs" / "use" / "gpu_check_example.json").read_text())
    assert set(report) == set(example) and example["passed"] and not report["passed"]
    assert report["findings"] == findings.lines and "scoring" in report["seconds"]

"""The check of a GPU."""

import json
import sys

import pytest
import torch
from support.paths import ROOT
from support.scripts import make_tool

from openrlhf_swap import check


@pytest.mark.parametrize(
    ("broken", "wrong"),
    [
        (False, "training: an error (status 2); see the error above"),
        (True, "an error: ZeroDivisionError: division by zero; see the traceback"),
    ],
)
def test_the_report_of_a_gpu_check_is_complete_whatever_fails(tmp_path, monkeypatch, broken, wrong):
    monkeypatch.setattr(check, "check_scoring", lambda *_: 1 / 0 if broken else None)
    tool = make_tool(tmp_path / "python", "echo error: an engine died >&2; exit 2")
    monkeypatch.setattr(sys, "executable", str(tool))
    gpu = check.Gpu(torch.device("cpu"), lambda: 0, 2**30)
    findings = check.check("policy", tmp_path / "run", gpu)
    assert findings.wrong.startswith(wrong)
    assert findings.print_table() == 1
    report = json.loads((tmp_path / "run" / "gpu_check.json").read_text())
    example = json.loads((ROOT / "docs" / "use" / "gpu_check_example.json").read_text())
    assert set(report) == set(example)
    assert example["passed"]
    assert not report["passed"]
    assert report["findings"] == findings.lines
    assert "scoring" in report["seconds"]

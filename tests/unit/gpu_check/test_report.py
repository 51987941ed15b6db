"""A failed training is named with its cause and remedy, and the report holds no secrets and no paths."""

import json
import sys

import pytest
import torch
from support.paths import ROOT

from openrlhf_swap.gpu_check.__main__ import Gpu, check
from openrlhf_swap.gpu_check.checks import FatalFinding, Findings, scrubbed, watch


def training(tmp_path, monkeypatch, script):
    """A `python` that runs a shell script in the output folder instead of a training."""
    tool = tmp_path / "python"
    tool.write_text(f"#!/bin/bash\ncd {tmp_path / 'run'}\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tool))
    (tmp_path / "run").mkdir()


def test_a_training_that_fails_ends_the_check(tmp_path, monkeypatch, capfd):
    script = "echo '[swap] starting'; echo 'error: an engine died; see train.log' >&2; exit 2"
    training(tmp_path, monkeypatch, script)
    findings = Findings()
    with pytest.raises(FatalFinding):
        watch(findings, [], tmp_path / "run", 60, lambda steps: None)
    (wrong,) = findings.wrong
    assert wrong.startswith("training: an engine died; see train.log (status 2); see the end of train.log")
    assert "[swap] starting" in capfd.readouterr().out


def test_a_training_that_does_nothing_ends_the_check(tmp_path, monkeypatch):
    """One that writes something now and then goes on, however long."""
    script = "for i in 1 2 3 4 5 6; do echo $i >> train.log; sleep 0.3; done; echo '{\"step\": 1}' > metrics.jsonl"
    training(tmp_path, monkeypatch, f"{script}; exec sleep 600")
    findings, seen = Findings(), []
    with pytest.raises(FatalFinding):
        watch(findings, [], tmp_path / "run", 1.5, seen.append)
    (wrong,) = findings.wrong
    assert wrong.startswith("progress: nothing for 2 s after 1 steps; ") and len(seen) == 1


def test_the_report_of_a_failed_check_has_everything_and_no_secrets(tmp_path, monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "sesame-open")
    monkeypatch.setattr("openrlhf_swap.gpu_check.checks.check_scoring", lambda *_: None)
    training(tmp_path, monkeypatch, "echo error: sesame-open in /data/me/x.py >&2; exit 2")
    gpu = Gpu(torch.device("cpu"), lambda: 5, 10)
    argv = ["--model", str(tmp_path / "policy"), "--logger.wandb.key", "key-of-mine", "--swap.step_tokens", "8"]
    assert check("policy", tmp_path / "run", gpu, 60, [], argv).print_table() == 1
    text = (tmp_path / "run" / "gpu_check.json").read_text()
    assert "sesame" not in text and str(tmp_path) not in text and "key-of-mine" not in text and "/data" not in text
    report = json.loads(text)
    assert set(report) == set(example())
    assert report["command"].endswith("gpu-check --model .../policy --logger.wandb.key '***' --swap.step_tokens 8")
    assert not report["passed"] and not report["complete"]
    assert report["machine"]["os"] and report["machine"]["python_version"].startswith("3.")
    assert report["memory"] == {"peak": 5} and report["seconds"]["scoring"] >= 0
    last = report["findings"][-1]
    assert (last["name"], last["found"]) == ("training", "*** in .../x.py (status 2)")


def example():
    return json.loads((ROOT / "docs" / "use" / "gpu_check_example.json").read_text(encoding="utf-8"))


def test_the_example_is_a_complete_report():
    report = example()
    assert report["passed"] and report["complete"] and report["memory"]["planned"]["update"]
    assert {"generate", "score", "update", "sync", "total"} <= set(report["seconds"]["a step"])
    names = {line["name"] for line in report["findings"]}
    assert {"vllm_kl", "GiB while vLLM sleeps", "GiB at most", "steps, resumed after a kill"} <= names


def test_hidden_is_what_is_private_and_nothing_else(monkeypatch):
    monkeypatch.setenv("HOME", "/home/jane")
    monkeypatch.setenv("MY_TOKEN", "sesame-open")
    text = "sesame-open hf_abcdefghijklmnopqrst --x=/home/jane/a/b.py 10.1.2.3 https://host/a/b outputs/run/x 1/2"
    assert scrubbed(text) == "*** *** --x=~/a/b.py <address> https://host/a/b outputs/run/x 1/2"
    assert scrubbed("File '/opt/venv/lib/a.py'") == "File '.../a.py'"

"""A failed training is named with its cause and remedy, and the report holds no secrets and no paths."""

import json
import sys

import pytest
import torch
from support.paths import ROOT

from openrlhf_swap.gpu_check import running
from openrlhf_swap.gpu_check.__main__ import Gpu, check
from openrlhf_swap.gpu_check.diagnosis import CAUSES, diagnose
from openrlhf_swap.gpu_check.findings import CHECKS, FatalFinding, Findings
from openrlhf_swap.gpu_check.report import chosen_lines, scrubbed

PAGE = (ROOT / "docs" / "use" / "troubleshooting.md").read_text(encoding="utf-8")

# What torch, vLLM, NCCL, Ray and the system say.
SAID = {
    "Python headers": "/tmp/x/cuda_utils.c:6:10: fatal error: Python.h: No such file or directory",
    "compiler": "RuntimeError: Failed to find C compiler. Please specify via CC environment variable.",
    "driver too old": "RuntimeError: The NVIDIA driver on your system is too old (found version 12040).",
    "built for something else": "torch.AcceleratorError: CUDA error: no kernel image is available for execution",
    "GPU in use": "ValueError: Free memory on device cuda:0 (3.1/79.1 GiB) on startup is less than desired GPU memory "
    "utilization (0.5, 39.5 GiB).",
    "GPU for one process": "torch.AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
    "no memory for keys and values": "ValueError: No available memory for the cache blocks. Try increasing ...",
    "CUDA graphs fail": "torch.AcceleratorError: CUDA error: operation not permitted when stream is capturing",
    "out of GPU memory": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    "allocator": "RuntimeError: expandable_segments are not supported with sleep mode",
    "CUDA IPC": "RuntimeError: pidfd_getfd: Operation not permitted",
    "shared memory": "RuntimeError: unable to write to file </torch_1>: No space left in /dev/shm",
    "disk full": "OSError: [Errno 28] No space left on device",
    "NCCL": "torch.distributed.DistBackendError: NCCL error in: ..., unhandled system error",
    "out of main memory": "ray.exceptions.OutOfMemoryError: Task was killed due to memory pressure",
}


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.name)
def test_known_errors_have_their_cause(cause, tmp_path):
    (tmp_path / "console.log").write_text("[swap] loading\nerror: an engine died; see train.log\n")
    (tmp_path / "train.log").write_text(f"INFO all is well\n(EngineCore pid=5) {SAID[cause.name]}\nINFO goodbye\n")
    error, remedy = diagnose([tmp_path / "console.log", tmp_path / "train.log"])
    assert (error.partition(":")[0], remedy) == (cause.name, cause.remedy)
    assert "an engine died; see train.log" in error


def test_every_known_error_is_tried():
    assert {cause.name for cause in CAUSES} == set(SAID)


def test_an_unknown_error_is_the_last_one(tmp_path):
    (tmp_path / "train.log").write_text("KeyError: 'first'\nsome.module.OddError: the last\nINFO goodbye\n")
    logs = [tmp_path / "console.log", tmp_path / "train.log"]
    assert diagnose(logs) == ("some.module.OddError: the last", None)
    assert diagnose(logs[:1]) == ("it said nothing", None)


def training(tmp_path, monkeypatch, script):
    """A `python` that runs a shell script in the output folder instead of a training."""
    tool = tmp_path / "python"
    tool.write_text(f"#!/bin/bash\ncd {tmp_path / 'run'}\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tool))
    (tmp_path / "run").mkdir()


def test_a_training_that_fails_ends_the_check(tmp_path, monkeypatch):
    training(tmp_path, monkeypatch, "echo 'fatal error: Python.h: No such file' > train.log; echo 'error: x'; exit 2")
    findings = Findings()
    with pytest.raises(FatalFinding):
        running.watch(findings, [], tmp_path / "run", "console.log", 60, lambda steps: None)
    assert findings.wrong == [f"training: Python headers: x; {CAUSES[0].remedy}"]


def test_a_training_that_does_nothing_ends_the_check(tmp_path, monkeypatch):
    """It says something for longer than the patience first, which is no reason to end it."""
    script = "for i in 1 2 3 4 5 6; do echo $i; sleep 0.3; done; echo '{\"step\": 1}' > metrics.jsonl; exec sleep 600"
    training(tmp_path, monkeypatch, script)
    findings, seen = Findings(), []
    with pytest.raises(FatalFinding):
        running.watch(findings, [], tmp_path / "run", "console.log", 1.5, seen.append)
    (wrong,) = findings.wrong
    assert wrong.startswith("progress: nothing for 2 s after 1 steps; last: 6; ") and len(seen) == 1


def test_the_report_of_a_failed_check_has_everything_and_no_secrets(tmp_path, monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "sesame-open")
    monkeypatch.setattr("openrlhf_swap.gpu_check.__main__.check_scoring", lambda *_: None)
    script = "echo 'Using FLASH_ATTN attention backend' > train.log; echo error: sesame-open in /data/me/x.py; exit 2"
    training(tmp_path, monkeypatch, script)
    gpu = Gpu(torch.device("cpu"), lambda: 5, 10, {"name": "a fake", "capability": "9.0"})
    argv = ["--model", str(tmp_path / "policy"), "--logger.wandb.key", "key-of-mine", "--swap.step_tokens", "8"]
    assert check("policy", tmp_path / "run", gpu, 60, [], argv).report() == 1
    text = (tmp_path / "run" / "gpu_check.json").read_text()
    assert "sesame" not in text and str(tmp_path) not in text and "key-of-mine" not in text and "/data" not in text
    report = json.loads(text)
    assert set(report) == set(example())
    assert report["command"].endswith("gpu-check --model .../policy --logger.wandb.key '***' --swap.step_tokens 8")
    assert not report["passed"] and not report["complete"] and report["gpu"] == gpu.facts
    assert report["chosen"] == ["Using FLASH_ATTN attention backend"]
    assert report["memory"] == {"peak": 5} and report["seconds"]["scoring"] >= 0
    assert report["findings"][-1]["name"] == "training" and report["findings"][-1]["found"] == "*** in .../x.py"
    assert report["logs"]["console.log"] == ["error: *** in .../x.py"]


def example():
    return json.loads((ROOT / "docs" / "use" / "gpu_check_example.json").read_text(encoding="utf-8"))


def test_the_example_is_a_complete_report():
    report = example()
    assert report["passed"] and report["complete"] and report["memory"]["phases"]["update"]["planned"]
    assert {"generate", "score", "update", "sync", "total"} <= set(report["seconds"]["a step"])
    names = {line["name"] for line in report["findings"]}
    assert {"vllm_kl", "GiB while vLLM sleeps", "GiB at most", "steps, resumed after a kill"} <= names


def test_what_the_logs_say_about_kernels_is_kept(tmp_path):
    (tmp_path / "train.log").write_text(
        "\x1b[36m(RolloutActor pid=1)\x1b[0m (EngineCore pid=5) INFO [cuda.py:493] Using FLASH_ATTN attention backend "
        "out of potential backends: ['FLASH_ATTN'].\n"
        "INFO [model_runner.py:961] Graph capturing finished in 3 secs, took 0.20 GiB\n"
        "INFO [gpu_worker.py:267] Sleep mode freed 38.1 GiB memory, 1.2 GiB memory is still in use.\n"
        * 2
        + "INFO Using max model len 400\n"
    )
    assert chosen_lines(tmp_path) == [
        "Using FLASH_ATTN attention backend out of potential backends: ['FLASH_ATTN'].",
        "Graph capturing finished in 3 secs, took 0.20 GiB",
        "Sleep mode freed 38.1 GiB memory, 1.2 GiB memory is still in use.",
    ]


def test_hidden_is_what_is_private_and_nothing_else(monkeypatch):
    monkeypatch.setenv("HOME", "/home/jane")
    monkeypatch.setenv("MY_TOKEN", "sesame-open")
    text = "sesame-open hf_abcdefghijklmnopqrst --x=/home/jane/a/b.py 10.1.2.3 https://host/a/b outputs/run/x 1/2"
    assert scrubbed(text) == "*** *** --x=~/a/b.py <address> https://host/a/b outputs/run/x 1/2"
    assert scrubbed("File '/opt/venv/lib/a.py'") == "File '.../a.py'"


@pytest.mark.parametrize("line", [*CHECKS, *CAUSES], ids=lambda line: line.name)
def test_the_page_on_trouble_has_a_line_for_each(line):
    (row,) = (row for row in PAGE.splitlines() if row.startswith(f"| `{line.name}` |"))
    assert line.remedy in row.replace("`", "")

"""Continuations on the real stack: an engine that dies while responses are continued, and what it costs the run."""

import os
import signal
import subprocess
import time

import psutil
import pytest
from support.disturbing import errors, find_process
from support.running import run_training, training

from openrlhf_swap.files import read_rows

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("TEST_SLOW" not in os.environ, reason="three starts of a run; TEST_SLOW=1 runs them"),
]
FLAGS = ["--swap.objective", "vsrm", "--swap.vsrm.words", "check,wait,again", "--swap.vsrm.first_characters", "30"]
FLAGS += ["--swap.vsrm.apart_characters", "20", "--swap.vsrm.answer_tokens", "30", "--swap.vsrm.answers", "3"]
FLAGS += ["--train.full_determinism_enable", "--ckpt.save_steps", "1", "--ckpt.load_enable", "--swap.verbose"]


def start_and_kill_the_engine(folder, prompts, step):
    """Start, and kill the engine as soon as all first responses of `step` are there; returns output and status."""
    with open(folder / "log", "w") as log:
        process = subprocess.Popen(**training(folder / "run", prompts, *FLAGS), stdout=log, stderr=log)
        done = folder / "run" / "metrics.jsonl"
        bars = None  # full ones, before the step
        while process.poll() is None:
            full = (folder / "log").read_text().count("Generate samples: 100%")
            if bars is not None and full > bars:
                break
            if bars is None and done.exists() and len(list(read_rows(done))) == step - 1:
                bars = full
            time.sleep(0.02)
        find_process(psutil.Process(process.pid), "RolloutActor").send_signal(signal.SIGKILL)
        status = process.wait(timeout=300)
    return (folder / "log").read_text(), status


def test_an_engine_that_dies_in_the_middle_of_them_costs_the_step_and_no_more(tmp_path, prompts_file):
    for name in ("calm", "killed"):
        (tmp_path / name).mkdir()
    calm = run_training(tmp_path / "calm" / "run", prompts_file, *FLAGS)
    assert all(row["swap/continued_tokens"] > 0 and row["swap/adv_process_absmean"] > 0 for row in calm)

    output, status = start_and_kill_the_engine(tmp_path / "killed", prompts_file, 3)
    run = tmp_path / "killed" / "run"
    (line,) = errors(output)
    assert status == 2 and "died" in line
    assert [row["step"] for row in read_rows(run / "metrics.jsonl")] == [1, 2]
    again = run_training(run, prompts_file, *FLAGS)
    assert [row["step"] for row in again] == [1, 2, 3, 4]
    for ours, theirs in zip(again, calm, strict=True):
        numbers = [name for name in theirs if not name.startswith(("timing/", "memory/"))]
        assert {name: ours[name] for name in numbers} == {name: theirs[name] for name in numbers}

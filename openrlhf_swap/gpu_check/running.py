"""A training in a process of its own, watched while it runs."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from openrlhf_swap.files import read_new_rows
from openrlhf_swap.gpu_check.diagnosis import diagnose
from openrlhf_swap.gpu_check.findings import PROGRESS, TRAINING, Findings
from openrlhf_swap.gpu_check.memory import Step

METRICS, LIBRARIES = "metrics.jsonl", "train.log"  # in the output folder


def watch(
    findings: Findings,
    flags: Sequence[str],
    output: Path,
    log: str,
    patience: float,
    on_step: Callable[[list[Step]], None],
    done: Callable[[], bool] = lambda: False,
) -> list[Step]:
    """Run a training until it ends or `done`, and kill it then.

    Args:
        findings: gets an end with an error, and a training that does nothing for `patience` seconds.
        flags: the training's.
        output: its output folder.
        log: name of the file for its console.
        patience: seconds in which neither a log nor the metrics have to grow.
        on_step: called after each step with all steps so far; a FatalFinding ends the training too.
        done: whether enough of it was seen.

    Returns:
        Its steps, each with the time at which it was seen to have ended.

    Raises:
        FatalFinding: for what is described above.
    """
    metrics, logs = output / METRICS, [output / log, output / LIBRARIES]
    offset = metrics.stat().st_size if metrics.exists() else 0
    steps: list[Step] = []
    with open(logs[0], "w", encoding="utf-8") as file:
        command = [sys.executable, "-m", "openrlhf_swap.train", *flags]
        process = subprocess.Popen(command, stdout=file, stderr=file)
    try:
        grown, size = time.monotonic(), 0
        while not done():
            ended = process.poll() is not None  # before the rows are read, so that none is missed
            rows, offset = read_new_rows(metrics, offset)
            for row in rows:
                steps.append((time.monotonic(), row))
                on_step(steps)
            if ended:
                if process.returncode:
                    error, remedy = diagnose(logs)
                    findings.add(TRAINING, error, "no error", False, remedy)
                break
            now = sum(path.stat().st_size for path in (*logs, metrics) if path.exists())
            if now != size:
                grown, size = time.monotonic(), now
            silent = time.monotonic() - grown
            if silent > patience:
                text = f"nothing for {silent:.0f} s after {len(steps)} steps; last: {diagnose(logs)[0]}"
                findings.add(PROGRESS, text, f"something every {patience:.0f} s", False)
            time.sleep(0.1)
    finally:
        process.kill()
        process.wait()
    return steps

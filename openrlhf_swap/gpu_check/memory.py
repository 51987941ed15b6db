"""The memory that the training took, beside the plan's."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from openrlhf_swap.files import Row
from openrlhf_swap.flags.configuration import configure
from openrlhf_swap.gpu_check.report import Findings
from openrlhf_swap.sizing.memory import phases
from openrlhf_swap.sizing.settings import read_run

GIB = 2**30
RESERVE = 4 * GIB  # for CUDA contexts, graphs and fragmentation: the plan's default
# Phases of a step from its end backwards, with the metric of its seconds and the plan's phases.
PHASES = (
    ("sync", "timing/broadcast", ()),
    ("update", "timing/ppo_train", ("update", "adam")),
    ("score", "timing/make_experience", ("score",)),
    ("generate", "timing/generation", ("generate",)),
)
Reading = tuple[float, int]
"""Seconds of the monotonic clock, and bytes of the GPU in use."""
Step = tuple[float, Row]
"""When a step was seen to have ended, and its metrics."""


@contextlib.contextmanager
def polled(memory: Callable[[], int]) -> Iterator[list[Reading]]:
    """A list to which the results of `memory` are appended, ten a second."""
    used, done = [(time.monotonic(), memory())], threading.Event()

    def poll() -> None:
        while not done.wait(0.1):
            used.append((time.monotonic(), memory()))

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        yield used
    finally:
        done.set()
        thread.join()


def planned_bytes(output: Path, total: int) -> dict[str, int]:
    """Bytes on the GPU by phase, as the plan computes them for the run that wrote `output`."""
    model, settings = read_run(configure(["--config", str(output / "run.yaml")], on_cpu=False))
    return {phase: sum(parts.values()) for phase, parts in phases(model, settings, total).items()}


def check_memory(
    findings: Findings, used: Sequence[Reading], steps: Sequence[Step], planned: Mapping[str, int]
) -> dict[str, dict[str, int | None]]:
    """Check the most in use and what sleep frees; returns the bytes by phase, measured and planned."""
    before = used[0][1]
    peak, limit = max(size for _, size in used) - before, max(planned.values())
    wanted = f"<= {(limit + RESERVE) / GIB:.1f}: planned {limit / GIB:.1f}, and {RESERVE / GIB:.1f} for CUDA contexts"
    remedy = "lower --vllm.gpu_memory_utilization, and report it: the plan is too small"
    findings.add("GiB at most", f"{peak / GIB:.1f}", wanted, peak <= limit + RESERVE, remedy)
    by_phase = bytes_by_phase(used, steps, planned)
    for phase, sizes in by_phase.items():
        measured, expected = sizes["measured"], sizes["planned"]
        if measured is not None:
            beside = "" if expected is None else f"planned, without contexts: {expected / GIB:.1f}"
            findings.add(f"GiB: {phase}", f"{measured / GIB:.1f}", beside)
    # Between the first and the last step of a process: outside of these the engine does not exist yet, or has ended.
    inside = [size - before for moment, size in used if steps[0][0] <= moment <= steps[-1][0]] or [0]
    asleep, awake = min(inside), max(inside)
    remedy = "sleep frees no memory: leave out --vllm.enable_sleep and --train.colocate_all"
    good, wanted = awake > 0 and asleep < 0.7 * awake, f"< 70% of {awake / GIB:.1f}"
    findings.add("GiB while vLLM sleeps", f"{asleep / GIB:.1f}", wanted, good, remedy, fatal=True)
    return by_phase


def bytes_by_phase(
    used: Sequence[Reading], steps: Sequence[Step], planned: Mapping[str, int]
) -> dict[str, dict[str, int | None]]:
    """The most in use in each phase of the steps, without what was in use before, and what was planned for it.

    A step's phases are found from its end and the seconds of each; one that was too short to be read has None.
    """
    peaks: dict[str, int] = {}
    for end, row in steps:
        for phase, metric, _ in PHASES:
            start = end - row.get(metric, 0.0)
            for moment, size in used:
                if start <= moment <= end:
                    peaks[phase] = max(peaks.get(phase, 0), size - used[0][1])
            end = start
    return {
        phase: {"measured": peaks.get(phase), "planned": max((planned[name] for name in names), default=None)}
        for phase, _, names in reversed(PHASES)
    }

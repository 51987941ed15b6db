"""The memory that the training took, beside the plan's."""

from __future__ import annotations

import contextlib
import io
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from openrlhf_swap import plan
from openrlhf_swap.files import Row
from openrlhf_swap.gpu_check.findings import PEAK, SLEEP, Findings

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
    """Bytes on the GPU by phase, as `openrlhf_swap.plan` computes them for the run that wrote `output`."""
    command = json.loads((output / "swap_config.json").read_text(encoding="utf-8"))["command"]
    with contextlib.redirect_stdout(io.StringIO()) as text:
        plan.main(["--json", "--gpu", str(total / GIB), "--reserve", "0", "--command", command])
    return {phase: sum(parts.values()) for phase, parts in json.loads(text.getvalue())["phases"].items()}


def within(used: Sequence[Reading], start: float, end: float) -> list[int]:
    """The bytes read in a span of time."""
    return [size for moment, size in used if start <= moment <= end]


def check_sleep(findings: Findings, used: Sequence[Reading], steps: Sequence[Step]) -> None:
    """Whether vLLM's sleep frees memory: the least and the most between the first and the last step of one process.

    Outside of these the engine does not exist yet, or has ended and left the GPU empty.
    """
    before = used[0][1]
    inside = within(used, steps[0][0], steps[-1][0])
    peak, asleep = max(inside, default=before), min(inside, default=before)
    good = peak > before and asleep - before < 0.7 * (peak - before)
    findings.add(SLEEP, f"{(asleep - before) / GIB:.1f}", f"< 70% of {(peak - before) / GIB:.1f}", good)


def check_peak(findings: Findings, used: Sequence[Reading], planned: Mapping[str, int]) -> None:
    """The most that was in use, beside the plan."""
    peak, limit = max(size for _, size in used) - used[0][1], max(planned.values())
    wanted = f"<= {(limit + RESERVE) / GIB:.1f}: planned {limit / GIB:.1f}, and {RESERVE / GIB:.1f} for CUDA contexts"
    findings.add(PEAK, f"{peak / GIB:.1f}", wanted, peak <= limit + RESERVE)


def bytes_by_phase(
    used: Sequence[Reading], steps: Sequence[Step], planned: Mapping[str, int]
) -> dict[str, dict[str, int | None]]:
    """The most in use in each phase of the steps, without what was in use before, and what was planned for it.

    A step's phases are found from its end and the seconds of each; one that was too short to be read has None.
    """
    before, most = used[0][1], dict[str, int]()
    for end, row in steps:
        for phase, metric, _ in PHASES:
            start = end - row.get(metric, 0.0)
            for size in within(used, start, end):
                most[phase] = max(most.get(phase, 0), size - before)
            end = start
    return {
        phase: {"measured": most.get(phase), "planned": max((planned[name] for name in names), default=None)}
        for phase, _, names in reversed(PHASES)
    }


def note_phases(findings: Findings, phases: Mapping[str, Mapping[str, int | None]]) -> None:
    """Lines for the table: GiB of each phase beside the plan's."""
    for phase, sizes in phases.items():
        measured, planned = sizes["measured"], sizes["planned"]
        beside = "" if planned is None else f"planned, without contexts: {planned / GIB:.1f}"
        if measured is not None:
            findings.note(f"GiB: {phase}", f"{measured / GIB:.1f}", beside)

"""The memory that the training took, beside the plan's."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from openrlhf_swap.files import Row
from openrlhf_swap.flags.configuration import configure
from openrlhf_swap.gpu_check.report import Findings
from openrlhf_swap.sizing.memory import phases
from openrlhf_swap.sizing.models import gib
from openrlhf_swap.sizing.remedies import Machine, place_optimizer
from openrlhf_swap.sizing.settings import read_run

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
    model, given = read_run(configure(["--config", str(output / "run.yaml")], on_cpu=False))
    settings = place_optimizer(model, given, Machine(total, 1))
    return {phase: sum(parts.values()) for phase, parts in phases(model, settings, total).items()}


def check_memory(findings: Findings, used: Sequence[Reading], steps: Sequence[Step], planned: int) -> None:
    """Check the most in use, in bytes, and what sleep frees."""
    before = used[0][1]
    peak, remedy = max(size for _, size in used) - before, "lower --vllm.gpu_memory_utilization"
    wanted = f"<= {gib(planned)}, as planned"
    findings.add("GiB at most", gib(peak), wanted, peak <= planned, f"{remedy}, and report it: the plan is too small")
    # Between the first and the last step of a process: outside of these the engine does not exist yet, or has ended.
    inside = [size - before for moment, size in used if steps[0][0] <= moment <= steps[-1][0]] or [0]
    asleep, awake = min(inside), max(inside)
    remedy = "sleep frees no memory: leave out --vllm.enable_sleep and --train.colocate_all"
    good, wanted = awake > 0 and asleep < 0.7 * awake, f"< 70% of {gib(awake)}"
    findings.add("GiB while vLLM sleeps", gib(asleep), wanted, good, remedy, fatal=True)

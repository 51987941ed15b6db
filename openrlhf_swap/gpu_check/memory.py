"""The memory that the training took, beside the plan's."""

from __future__ import annotations

import contextlib
import io
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from openrlhf_swap import plan
from openrlhf_swap.gpu_check.findings import Findings

GIB = 2**30


@contextlib.contextmanager
def polled(memory: Callable[[], int]) -> Iterator[list[int]]:
    """A list to which the results of `memory` are appended, five a second."""
    used, done = [memory()], threading.Event()

    def poll() -> None:
        while not done.wait(0.2):
            used.append(memory())

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


def check_memory(findings: Findings, used: Sequence[int], planned: Mapping[str, int]) -> None:
    """The peak, and what is left while vLLM sleeps, beside the plan."""
    before, peak = used[0], max(used)
    asleep = min(used[used.index(peak) :])
    phases = ", ".join(f"{phase} {size / GIB:.1f}" for phase, size in planned.items())
    findings.add("GiB at most", f"{(peak - before) / GIB:.1f}", f"planned, without contexts: {phases}", None)
    slept = asleep - before < 0.7 * (peak - before) or peak == before
    remedy = "vLLM's sleep frees no memory: leave --vllm.enable_sleep and --train.colocate_all out"
    findings.add("GiB while vLLM sleeps", f"{(asleep - before) / GIB:.1f}", "well below", None if slept else remedy)

"""Why a training ended: its last error, and the remedy for errors that are known."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

END = 300_000  # bytes of a log's end that are read
LONGEST = 300  # characters of an error
_RAISED = re.compile(r"(?:^|\s)((?:[\w.]+\.)?\w*(?:Error|Exception)\b: .+)$", re.MULTILINE)


@dataclass(frozen=True)
class Cause:
    """A known cause of an end, by what the logs say."""

    name: str
    pattern: str
    remedy: str


# The first one that is in the logs counts.
CAUSES = (
    Cause("Python headers", r"Python\.h", "install those of this Python, such as apt-get install python3.11-dev"),
    Cause("compiler", r"Failed to find C compiler|[cC]ould not find.* g\+\+", "install g++"),
    Cause(
        "driver too old",
        r"driver on your system is too old|driver version is insufficient",
        "install a driver of 580 or newer (CUDA 13)",
    ),
    Cause(
        "built for something else",
        r"no kernel image is available|undefined symbol",
        "remove .venv, then bash scripts/setup.sh",
    ),
    Cause(
        "GPU in use",
        r"less than desired GPU memory utilization",
        "end what nvidia-smi lists, or lower --vllm.gpu_memory_utilization",
    ),
    Cause(
        "GPU for one process",
        r"is/are busy or unavailable|in compute mode",
        "set its compute mode with nvidia-smi -c DEFAULT, as root",
    ),
    Cause(
        "no memory for keys and values",
        r"No available memory for the cache blocks|KV cache is needed, which is larger than",
        "raise --vllm.gpu_memory_utilization, or take a GPU with more memory",
    ),
    Cause(
        "CUDA graphs fail",
        r"operation (?:not permitted|failed).*captur|cudaErrorStreamCapture",
        "train with --vllm.enforce_eager (EAGER=1 for the scripts), and report it",
    ),
    Cause(
        "out of GPU memory",
        r"CUDA out of memory|torch\.(?:cuda\.)?OutOfMemoryError|CUDA error: out of memory",
        "end what nvidia-smi lists, or lower --vllm.gpu_memory_utilization",
    ),
    Cause("allocator", r"expandable_segments", "remove expandable_segments from PYTORCH_ALLOC_CONF"),
    Cause(
        "CUDA IPC",
        r"cudaIpc|pidfd_getfd|invalid resource handle|invalid device context",
        "let the processes see each other: a container needs --ipc=host, and may need --pid=host or CAP_SYS_PTRACE",
    ),
    Cause(
        "shared memory",
        r"/dev/shm|Bus error|shared memory.*(?:full|exhausted)",
        "give the container more: --shm-size 32g or --ipc=host",
    ),
    Cause("disk full", r"No space left on device", "free some space in --output and in Ray's folder (/tmp/ray)"),
    Cause(
        "NCCL",
        r"NCCL error|ncclSystemError|unhandled system error|ncclUnhandledCudaError",
        "set NCCL_DEBUG=INFO and look for NCCL WARN in train.log",
    ),
    Cause(
        "out of main memory",
        r"killed due to memory pressure|OOM.?[kK]ill|\bSIGKILL\b|Cannot allocate memory",
        "take a machine with more main memory; dmesg says what was killed",
    ),
)


def diagnose(logs: Sequence[Path]) -> tuple[str, str | None]:
    """The last error in the logs of a training that failed, and the remedy if its cause is known.

    Args:
        logs: the console's first, in which our own errors are lines of their own; those that do not exist are empty.

    Returns:
        The error as one line, after the name of its cause, and the remedy or None.
    """
    texts = [read_end(log) for log in logs]
    lines = [line for line in texts[0].splitlines() if line.strip()]
    own = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    raised = [match for text in texts for match in _RAISED.findall(text)]
    error = " / ".join(dict.fromkeys([*own[-1:], *raised[-1:]])) or "".join(lines[-1:]) or "it said nothing"
    cause = find_cause("\n".join(texts))
    return (f"{cause.name}: {error[:LONGEST]}", cause.remedy) if cause else (error[:LONGEST], None)


def find_cause(text: str) -> Cause | None:
    """The first known cause that a text names."""
    return next((cause for cause in CAUSES if re.search(cause.pattern, text)), None)


def read_end(log: Path) -> str:
    """The end of a log; empty if there is none."""
    if not log.exists():
        return ""
    with open(log, "rb") as file:
        file.seek(max(0, log.stat().st_size - END))
        return file.read().decode("utf-8", errors="replace")

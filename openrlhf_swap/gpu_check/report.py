"""`gpu_check.json`: everything that a bug report needs, without secrets and without paths of this machine."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from openrlhf_swap.files import to_line, write_text
from openrlhf_swap.gpu_check.diagnosis import read_end
from openrlhf_swap.gpu_check.findings import Findings
from openrlhf_swap.gpu_check.running import LIBRARIES
from openrlhf_swap.runs import provenance
from openrlhf_swap.train import redacted

NAME = "gpu_check.json"
KERNELS = ("flash-attn", "flashinfer-python", "triton", "nvidia-nccl-cu13", "nvidia-cudnn-cu13")
LAST = 30  # lines of each log after a fatal finding
GRAPHS_DONE = "Graph capturing finished"
# What vLLM and our own start say about the kernels that they choose, and about sleep and CUDA graphs.
_CHOSEN = re.compile(
    r"(\[swap\] attention: .*|(?:Using|using) .*(?:backend|runner|kernel|sampl|layout|MoE).*|"
    rf"{GRAPHS_DONE}.*|Sleep mode freed .*|Profiling CUDA graph memory.*|.*cudagraph_mode.* (?:to|is) .*)"
)
_SECRET_NAME = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$", re.IGNORECASE)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_PROCESS = re.compile(r"^(?:\([^()]*\) ?)+", re.MULTILINE)  # Ray's and vLLM's names of a process before each line
_FOLDERS = re.compile(r"(?<![\w.:/~])/(?:[^\s/'\",:=()]+/)+")
_ADDRESS = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b")
_HUB_TOKEN = re.compile(r"\bhf_\w{16,}")


def scrubbed(text: str) -> str:
    """A text without the values of secret variables, hub tokens, folders, addresses and the machine's name."""
    secrets = [value for name, value in os.environ.items() if _SECRET_NAME.search(name) and len(value) >= 6]
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    text = _FOLDERS.sub(".../", _HUB_TOKEN.sub("***", text).replace(str(Path.home()), "~"))
    return _ADDRESS.sub("<address>", text).replace(platform.node() or "\0", "<host>")


def chosen_lines(output: Path) -> list[str]:
    """What the logs say about kernels, CUDA graphs and sleep, each line once."""
    text = plain(output / "console.log") + plain(output / LIBRARIES)
    return list(dict.fromkeys(match.strip()[:200] for match in _CHOSEN.findall(text)))


def last_lines(log: Path) -> list[str]:
    """The end of a log."""
    return [scrubbed(line) for line in plain(log).splitlines()[-LAST:]]


def plain(log: Path) -> str:
    """The end of a log without colours and names of processes."""
    return _PROCESS.sub("", _COLOUR.sub("", read_end(log)))


def describe_gpu(device: torch.device) -> dict[str, Any]:
    """Name, bytes and capability of a GPU, how many there are, and the driver."""
    properties = torch.cuda.get_device_properties(device)
    return {
        "name": properties.name,
        "bytes": properties.total_memory,
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "bfloat16": torch.cuda.is_bf16_supported(including_emulation=False),
        "count": torch.cuda.device_count(),
        "driver": _driver(),
    }


def _driver() -> str | None:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return None


def describe_machine() -> dict[str, Any]:
    """System, cores, main memory and shared memory."""
    shared = Path("/dev/shm")
    return {
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "dev_shm_bytes": shutil.disk_usage(shared).total if shared.exists() else None,
    }


def write_report(
    output: Path, argv: Sequence[str], findings: Findings, gpu: dict[str, Any], measured: dict[str, Any]
) -> Path:
    """Write the report into `output`, and return its path.

    Args:
        output: the folder of the run.
        argv: the command's own arguments.
        findings: the result.
        gpu: as `describe_gpu` gives it.
        measured: `seconds` by phase, `memory` in bytes, and whether all checks were made (`complete`).
    """
    made = provenance.made_of("openrlhf-swap gpu-check", redacted(list(argv)))
    installed = {package.name: package.version for package in metadata.distributions()}
    lines = [{key: value and scrubbed(value) for key, value in asdict(line).items()} for line in findings.lines]
    logs = [path for name in ("console.log", "resumed.log", LIBRARIES) if (path := output / name).exists()]
    content = {
        "passed": measured["complete"] and not findings.wrong,
        "command": scrubbed(made["command"]),
        "commit": made["commit"],
        "versions": made["versions"] | {name: installed[name] for name in KERNELS if name in installed},
        "cuda": torch.version.cuda,
        "gpu": gpu,
        "machine": describe_machine(),
        **measured,
        "chosen": [scrubbed(line) for line in chosen_lines(output)],
        "findings": lines,
        "logs": {log.name: last_lines(log) for log in logs} if findings.wrong or not measured["complete"] else {},
    }
    write_text(output / NAME, to_line(content, indent=2))
    return output / NAME

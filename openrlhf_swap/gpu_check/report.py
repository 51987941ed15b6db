"""What was checked and found: a table, and gpu_check.json without secrets and without paths of this machine."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate

from openrlhf_swap.files import to_line, write_text
from openrlhf_swap.runs import provenance
from openrlhf_swap.train import redacted

NAME = "gpu_check.json"
LOGS = ("console.log", "resumed.log", "train.log")  # in the output folder
KERNELS = ("flash-attn", "flashinfer-python", "triton", "nvidia-nccl-cu13", "nvidia-cudnn-cu13")
LAST, END = 30, 100_000  # lines of each log after a failure, and the bytes in which they are looked for
_SECRET_NAME = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$", re.IGNORECASE)
_FOLDERS = re.compile(r"(?<![\w.:/~])/(?:[^\s/'\",:=()]+/)+")
_ADDRESS = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b")
_HUB_TOKEN = re.compile(r"\bhf_\w{16,}")


class FatalFinding(Exception):
    """Something is wrong that makes all other checks pointless; it is in `Findings`."""


class Findings:
    """What was found, in the order of the checks; the remedy is None where nothing is wrong."""

    def __init__(self) -> None:
        self.lines: list[dict[str, str | None]] = []

    def add(
        self, name: str, found: str, wanted: str = "", good: bool = True, remedy: str = "", fatal: bool = False
    ) -> None:
        """Note what a check found.

        Raises:
            FatalFinding: if it is wrong and `fatal`.
        """
        self.lines.append({"name": name, "found": found, "wanted": wanted, "remedy": None if good else remedy})
        if fatal and not good:
            raise FatalFinding(name)

    @property
    def wrong(self) -> list[str]:
        """A line with a remedy for everything that is wrong."""
        return [f"{line['name']}: {line['found']}; {line['remedy']}" for line in self.lines if line["remedy"]]

    def print_table(self) -> int:
        """Print the table and what is wrong; returns the exit status."""
        rows = [(line["name"], line["found"], line["wanted"]) for line in self.lines]
        print(tabulate(rows, ["check", "found", "wanted"], disable_numparse=True, maxcolwidths=[None, 60, 50]))
        for text in self.wrong:
            print(f"wrong: {text}")
        print("[gpu_check] see above" if self.wrong else "[gpu_check] all is as it should be")
        return 1 if self.wrong else 0


def write_report(
    output: Path, argv: Sequence[str], findings: Findings, gpu: dict[str, Any], measured: dict[str, Any]
) -> Path:
    """Write the report into the folder of the run, and return its path.

    `measured` has seconds by phase, memory in bytes, and whether all checks were made.
    """
    made = provenance.made_of("openrlhf-swap gpu-check", redacted(list(argv)))
    installed = {package.name: package.version for package in metadata.distributions()}
    failed = findings.wrong or not measured["complete"]
    content = {
        "passed": not failed,
        "command": scrubbed(made["command"]),
        "commit": made["commit"],
        "versions": made["versions"] | {name: installed[name] for name in KERNELS if name in installed},
        "cuda": torch.version.cuda,
        "gpu": gpu,
        "machine": _describe_machine(),
        **measured,
        "findings": [{key: value and scrubbed(value) for key, value in line.items()} for line in findings.lines],
        "logs": {name: read_end(output / name) for name in LOGS if (output / name).exists()} if failed else {},
    }
    write_text(output / NAME, to_line(content, indent=2))
    return output / NAME


def scrubbed(text: str) -> str:
    """A text without the values of secret variables, hub tokens, folders, addresses and the machine's name."""
    secrets = [value for name, value in os.environ.items() if _SECRET_NAME.search(name) and len(value) >= 6]
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    text = _FOLDERS.sub(".../", _HUB_TOKEN.sub("***", text).replace(str(Path.home()), "~"))
    return _ADDRESS.sub("<address>", text).replace(platform.node() or "\0", "<host>")


def read_end(log: Path) -> list[str]:
    """The last lines of a log."""
    text = log.read_bytes()[-END:].decode("utf-8", errors="replace")
    return [scrubbed(line) for line in text.splitlines()[-LAST:]]


def describe_gpu(device: torch.device) -> dict[str, Any]:
    properties, driver = torch.cuda.get_device_properties(device), None
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    with suppress(OSError, subprocess.CalledProcessError, IndexError):
        driver = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]
    return {
        "name": properties.name,
        "bytes": properties.total_memory,
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "bfloat16": torch.cuda.is_bf16_supported(including_emulation=False),
        "count": torch.cuda.device_count(),
        "driver": driver,
    }


def _describe_machine() -> dict[str, Any]:
    shared = Path("/dev/shm")
    return {
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "dev_shm_bytes": shutil.disk_usage(shared).total if shared.exists() else None,
    }

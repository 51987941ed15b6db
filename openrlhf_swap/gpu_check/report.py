"""What was checked and found: a table, and gpu_check.json without secrets and without paths of this machine."""

import os
import platform
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tabulate import tabulate
from torch.utils.collect_env import get_env_info

from openrlhf_swap.files import to_line, write_text
from openrlhf_swap.runs import provenance
from openrlhf_swap.train import redacted

NAME = "gpu_check.json"
MACHINE = (
    "os",
    "python_version",
    "cuda_compiled_version",
    "nvidia_driver_version",
    "nvidia_gpu_models",
    "pip_packages",
)
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
        """Note what a check found; raises FatalFinding if it is wrong and `fatal`."""
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


def write_report(output: Path, argv: Sequence[str], findings: Findings, measured: dict[str, Any]) -> Path:
    """Write the report into the folder of the run, and return its path.

    `measured` has seconds by phase, memory in bytes, and whether all checks were made.
    """
    made, machine = provenance.made_of("openrlhf-swap gpu-check", redacted(list(argv))), get_env_info()._asdict()
    content = {
        "passed": not findings.wrong and measured["complete"],
        "command": scrubbed(made["command"]),
        "commit": made["commit"],
        "versions": made["versions"],
        "machine": {name: machine[name] for name in MACHINE},
        **measured,
        "findings": [{key: value and scrubbed(value) for key, value in line.items()} for line in findings.lines],
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

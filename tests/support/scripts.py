"""The shell scripts, run from the checkout, and what they print."""

import os
import subprocess

from support.paths import ROOT

MULTINODE = "scripts/train_swap_multinode.sh"
COMMANDS = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for package in ("openrlhf_swap", "evaluation")
    for path in sorted((ROOT / package).rglob("*.py"))
    if '\nif __name__ == "__main__":' in path.read_text(encoding="utf-8")
]
"""What `python -m` runs."""


def bash(*command, **environment):
    """A script, or `-c` and a line, with changes to the environment."""
    return subprocess.run(
        ["bash", *command], capture_output=True, text=True, cwd=ROOT, env={**os.environ, **environment}, check=False
    )


def make_smi(folder, gpus):
    """Make an nvidia-smi that lists this many GPUs; returns a PATH on which it comes first."""
    tool = folder / "nvidia-smi"
    lines = "".join(f"echo 'GPU {n}: NVIDIA (UUID: GPU-{n})'\n" for n in range(gpus))
    tool.write_text(f"#!/bin/bash\n{lines}")
    tool.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"

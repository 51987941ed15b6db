"""Training runs of the embedded policy, as commands."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from support.paths import POLICY, ROOT

# Half of the script's responses, for tests that do not look at what is learnt.
SMALL_STEPS = ["--rollout.n_samples_per_prompt", "4", "--train.batch_size", "64"]


def training(output: Path, prompts: Path, *extra: str) -> dict:
    """Command, environment and folder of a training run of four steps."""
    environment = {
        **os.environ,
        "MODEL": str(POLICY),
        "PROMPTS": str(prompts),
        "OUTPUT": str(output),
        "STEPS": "4",
        "LEARNING_RATE": "1e-3",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    command = ["bash", str(ROOT / "examples" / "worlds" / "train_swap.sh"), *extra]
    return {"args": command, "env": environment, "cwd": output.parent}


def train_by(module: str, folder: Path, monkeypatch: Any) -> None:
    """Let trainings run a module of tests/ instead of `openrlhf_swap train`: by another `python` in front of PATH."""
    tool = folder / "bin" / "python"
    tool.parent.mkdir()
    tool.write_text(
        f"""#!/bin/bash
if [[ "$2 $3" == "openrlhf_swap train" ]]; then set -- -m {module} "${{@:4}}"; fi
exec {sys.executable} "$@"
"""
    )
    tool.chmod(0o755)
    # `training` puts the folder of sys.executable in front of PATH.
    monkeypatch.setattr(sys, "executable", str(tool))
    monkeypatch.setenv("PATH", f"{tool.parent}:{Path(tool.resolve()).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'tests'}")


def start_training(output: Path, prompts: Path, *extra: str) -> subprocess.CompletedProcess:
    """Run it to completion."""
    return subprocess.run(**training(output, prompts, *extra), capture_output=True, text=True, timeout=1800)


def run_training(output: Path, prompts: Path, *extra: str) -> list[dict]:
    """A run that must succeed; returns its lines of metrics."""
    result = start_training(output, prompts, *extra)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]

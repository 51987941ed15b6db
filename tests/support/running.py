"""Training runs of the embedded policy, as commands."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from openrlhf_swap.files import read_rows
from support.paths import POLICY, ROOT
from support.scripts import make_tool


def words(text: str) -> list[str]:
    """The words of a command line without quotes."""
    return text.split()


# A quarter of the script's responses, for tests that do not look at what is learnt.
SMALL_STEPS = words("--rollout.batch_size 8 --rollout.n_samples_per_prompt 4 --train.batch_size 32")


def training(output: Path, prompts: Path, *extra: str) -> dict:
    """Command, environment and folder of a training run of four steps."""
    environment = {"MODEL": str(POLICY), "PROMPTS": str(prompts), "OUTPUT": str(output)}
    environment |= {"STEPS": "4", "LEARNING_RATE": "1e-3"}
    environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    command = ["bash", str(ROOT / "examples" / "worlds" / "train_swap.sh"), *extra]
    output.parent.mkdir(exist_ok=True)
    return {"args": command, "env": os.environ | environment, "cwd": output.parent}


def train_by(module: str, folder: Path, monkeypatch: Any) -> None:
    """Let trainings run a module of tests/ instead of `openrlhf_swap train`.

    Another `python` stands in front of PATH, which replaces the module.
    """
    (folder / "bin").mkdir()
    replaced = f'if [[ "$2 $3" == "openrlhf_swap train" ]]; then set -- -m {module} "${{@:4}}"; fi'
    tool = make_tool(folder / "bin" / "python", f'{replaced}\nexec {sys.executable} "$@"')
    # `training` puts the folder of sys.executable in front of PATH.
    monkeypatch.setattr(sys, "executable", str(tool))
    monkeypatch.setenv("PATH", f"{tool.parent}:{Path(tool.resolve()).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'tests'}")


def start_training(output: Path, prompts: Path, *extra: str) -> subprocess.CompletedProcess:
    """Run a training to its end."""
    return subprocess.run(
        **training(output, prompts, *extra), capture_output=True, text=True, timeout=1800
    )


def run_training(output: Path, prompts: Path, *extra: str) -> list[dict]:
    """Run a training that must succeed; returns its rows of metrics."""
    result = start_training(output, prompts, *extra)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    return list(read_rows(output / "metrics.jsonl"))


def objective_flags(name: str, settings: dict[str, str]) -> list[str]:
    flags = ["--swap.objective", name]
    for setting, value in settings.items():
        flags += [f"--swap.{name}.{setting}", value]
    return flags


def of_the_run(rows: Any, *others: str) -> list[dict]:
    """Rows of metrics without time and memory, and without names that match `others`."""
    left_out = re.compile("|".join(["timing/", "memory/", *others]))
    kept = []
    for row in rows:
        names = [name for name in row if not left_out.search(name)]
        kept.append({name: row[name] for name in names})
    return kept

"""Training runs of the quickstart's policy, as commands."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from openrlhf_swap.files import read_rows
from openrlhf_swap.quickstart.world import CLOSE
from support.paths import POLICY, ROOT
from support.scripts import make_tool


def words(text: str) -> list[str]:
    """The words of a command line without quotes."""
    return text.split()


# Four steps of the quickstart's policy, of 16 prompts with 8 responses, and an update each.
FLAGS = words(
    "--data.input_key problem --data.label_key answer --data.apply_chat_template "
    "--data.max_len 400 --data.max_samples 64 "
    "--rollout.batch_size 16 --rollout.n_samples_per_prompt 8 --rollout.max_new_tokens 320 "
    "--rollout.temperature 1.0 --rollout.micro_batch_size 32 "
    "--train.batch_size 128 --train.micro_batch_size 32 --train.seed 42 "
    "--actor.adam.lr 1e-3 --actor.lr_scheduler constant --swap.step_tokens 8"
)
# A quarter of these responses, for tests that do not look at what is learnt.
SMALL_STEPS = words("--rollout.batch_size 8 --rollout.n_samples_per_prompt 4 --train.batch_size 32")


def training(output: Path, prompts: Path, *extra: str) -> dict:
    """Command, environment and folder of a training run of four steps."""
    environment = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    output.parent.mkdir(exist_ok=True)
    command = training_command(output, prompts, *extra)
    return {"args": command, "env": os.environ | environment, "cwd": output.parent}


def training_command(output: Path, prompts: Path, *extra: str) -> list[str]:
    """The words of the command."""
    flags = {
        "--actor.model_name_or_path": POLICY,
        "--data.prompt_dataset": prompts,
        "--swap.output_dir": output,
        # The policy closes its thought on a new line, so the template starts without one.
        "--swap.close_template": CLOSE.replace("\n", "\\n"),
        "--ckpt.output_dir": output / "policy",
        "--ckpt.path": output / "checkpoints",
    }
    command = [sys.executable, "-m", "openrlhf_swap", "train", *FLAGS]
    for flag, value in flags.items():
        command += [flag, str(value)]
    return [*command, *extra]


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

import os
import shlex
import shutil
import subprocess

import pytest
from conftest import ROOT

from evaluation import run
from openrlhf_swap.checks import check_settings
from openrlhf_swap.config import parse_swap_arguments
from openrlhf_swap.integration import patches
from openrlhf_swap.objectives.registry import build
from openrlhf_swap.train import DEFAULTS, REWARD_FILE

PAPER = {"step_tokens": 350, "max_steps": 25, "length_coef": 1.0, "outcome_weight": 1.0, "process_weight": 0.3}


def bash(*command, **environment):
    return subprocess.run(
        ["bash", *command], capture_output=True, text=True, cwd=ROOT, env={**os.environ, **environment}, check=False
    )


@pytest.mark.parametrize("size", ["1.5b", "7b"])
def test_presets_carry_the_papers_settings_in_flags_that_exist(size):
    output = bash(f"scripts/train_swap_{size}.sh", "--dry-run", "--train.seed", "3", WANDB_KEY="secret").stdout
    assert "secret" not in output
    python, dash_m, module, *argv = shlex.split(output)
    assert (python, dash_m, module) == ("python", "-m", "openrlhf_swap.train")
    config, rest = parse_swap_arguments(argv)
    assert {name: getattr(config, name) for name in PAPER} == PAPER
    defaults = [word for pair in DEFAULTS.items() for word in pair]
    args = patches.parse_arguments([*defaults, "--reward.remote_url", str(REWARD_FILE), *rest])
    check_settings(args, build(config))
    assert args.actor.model_name_or_path.lower().endswith(size)
    assert (args.rollout.batch_size, args.rollout.n_samples_per_prompt) == (128, 16)
    assert args.train.batch_size == 128 * 16  # one on-policy update a step
    assert (args.rollout.max_new_tokens, args.rollout.temperature, args.train.num_episodes) == (12000, 0.6, 2)
    assert (args.algo.kl.init_coef, args.actor.lr_scheduler, args.actor.adam.lr) == (0, "constant", 1e-6)
    assert args.train.seed == 3


@pytest.mark.parametrize("script", ["setup.sh", "train_swap_1.5b.sh", "train_swap_7b.sh", "quickstart.sh"])
def test_help(script):
    result = bash(f"scripts/{script}", "--help", VENV=os.environ.get("VENV", str(ROOT / ".venv")))
    assert result.returncode == 0
    assert len(result.stdout.strip().splitlines()) >= 3


def test_setup_is_idempotent():
    assert bash("scripts/setup.sh").returncode == 0
    again = bash("scripts/setup.sh")
    assert again.returncode == 0
    (line,) = again.stdout.strip().splitlines()
    assert " is up to date (" in line


def test_setup_refuses_an_unknown_profile():
    result = bash("scripts/setup.sh", PROFILE="tpu")
    assert (result.returncode, result.stderr.strip()) == (1, "error: PROFILE is tpu; use cpu or gpu")


def test_setup_names_the_python_it_needs(tmp_path):
    for tool in ("dirname", "sed", "cat", "sha256sum", "cut", "grep", "awk", "df"):
        (tmp_path / tool).symlink_to(shutil.which(tool))
    result = subprocess.run(
        ["/bin/bash", "scripts/setup.sh"], env={"PATH": str(tmp_path)}, capture_output=True, text=True, cwd=ROOT
    )
    assert result.returncode == 1
    assert result.stderr.startswith("error: Python 3.11 was not found; install it, or name it: PYTHON=")


def test_the_evaluation_script_carries_the_papers_settings():
    output = bash("scripts/eval_benchmarks.sh", "--dry-run", "--limit", "3", MODEL="some/model", ENGINES="2").stdout
    python, dash_m, module, *argv = shlex.split(output)
    assert (python, dash_m, module) == ("python", "-m", "evaluation.run")
    args = run.parse(argv)
    assert args.benchmarks == ["math500", "amc23", "aime24", "aime25", "olympiadbench"]
    assert (args.samples, args.temperature, args.top_p, args.max_tokens) == (16, 0.6, 0.95, 32768)
    assert (args.engines, args.limit, str(args.output)) == (2, 3, "outputs/eval/model")

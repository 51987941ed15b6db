"""A training from a file of flags with another verifier than math-verify, and the file that it writes of itself."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from addition import problems
from support.paths import POLICY, ROOT

from openrlhf_swap.files import read_rows, write_rows
from openrlhf_swap.flags.defaults import with_folders
from openrlhf_swap.flags.rules import arguments_of_objective
from openrlhf_swap.flags.swap import parse_swap_arguments
from openrlhf_swap.objectives.recipes import with_recipe
from openrlhf_swap.rollouts.labels import Label

pytestmark = pytest.mark.slow
STEPS, PROMPTS, RESPONSES = 2, 8, 4


def choices(number, problem):
    """An addition as multiple choice. The policy boxes a sum, which is an option's text, and never a letter."""
    options = [str(int(problem.answer) + off - number % 4) for off in range(4)]
    return {"problem": problem.question, "answer": "ABCD"[number % 4], "options": options}


def flags(folder):
    """What stands in the file. gr3 rewards short answers and reads none: no letter has to be likely in a thought."""
    return {
        "swap.grader": "multiple_choice",
        "swap.objective": "gr3",
        "swap.output_dir": str(folder),
        "ckpt.output_dir": str(folder / "policy"),
        "ckpt.path": str(folder / "checkpoints"),
        "data.prompt_dataset": str(folder.parent / "choices.jsonl"),
        "data.input_key": "problem",
        "data.label_key": "answer",
        "data.apply_chat_template": True,
        "data.max_samples": STEPS * PROMPTS,
        "data.max_len": 400,
        "rollout.batch_size": PROMPTS,
        "rollout.n_samples_per_prompt": RESPONSES,
        "rollout.max_new_tokens": 320,
        "rollout.micro_batch_size": 32,
        "actor.model_name_or_path": str(POLICY),
        "actor.adam.lr": "3e-4",
        "actor.lr_scheduler": "constant",
        "train.batch_size": PROMPTS * RESPONSES,
        "train.micro_batch_size": 32,
        "train.full_determinism_enable": True,
    }


def train(*words):
    command = [sys.executable, "-m", "openrlhf_swap.train", *map(str, words)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1800)


def settings_of(file):
    """The method's and the run's settings, and OpenRLHF's, of a training from a file of flags."""
    config, run, told = parse_swap_arguments(with_recipe(["--config", str(file)]))
    stock = arguments_of_objective(with_folders(told, Path(run.output_dir)), config, on_cpu=True)
    return {**config.to_dict(), **run.to_dict()}, stock


def test_a_training_by_multiple_choice_from_a_file_whose_own_file_has_its_flags(tmp_path):
    rows = [choices(number, problem) for number, problem in zip(range(STEPS * PROMPTS), problems(7), strict=False)]
    write_rows(tmp_path / "choices.jsonl", rows)
    output = tmp_path / "run"
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump({"flags": flags(output)}))
    result = train("--config", recipe)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    metrics = list(read_rows(output / "metrics.jsonl"))
    assert [line["step"] for line in metrics] == [1, 2]
    # Nearly all sums of the embedded policy are right; a letter is read in each box that holds an option.
    assert all(line["swap/accuracy"] > 0.3 and line["swap/grader_error"] == 0 for line in metrics)
    labels = [Label.of(row["answer"]) for row in read_rows(output / "prompts.jsonl")]
    assert [(label.answer, label.metadata["options"]) for label in labels] == [
        (r["answer"], r["options"]) for r in rows
    ]

    card = (output / "policy" / "README.md").read_text(encoding="utf-8")
    assert "| graded by | `multiple_choice` |" in card and "trained with gr3" in card

    # Step for step, a start with the same flags equals the one before: tests/stack/test_faults.py.
    ours, stock = settings_of(output / "run.yaml")
    assert ours == json.loads((output / "swap_config.json").read_text())["swap"]
    assert stock == settings_of(recipe)[1]

"""A training from a file of flags with another verifier than math-verify."""

import pytest
import yaml
from addition import problems
from support.paths import POLICY
from support.scripts import python

from openrlhf_swap.files import read_rows, write_rows
from openrlhf_swap.flags.configuration import configure
from openrlhf_swap.rewards.verifiers import Reference

pytestmark = pytest.mark.slow
STEPS, PROMPTS, RESPONSES = 2, 8, 4


def choices(number, problem):
    """An addition as multiple choice. The policy boxes a sum, which is an option's text, and never
    a letter.
    """
    options = [str(int(problem.answer) + off - number % 4) for off in range(4)]
    return {"problem": problem.question, "answer": "ABCD"[number % 4], "options": options}


def flags(folder):
    """What stands in the file. gr3 rewards short answers and reads none: no letter has to be likely
    in a thought.
    """
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
    result = python("-m", "openrlhf_swap.train", *words)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]


def test_a_training_by_multiple_choice_from_a_file(tmp_path):
    rows = [
        choices(number, problem)
        for number, problem in zip(range(STEPS * PROMPTS), problems(7), strict=False)
    ]
    write_rows(tmp_path / "choices.jsonl", rows)
    first = tmp_path / "first"
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump({"flags": flags(first)}))
    train("--config", recipe)
    metrics = list(read_rows(first / "metrics.jsonl"))
    assert [line["step"] for line in metrics] == [1, 2]
    # Nearly all sums of the embedded policy are right; a letter is read in each box that holds an
    # option.
    assert all(line["swap/accuracy"] > 0.3 and line["swap/grader_error"] == 0 for line in metrics)
    labels = [Reference.parse(row["answer"]) for row in read_rows(first / "prompts.jsonl")]
    expected = [(row["answer"], row["options"]) for row in rows]
    assert [(label.answer, label.metadata["options"]) for label in labels] == expected

    card = (first / "policy" / "README.md").read_text(encoding="utf-8")
    assert "| graded by | `multiple_choice` |" in card and "trained with gr3" in card

    # The file that the run wrote has the run's settings.
    again = configure(["--config", str(first / "run.yaml")], on_cpu=True)
    given = configure(["--config", str(recipe)], on_cpu=True)
    assert again.method == given.method and again.run == given.run
    assert again.values["train.batch_size"] == PROMPTS * RESPONSES

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
    """An addition as multiple choice. The policy boxes a sum, an option's text, and no letter."""
    options = [str(int(problem.answer) + off - number % 4) for off in range(4)]
    return {"problem": problem.question, "answer": "ABCD"[number % 4], "options": options}


def flags(folder):
    """What stands in the file. gr3 rewards short answers and reads none: no letter has to be likely
    in a thought.
    """
    names = {"grader": "multiple_choice", "objective": "gr3", "output_dir": str(folder)}
    data = {"prompt_dataset": str(folder.parent / "choices.jsonl"), "max_len": 400}
    data |= {"input_key": "problem", "label_key": "answer", "apply_chat_template": True}
    rollout = {"batch_size": PROMPTS, "n_samples_per_prompt": RESPONSES, "max_new_tokens": 320}
    training = {"batch_size": PROMPTS * RESPONSES, "full_determinism_enable": True}
    saved = {"output_dir": str(folder / "policy"), "path": str(folder / "checkpoints")}
    rooms = {
        "swap": names,
        "ckpt": saved,
        "data": {**data, "max_samples": STEPS * PROMPTS},
        "rollout": {**rollout, "micro_batch_size": 32},
        "train": {**training, "micro_batch_size": 32},
        "actor": {"model_name_or_path": str(POLICY), "lr_scheduler": "constant"},
    }
    found = {f"{room}.{name}": value for room, own in rooms.items() for name, value in own.items()}
    return {**found, "actor.adam.lr": "3e-4"}


def train(*words):
    result = python("-m", "openrlhf_swap.train", *words)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]


def test_a_training_by_multiple_choice_from_a_file(tmp_path):
    drawn = zip(range(STEPS * PROMPTS), problems(7), strict=False)
    rows = [choices(number, problem) for number, problem in drawn]
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

    # The file that the run wrote has the run's settings, and the marks that it has found.
    again = configure(["--config", str(first / "run.yaml")], on_cpu=True)
    given = configure(["--config", str(recipe)], on_cpu=True)
    names = ("start_of_thought", "end_of_thought", "close_template")
    marks = {name: getattr(again.method, name) for name in names}
    assert marks["end_of_thought"] == "</think>"
    assert again.method == given.method.replaced(**marks) and again.run == given.run
    assert again.values["train.batch_size"] == PROMPTS * RESPONSES

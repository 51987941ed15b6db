"""Supervised fine-tuning resumes from checkpoints of its own only."""

import pytest
from support.paths import POLICY

from openrlhf_swap.errors import ConfigError
from openrlhf_swap.sft import refuse_another_training


@pytest.fixture
def given(tmp_path):
    """The flags of a training on one row, whose checkpoints go to a new folder."""
    (tmp_path / "a.jsonl").write_text('{"input": "1", "output": "2"}\n')
    return {
        "--model.model_name_or_path": str(POLICY),
        "--data.dataset": str(tmp_path / "a.jsonl"),
        "--ckpt.path": str(tmp_path / "run" / "checkpoints"),
        "--adam.lr": 1e-5,
        "--train.batch_size": 64,
    }


@pytest.fixture
def begun(given, tmp_path):
    """The same, when there is a checkpoint."""
    refuse_another_training(given)
    (tmp_path / "run" / "checkpoints" / "global_step1").mkdir(parents=True)
    return given


def test_the_same_training_goes_on(begun, monkeypatch):
    refuse_another_training(begun)
    monkeypatch.setenv("RANK", "3")
    refuse_another_training(begun)


@pytest.mark.parametrize(
    ("flag", "value"),
    [("--model.model_name_or_path", "Qwen/Qwen2.5-0.5B"), ("--adam.lr", 2e-5), ("--train.batch_size", 8)],
)
def test_another_one_does_not(begun, flag, value):
    with pytest.raises(
        ConfigError, match=rf"^{flag} is .*{value}.*, but the checkpoints in .*run/checkpoints were made"
    ):
        refuse_another_training({**begun, flag: value})


def test_nor_does_one_on_other_rows(begun, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"input": "1", "output": "3"}\n')
    rows = r".*a\.jsonl \(SHA-256 \w{8}\)"
    with pytest.raises(ConfigError, match=rf"^--data\.dataset is {rows}, but the checkpoints in .* with {rows}; use"):
        refuse_another_training(begun)


def test_before_the_first_checkpoint_anything_may_change(given):
    refuse_another_training(given)
    changed = {**given, "--adam.lr": 2e-5}
    refuse_another_training(changed)
    refuse_another_training(changed)


def test_checkpoints_of_an_earlier_version_are_resumed_with_a_note(begun, tmp_path, capsys):
    (tmp_path / "run" / "checkpoints.settings.json").unlink()
    refuse_another_training(begun)
    assert capsys.readouterr().out.startswith("note: ")

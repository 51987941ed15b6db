"""What makes a finished run the same run."""

import shutil

import pytest
from support.command_lines import GOOD, rows_file
from support.paths import POLICY

from openrlhf_swap.errors import ConfigError
from openrlhf_swap.flags.configuration import configure
from openrlhf_swap.recipes import as_words
from openrlhf_swap.runs.record import (
    TrackedRun,
    is_finished,
    mark_finished,
    tracked_run,
    write_record,
)

ROWS = [{"problem": "What is 1 + 1?", "answer": "2"}]


@pytest.fixture
def finished(tmp_path):
    """A function that configures a run in a folder, whose first configuration has finished."""
    model = shutil.copytree(POLICY, tmp_path / "model")
    rows = rows_file(tmp_path / "rows.jsonl", ROWS)

    def configured(**flags):
        given = {flag.removeprefix("--"): value for flag, value in GOOD.items()}
        given |= {"swap.output_dir": tmp_path / "out", "ckpt.load_enable": True}
        given |= {"data.prompt_dataset": rows, "actor.model_name_or_path": model}
        return configure(as_words(given | flags))

    first = configured()
    write_record(first, [], TrackedRun("name", "id"), starts=[])
    mark_finished(first)
    return configured


def test_a_finished_run_has_the_same_settings_model_and_data(finished, tmp_path):
    assert is_finished(finished())
    assert not is_finished(finished(**{"rollout.temperature": 0.7}))


@pytest.mark.parametrize("name", ["rows.jsonl", "model"])
def test_a_run_is_not_finished_with_another_model_or_other_data(finished, tmp_path, name):
    changed = tmp_path / name
    file = changed / "model.safetensors" if changed.is_dir() else changed
    file.write_bytes(file.read_bytes() + b"\n")
    with pytest.raises(ConfigError, match=f"^{changed} has changed, but --swap.output_dir"):
        is_finished(finished())
    checkpoint = tmp_path / "out" / "checkpoints" / "_actor" / "global_step1"
    checkpoint.mkdir(parents=True)
    (checkpoint / "random_state_0.pt").write_bytes(b"x")
    assert not is_finished(finished())  # the checkpoint's own check refuses or trains on


def test_runs_of_one_minute_have_names_of_their_own_and_a_resumed_one_keeps_its_name(finished):
    new = finished(**{"ckpt.load_enable": False})
    assert tracked_run(new).run_name != tracked_run(new).run_name
    assert tracked_run(finished()) == TrackedRun("name", "id")
    named = finished(**{"ckpt.load_enable": False, "logger.wandb.run_name": "mine"})
    assert tracked_run(named).run_name == "mine"

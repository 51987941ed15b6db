"""A checkpoint is resumed from with what the run was started with, and with nothing else."""

import re
import shutil

import pytest
from support.command_lines import GOOD, rows_file
from support.paths import POLICY

from openrlhf_swap.errors import CheckpointError, ConfigError
from openrlhf_swap.flags.configuration import configure
from openrlhf_swap.integration.startup.checkpoint import choose_checkpoint
from openrlhf_swap.integration.startup.data import TRAINED_ON, write_data
from openrlhf_swap.integration.startup.model import read_policy
from openrlhf_swap.objectives.registry import build
from openrlhf_swap.recipes import as_words
from openrlhf_swap.runs import checkpoints

ROWS = [{"problem": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(100, 140)]


def run_of(folder, rows, **flags):
    given = {flag.removeprefix("--"): value for flag, value in GOOD.items()}
    given |= {"swap.objective": "grpo", "swap.output_dir": folder, "data.prompt_dataset": rows}
    given |= {"data.apply_chat_template": True, "ckpt.load_enable": True}
    return configure(as_words(given | flags))


def begin(run):
    """Begin a run as its start does, up to its data; returns the chosen checkpoint."""
    chosen = choose_checkpoint(run)
    data = write_data(run, build(run.method), read_policy(run).tokenizer)
    chosen.with_setting(TRAINED_ON, data.trained_on).write()
    return chosen


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """The folder of a run of forty prompts that was started, and has written a checkpoint."""
    folder = tmp_path_factory.mktemp("first")
    begin(run_of(folder, rows_file(folder / "rows.jsonl", ROWS)))
    checkpoint = folder / "checkpoints" / "_actor" / f"{checkpoints.UNFINISHED}global_step2"
    checkpoint.mkdir(parents=True)
    (checkpoint / "states.pt").write_bytes(b"x")
    checkpoints.finish(checkpoint)
    return folder


@pytest.fixture
def start(tmp_path, first):
    """Starts the run again from a copy of its checkpoint, with other rows or flags."""
    shutil.copytree(first / "checkpoints", tmp_path / "checkpoints")

    def start(rows=None, **flags):
        if rows is None:
            return choose_checkpoint(run_of(tmp_path, first / "rows.jsonl", **flags))
        return begin(run_of(tmp_path, rows_file(tmp_path / "other.jsonl", rows), **flags))

    return start


def test_another_path_to_the_same_model_and_rows_is_no_difference(tmp_path, start):
    shutil.copytree(POLICY, tmp_path / "moved")
    chosen = start(ROWS, **{"actor.model_name_or_path": tmp_path / "moved"})
    expected = f"resuming from checkpoint global_step2 in {tmp_path / 'checkpoints'}"
    assert chosen.messages == (expected,)


@pytest.mark.parametrize("written", ["[]", "{", '"x"'])
def test_a_broken_record_of_the_settings_is_one_line(start, tmp_path, written):
    (tmp_path / "checkpoints" / checkpoints.ORIGIN).write_text(written)
    with pytest.raises(CheckpointError, match=r"origin.json cannot be read \(.*; delete it to"):
        start()


@pytest.mark.parametrize(
    ("flag", "value", "message"),
    [
        ("swap.objective", "laser_d", r"is 'laser_d', but .* written with 'grpo'; resume with"),
        ("actor.num_nodes", 2, r"x --actor\.num_gpus_per_node is 2, but .* written with 1"),
        ("ds.lora.rank", 8, r"is 8, but .* written with 0; resume with that, or start a new run"),
        ("rollout.batch_size", 32, r"is 32, but .* written with \d+; resume with that"),
        ("ds.zero_stage", 3, r"is 3, but .* written with 2; resume with that"),
    ],
)
def test_a_checkpoint_of_other_settings_is_refused(start, flag, value, message):
    with pytest.raises(ConfigError, match=f"^--{re.escape(flag)} {message}"):
        start(**{flag: value})


@pytest.mark.parametrize(
    "change",
    [
        lambda rows: [*rows, rows[0]],
        lambda rows: rows[::-1],
        lambda rows: [{**rows[0], "answer": "7"}, *rows[1:]],
    ],
    ids=["one more", "another order", "another answer"],
)
def test_a_position_in_the_data_is_not_taken_for_one_in_other_data(tmp_path, first, start, change):
    written = rf"was written with {first}/rows\.jsonl \(SHA-256 "
    refused = rf"^--data\.prompt_dataset is {tmp_path}/other\.jsonl \(SHA-256 .*{written}"
    with pytest.raises(ConfigError, match=refused):
        start(change(ROWS))

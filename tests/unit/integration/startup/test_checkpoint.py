"""A checkpoint is resumed from with what the run was started with, and with nothing else."""

import json
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
        ("rollout.n_samples_per_prompt", 32, r"is 32, but .* written with \d+; resume with that"),
        ("train.max_epochs", 2, r"is 2, but .* written with 1; resume with that"),
        ("ds.lora.alpha", 8, r"is 8, but .* written with 16; resume with that"),
    ],
)
def test_a_checkpoint_of_other_settings_is_refused(start, flag, value, message):
    with pytest.raises(ConfigError, match=f"^--{re.escape(flag)} {message}"):
        start(**{flag: value})


def test_a_model_with_another_template_is_refused(tmp_path, start):
    shutil.copytree(POLICY, tmp_path / "other")
    (tmp_path / "other" / "chat_template.jinja").write_text("{{ messages[0].content }}")
    expected = r"^--actor.model_name_or_path is .*written with .* \(another chat_template.jinja\);"
    with pytest.raises(ConfigError, match=expected):
        start(**{"actor.model_name_or_path": tmp_path / "other"})


CHANGES = {
    "swap.process_weight": ("0.3", 0.9),
    "rollout.temperature": ("0.6", 0.7),
    "actor.lr_scheduler": ("'constant'", "cosine"),
    "train.seed": ("42", 7),
    "swap.grader": (r"math \(SHA-256 .*\)", "multiple_choice"),
}


@pytest.mark.parametrize("flag", CHANGES)
def test_a_setting_that_may_change_is_told_with_both_values(start, flag):
    before, now = CHANGES[flag]
    told = start(**{flag: now}).messages
    assert len(told) == 2
    assert re.match(f"other than in global_step2: --{flag} {before} -> .*{now}", told[1])


def test_the_settings_of_each_start_are_kept_with_its_steps(tmp_path, start):
    start(ROWS)  # nothing changed
    warmer = start(ROWS, **{"rollout.temperature": 0.7})
    origin = tmp_path / "checkpoints" / checkpoints.ORIGIN
    starts = json.loads(origin.read_text())["starts"]
    assert [kept["after_step"] for kept in starts] == [0, 2]
    temperatures = [kept["settings"]["--rollout.temperature"] for kept in starts]
    assert temperatures == [0.6, 0.7]
    assert "--rollout.temperature 0.6 -> 0.7" in warmer.messages[1]
    # This start wrote no checkpoint: the next one compares with the first again.
    assert len(start(**{"rollout.temperature": 0.6}).messages) == 1


@pytest.mark.parametrize("content", [None, "{}"])
def test_a_missing_record_of_the_settings_is_told(tmp_path, start, content):
    origin = tmp_path / "checkpoints" / checkpoints.ORIGIN
    origin.unlink()
    if content is not None:
        origin.write_text(content)
    assert start().messages[-1] == f"{origin} is missing: no settings are compared"


def test_an_earlier_version_recorded_the_settings_of_one_start(tmp_path, start):
    origin = tmp_path / "checkpoints" / checkpoints.ORIGIN
    origin.write_text(json.dumps({"--swap.objective": "grpo", "--ds.lora.rank": 0}))
    assert len(start().messages) == 1
    origin.write_text(json.dumps({"--swap.objective": "laser_d"}))
    with pytest.raises(ConfigError, match=r"^--swap\.objective is 'grpo', but"):
        start()


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

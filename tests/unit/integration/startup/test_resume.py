"""A checkpoint is resumed from with what the run was started with, and with nothing else."""

import copy
import json
import shutil
from pathlib import Path

import pytest
from support.command_lines import rows_file
from support.paths import POLICY

from openrlhf_swap.config import RunConfig, SwapConfig
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.integration.startup.preflight import choose_checkpoint, resolve_run
from openrlhf_swap.runs import checkpoints

ROWS = [{"problem": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(100, 140)]


def start(args, folder):
    resolve_run(args, SwapConfig(objective="grpo"), RunConfig(output_dir=str(folder / "out")))


def write(path, tag, file="states.pt"):
    folder = path / "_actor" / tag
    checkpoints.begin(folder)
    (folder / file).write_bytes(b"x")
    checkpoints.seal(folder, "grpo", 1, 2)


@pytest.fixture(scope="module")
def first_start(tmp_path_factory, arguments):
    """A run of forty prompts that was started, and has written a checkpoint: its arguments."""
    folder = tmp_path_factory.mktemp("first")
    args = copy.deepcopy(arguments)
    args.rollout.max_new_tokens = 320
    args.data.prompt_dataset = rows_file(folder / "rows.jsonl", ROWS)
    args.data.input_key, args.data.label_key, args.data.apply_chat_template = "problem", "answer", True
    args.ckpt.path, args.ckpt.load_enable = str(folder / "checkpoints"), True
    start(args, folder)
    write(folder / "checkpoints", "global_step2")
    return args


@pytest.fixture
def args(tmp_path, first_start):
    """Its arguments again, with a copy of its checkpoint."""
    args = copy.deepcopy(first_start)
    args.ckpt.path = str(tmp_path / "checkpoints")
    shutil.copytree(first_start.ckpt.path, args.ckpt.path)
    return args


def test_another_path_to_the_same_model_and_prompts_is_no_difference(capsys, tmp_path, args):
    shutil.copytree(POLICY, tmp_path / "moved")
    args.actor.model_name_or_path = str(tmp_path / "moved")
    corrected = [{**ROWS[0], "answer": "$7$"}, *ROWS[1:]]  # which leaves the position where it was
    args.data.prompt_dataset = rows_file(tmp_path / "other.jsonl", corrected)
    start(args, tmp_path)
    assert f"resuming from checkpoint global_step2 in {args.ckpt.path}" in capsys.readouterr().out


def test_a_checkpoint_of_another_model_is_not_loaded_over_the_one_that_is_named(tmp_path, args):
    shutil.copytree(POLICY, tmp_path / "other")
    with open(tmp_path / "other" / "model.safetensors", "ab") as weights:
        weights.write(b" ")
    for model in (str(tmp_path / "other"), "Qwen/Qwen2.5-Math-7B"):
        args.actor.model_name_or_path = model
        with pytest.raises(ConfigError) as refused:
            choose_checkpoint(args, "grpo")
        line = str(refused.value)
        assert line.startswith(f"--actor.model_name_or_path is {model}")
        assert f", but the checkpoint in {args.ckpt.path} was written with {POLICY} (SHA-256 " in line
        assert line.endswith("or start a new run (another --ckpt.path and --swap.output_dir) with this one")


def test_a_checkpoint_of_another_hub_model_is_told_by_its_name(args):
    seal = Path(args.ckpt.path) / "_actor" / "global_step2" / "complete.json"
    content = json.loads(seal.read_text())
    content["origin"]["model"] = {"name": "Qwen/Qwen2.5-Math-1.5B", "weights": None}
    seal.write_text(json.dumps(content))
    args.actor.model_name_or_path = "Qwen/Qwen2.5-Math-1.5B"
    choose_checkpoint(args, "grpo")
    args.actor.model_name_or_path = "Qwen/Qwen2.5-Math-7B"
    with pytest.raises(ConfigError, match=r"is Qwen/Qwen2\.5-Math-7B, but .* with Qwen/Qwen2\.5-Math-1\.5B; resume"):
        choose_checkpoint(args, "grpo")


def test_a_checkpoint_of_another_lora_rank_is_refused(args):
    args.ds.lora.rank = 8
    with pytest.raises(ConfigError, match=r"^--ds\.lora\.rank is 8, but .* written with 0; resume with 0, or start"):
        choose_checkpoint(args, "grpo")


def test_a_moving_average_is_neither_dropped_nor_begun_anew(args):
    args.train.enable_ema = True
    with pytest.raises(ConfigError, match=r"^--train\.enable_ema is given, but .* without it; leave it out, or"):
        choose_checkpoint(args, "grpo")
    write(Path(args.ckpt.path), "global_step4", "moving_average.pt")
    choose_checkpoint(args, "grpo")
    args.train.enable_ema = False
    with pytest.raises(ConfigError, match=r"^--train\.enable_ema is not given, but .* written with it; give it, or"):
        choose_checkpoint(args, "grpo")


@pytest.mark.parametrize("change", [lambda rows: [*rows, rows[0]], lambda rows: rows[::-1]])
def test_a_position_in_the_data_is_not_taken_for_one_in_other_data(tmp_path, args, change):
    before, others = args.data.prompt_dataset, change(ROWS)
    args.data.prompt_dataset = rows_file(tmp_path / "other.jsonl", others)
    with pytest.raises(ConfigError) as refused:
        start(args, tmp_path)
    line = str(refused.value)
    assert line.startswith(f"--data.prompt_dataset is {tmp_path}/other.jsonl ({len(others)} usable prompts, ")
    assert f"was written with {before} (40 usable prompts, " in line
    assert line.endswith("from the exported policy (--actor.model_name_or_path)")

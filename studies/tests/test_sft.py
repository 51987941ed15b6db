"""The launcher of supervised fine-tuning."""

import shlex

import pytest
from support.scripts import bash

from openrlhf_swap.flags.stock import nested, stock_parser

SCRIPT = "studies/sft/train_sft_deepspeed.sh"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "MODEL is not set; use"),
        ("MODEL=m DATA=d NUM_GPUS=3", "BATCH_SIZE is 64; use a multiple"),
    ],
)
def test_a_bad_variable_gives_one_line(words, message):
    result = bash(SCRIPT, **dict(word.split("=") for word in words.split()))
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(f"error: {message}") and result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("visible", "gpus", "slots"),
    [("", "8", None), ("4,5,6,7", "4", [4, 5, 6, 7]), ("2, 6,7", "2", [2, 6])],
)
def test_supervised_training_is_launched_with_flags_that_exist(visible, gpus, slots):
    """DeepSpeed's launcher drops CUDA_VISIBLE_DEVICES next to --num_gpus."""
    from deepspeed.launcher.runner import parse_args, parse_inclusion_exclusion

    variables = {"MODEL": "some/model", "DATA": "rows.jsonl", "OUTPUT": "elsewhere", "EPOCHS": "2"}
    variables |= {"LEARNING_RATE": "3e-6", "MICRO_BATCH": "2", "MASTER_PORT": "29501"}
    variables |= {"PROFILE": "gpu", "NUM_GPUS": gpus, "CUDA_VISIBLE_DEVICES": visible}
    output = bash(SCRIPT, "--dry-run", "--train.seed", "3", **variables).stdout
    launcher, *words = shlex.split(output)
    launch = parse_args(words)
    assert (launcher, launch.module, launch.user_script) == ("deepspeed", True, "studies.sft.train")
    assert (launch.num_gpus, launch.master_port) == (-1 if slots else 8, 29501)
    if slots:  # the launcher takes only one of the two
        found = parse_inclusion_exclusion({"localhost": 8}, launch.include, launch.exclude)
        assert found == {"localhost": slots}
    args = nested(vars(stock_parser("train_sft").parse_args(launch.user_args)))
    assert (args.model.model_name_or_path, args.data.dataset) == ("some/model", "rows.jsonl")
    keys = (args.data.input_key, args.data.output_key, args.data.input_template)
    assert keys == ("input", "output", "{}")
    assert (args.train.batch_size, args.train.micro_batch_size, args.train.max_epochs) == (64, 2, 2)
    assert (args.adam.lr, args.train.seed, args.ckpt.output_dir) == (3e-6, 3, "elsewhere")
    assert args.ckpt.load_enable

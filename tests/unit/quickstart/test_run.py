"""What the quickstart trains with, and the numbers of its summary."""

import pytest
from support.paths import ROOT

from openrlhf_swap.flags.configuration import configure
from openrlhf_swap.quickstart.run import SETTINGS, seconds_a_phase, training_command
from openrlhf_swap.recipes import read_file
from openrlhf_swap.runs.metrics import STEP_PHASES

# What the laptop's preset names, and the quickstart's own flags, or defaults, have.
NAMED = {"swap.output_dir", "actor.model_name_or_path", "data.prompt_dataset"}
NAMED |= {"ckpt.save_steps", "ckpt.load_enable"}


def test_the_quickstart_trains_as_the_preset_for_a_laptop():
    preset = read_file(ROOT / "scripts" / "train_swap_laptop.yaml").flags
    assert read_file(SETTINGS).flags == {
        name: value for name, value in preset.items() if name not in NAMED
    }


def test_its_command_can_be_parsed(tmp_path):
    command = training_command(tmp_path / "policy", tmp_path, 3, 7, "own_bill")
    args = configure(command[command.index("train") + 1 :], on_cpu=True).args
    assert args.actor.model_name_or_path == str(tmp_path / "policy")
    assert args.data.max_samples == 48
    assert args.train.seed == 7
    assert args.ckpt.load_enable is False


def test_seconds_leave_out_the_step_that_warms_up():
    first = dict.fromkeys(STEP_PHASES.values(), 9.0)
    others = [dict.fromkeys(STEP_PHASES.values(), seconds) for seconds in (1.0, 2.0)]
    assert seconds_a_phase([first, *others])["total"] == pytest.approx(1.5)
    assert seconds_a_phase([first])["total"] == 9.0

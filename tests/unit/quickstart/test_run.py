"""What the quickstart trains with, and the numbers of its summary."""

import pytest
from support.paths import ROOT

from openrlhf_swap.errors import ConfigError
from openrlhf_swap.flags.configuration import configure
from openrlhf_swap.process.locks import locked
from openrlhf_swap.quickstart import run
from openrlhf_swap.quickstart.run import SETTINGS, claim, seconds_a_phase, training_command
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


def test_a_users_folder_is_refused_and_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "train_and_compare", lambda args: pytest.fail("it began"))
    thesis = tmp_path / "mine" / "train" / "thesis.txt"
    thesis.parent.mkdir(parents=True)
    thesis.write_text("x")
    with pytest.raises(ConfigError, match=r"^--output is .*mine, which holds train and no made_by"):
        run.main(["--output", str(tmp_path / "mine")])
    assert thesis.read_text() == "x"
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["train"]


def test_a_quickstarts_folder_is_taken_again_but_not_while_it_is_under_way(tmp_path, monkeypatch):
    begun = []
    monkeypatch.setattr(run, "train_and_compare", begun.append)
    output = tmp_path / "new"
    for _ in range(2):
        run.main(["--output", str(output)])
        (output / "train").mkdir(exist_ok=True)
    assert len(begun) == 2
    with locked({"--output": output}), pytest.raises(ConfigError, match="another run is under way"):
        run.main(["--output", str(output)])
    claim(output)

"""The launcher, with small programs in the place of training and evaluation."""

import json
import sys

import pytest

from openrlhf_swap import sweep
from openrlhf_swap.command import run_command
from openrlhf_swap.flags import parse_swap_arguments
from openrlhf_swap.objectives.registry import METHODS

TRAIN = f"""{sys.executable} -c "
import pathlib, sys
folder = pathlib.Path('{{output}}')
with open(folder / 'runs', 'a') as file: file.write('x')
(folder / 'value').write_text(sys.argv[-1])
sys.exit('seed_2' in str(folder) and sys.argv[-1] == '3')" """
EVALUATE = f"""{sys.executable} -c "
import json, pathlib
folder = pathlib.Path('{{output}}')
json.dump({{'value': float((folder / 'value').read_text()) + {{seed}}}}, open(folder / 'result.json', 'w'))" """


def run(tmp_path, *extra):
    configurations = tmp_path / "configurations.json"
    configurations.write_text(json.dumps([{"name": f"x={x}", "train": ["--x", str(x)]} for x in (2, 3)]))
    flags = ["--configurations", str(configurations), "--output", str(tmp_path / "sweep"), "--seeds", "1", "2"]
    return run_command(sweep.main, [*flags, "--train", TRAIN, "--evaluate", EVALUATE, *extra])


def test_a_failed_evaluation_does_not_repeat_the_training(tmp_path, capsys):
    flags = ["--only", "x=2", "--seeds", "1"]
    assert run(tmp_path, *flags, "--evaluate", "false") == 1
    assert "evaluate failed with status 1" in capsys.readouterr().out
    assert run(tmp_path, *flags) == 0
    assert (tmp_path / "sweep" / "x_2" / "seed_1" / "runs").read_text() == "x"
    # A later call for another configuration keeps what is there in the table.
    assert run(tmp_path, "--only", "x=3", "--seeds", "1") == 0
    table = (tmp_path / "sweep" / "table.md").read_text().splitlines()
    assert [row.split(" | ")[0] for row in table[2:]] == ["| x=2", "| x=3"]


def test_an_unknown_configuration_is_named(tmp_path, capsys):
    assert run(tmp_path, "--only", "x=2", "x=7") == 2
    assert capsys.readouterr().err == "error: --only has x=7; use some of x=2 x=3\n"


def test_a_sweep_runs_everything_once_and_makes_a_table(tmp_path, capsys):
    assert run(tmp_path, "--only", "x=2") == 0
    # x=3, seed 2 fails: reported, the rest is done, and it is the only one that runs again.
    assert run(tmp_path) == 1
    assert "train failed with status 1" in capsys.readouterr().out
    assert run(tmp_path) == 1
    runs = {path.parent.parent.name + path.parent.name: path.read_text() for path in tmp_path.rglob("runs")}
    assert runs == {"x_2seed_1": "x", "x_2seed_2": "x", "x_3seed_1": "x", "x_3seed_2": "xx"}
    # Values 2 + seed over seeds 1 and 2: mean 3.5, deviation .707.
    table = (tmp_path / "sweep" / "table.md").read_text().splitlines()
    assert set(table[1]) == set("|-")
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in (table[0], *table[2:])]
    assert rows == [["", "seeds", "value"], ["x=2", "2", "3.50 ± 0.71"], ["x=3", "1", "4.00"]]


@pytest.mark.parametrize("preset", sweep.PRESETS)
def test_presets_are_valid_settings(preset):
    for configuration in sweep.PRESETS[preset]:
        parse_swap_arguments(list(configuration.train))


def test_a_preset_of_methods_takes_their_rows_from_the_file(tmp_path, capsys):
    """One row of the file is of the preset: it runs with its flags, the others with nothing but their name."""
    rows = [{"name": "laser_d", "train": ["--swap.objective", "laser_d", "5"]}, {"name": "grpo", "train": ["7"]}]
    file = tmp_path / "rows.json"
    file.write_text(json.dumps(rows))
    flags = ["--preset", "paper", "--output", str(tmp_path / "sweep"), "--evaluate", EVALUATE]
    assert run_command(sweep.main, [*flags, "--configurations", str(file), "--train", TRAIN]) == 1
    words = {path.parent.parent.name: path.read_text() for path in tmp_path.rglob("value")}
    assert words == {name: name for name in words} | {"laser_d": "5"}
    assert set(words) == {row.name for row in sweep.PRESETS["paper"]}
    assert capsys.readouterr().out.count("evaluate failed") == 5  # their value is no number


def test_methods_of_the_presets_are_those_there_are():
    assert [row.name for row in sweep.PRESETS["all"]] == list(METHODS)
    assert sweep.PRESETS["step_signal"][0].train == ("--swap.objective", "swap")


def test_one_of_both_lists_is_needed(tmp_path, capsys):
    flags = ["--output", str(tmp_path), "--train", "true", "--evaluate", "true"]
    assert run_command(sweep.main, flags) == 2
    assert capsys.readouterr().err.startswith("error: --preset and --configurations are missing; give one")


def test_unreadable_configurations_are_one_line(tmp_path, capsys):
    path = tmp_path / "c.json"
    path.write_text('[{"train": []}]')
    flags = ["--configurations", str(path), "--output", str(tmp_path), "--train", "true", "--evaluate", "true"]
    assert run_command(sweep.main, flags) == 2
    assert capsys.readouterr().err.startswith(f"error: --configurations is {path}, which cannot be read")

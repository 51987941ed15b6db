"""The launcher of sweeps."""

import json
import runpy
from itertools import chain

from support.paths import ROOT

from openrlhf_swap.command import run_command
from openrlhf_swap.files import write_text
from openrlhf_swap.flags.configuration import configure
from studies.comparison import run_sweep
from studies.tests.tables import cells_of

METHODS = runpy.run_path(str(ROOT / "docs" / "make_recipes.py"))["METHODS"]


def test_every_row_of_a_preset_names_its_objective():
    assert tuple(run_sweep.PRESETS["paper"]) == METHODS
    for name, row in chain.from_iterable(rows.items() for rows in run_sweep.PRESETS.values()):
        assert configure(row["train"], on_cpu=True).method.objective == name


TRAIN = """bash -c "printf x >> {output}/runs; [[ {output} != *x_3/seed_2 ]]" """
VALUE = r"printf '{\"value\": %d}' $((2 + {seed}))"
EVALUATE = f'bash -c "{VALUE} > {{output}}/result.json"'


def test_a_sweep_runs_everything_once_and_makes_a_table(tmp_path, capsys):
    rows = [{"name": f"x={x}", "train": ["--x", str(x)]} for x in (2, 3)]
    write_text(tmp_path / "rows.json", json.dumps(rows))
    words = ["--configurations", str(tmp_path / "rows.json"), "--output", str(tmp_path / "sweep")]
    words += ["--seeds", "1", "2", "--train", TRAIN, "--evaluate", EVALUATE]
    assert run_command(run_sweep.main, [*words, "--only", "x=2", "--evaluate", "false"]) == 1
    assert "evaluate failed with status 1" in capsys.readouterr().out
    for _ in range(2):  # x=3, seed 2 fails: the rest is done, and it is the only one to run again
        assert run_command(run_sweep.main, words) == 1
    runs = {path.parent.parent.name + path.parent.name: path for path in tmp_path.rglob("runs")}
    assert {name: path.read_text() for name, path in runs.items()} == {
        "x_2seed_1": "x",
        "x_2seed_2": "x",
        "x_3seed_1": "x",
        "x_3seed_2": "xx",
    }
    # Values 2 + seed over seeds 1 and 2: mean 3.5, deviation .707.
    table = cells_of((tmp_path / "sweep" / "table.md").read_text())
    assert table == [["", "seeds", "value"], ["x=2", "2", "3.500 ± 0.707"], ["x=3", "1", "3.000"]]

"""The help of every command and script: complete, without starting work, true of a wheel."""

import re
from importlib import import_module

import pytest
from support.paths import ROOT
from support.scripts import bash

from openrlhf_swap import train
from openrlhf_swap.__main__ import COMMANDS
from openrlhf_swap.command import run_command
from openrlhf_swap.config import RunConfig, SwapConfig
from openrlhf_swap.flags.stock import stock_parser
from openrlhf_swap.objectives.registry import OBJECTIVES, objective_class
from openrlhf_swap.objectives.table import SUMMARIES

SCRIPTS = [
    path
    for folder in ("scripts", "evaluation", "studies")
    for path in sorted((ROOT / folder).rglob("*.*"))
    if path.suffix in (".sh", ".sbatch") and path.name != "common.sh"  # which is sourced
]
FILE_OF_THE_CHECKOUT = re.compile(r"\b(docs|studies|examples|scripts)/\w+\.(md|py)")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_prints_its_comment(script, tmp_path):
    no_environment = {"VENV": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""}
    for word in ("--help", "-h"):
        shown = bash(script, word, **no_environment)
        assert shown.returncode == 0, shown.stderr
        assert not shown.stderr
        first = script.read_text(encoding="utf-8").splitlines()[1]
        assert shown.stdout.startswith(first.removeprefix("# "))
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_explains_itself(command, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    main = import_module(COMMANDS[command]).main
    try:
        assert run_command(main, ["--help"]) == 0
    except SystemExit as ended:
        assert not ended.code
    shown = capsys.readouterr().out
    assert f"usage: openrlhf-swap {command} " in shown
    assert not FILE_OF_THE_CHECKOUT.search(shown.partition("options:")[2])
    assert str(ROOT) not in shown
    assert not [*tmp_path.iterdir()]


def test_the_help_of_a_training_begins_with_our_flags(capsys):
    ours = [f"--swap.{name}" for kind in (SwapConfig, RunConfig) for name in kind.declared()]
    stock = [f"--{action.dest}" for action in stock_parser()._actions if action.dest != "help"]
    train.main(["--help"])
    short = capsys.readouterr().out
    assert len(short.splitlines()) < 250
    named = re.findall(r"^  (--[\w.]+)", short, re.MULTILINE)
    assert [flag for flag in named if flag.startswith("--swap.")] == ours
    common = [flag for flag in named if flag in stock]
    assert len(common) == 20
    assert named[-20:] == common

    train.main(["--help-all"])
    whole = capsys.readouterr().out
    assert whole.startswith(short)
    shown = set(re.findall(r"^  (--[\w.]+)", whole, re.MULTILINE))
    assert shown.issuperset([*ours, *stock])
    assert str(ROOT) not in whole


@pytest.mark.parametrize("name", ["lc_r1", "outcome_only"])
def test_the_help_of_an_objective_has_its_equation_and_settings(name, capsys):
    train.main(["--help", "--swap.objective", name])
    shown = capsys.readouterr().out
    objective = objective_class(name)
    assert objective.__doc__.splitlines()[0] in shown
    for setting in objective.Settings.declared():
        assert f"--swap.{name}.{setting} " in shown


def test_each_objective_has_one_line(capsys):
    assert set(SUMMARIES) == set(OBJECTIVES)
    train.main(["--list-objectives"])
    lines = capsys.readouterr().out.splitlines()
    for name, summary in SUMMARIES.items():
        assert f"  {name:18}{summary}" in lines
    assert max(map(len, lines)) <= 100

"""The launcher, with small programs instead of training and evaluation."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from itertools import accumulate

import psutil
import pytest

from openrlhf_swap import sweep
from openrlhf_swap.command import run_command
from openrlhf_swap.flags.swap import parse_swap_arguments
from openrlhf_swap.objectives.registry import OBJECTIVES

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

# Continues once as many have started as should run at once, so it ends only if they do run at once.
IN_PAIRS = f"""{sys.executable} -c "
import pathlib, time
log = pathlib.Path('{{sweep}}') / 'log'
with open(log, 'a') as file: file.write('+')
before = time.monotonic()
while log.read_text().count('+') < 2 and time.monotonic() < before + 60: time.sleep(0.01)
with open(log, 'a') as file: file.write('-')" """


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
    assert capsys.readouterr().err == "error: --only has x=7; use any of x=2 x=3\n"


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


def test_as_many_runs_at_once_as_requested(tmp_path):
    copy = f"cp {tmp_path / 'result'} {{output}}/result.json"
    (tmp_path / "result").write_text('{"value": 1}')
    assert run(tmp_path, "--parallel", "2", "--train", IN_PAIRS, "--evaluate", copy) == 0
    log = (tmp_path / "sweep" / "log").read_text()
    assert log.startswith("++") and sorted(log) == sorted("+-" * 4)
    assert max(accumulate(1 if mark == "+" else -1 for mark in log)) == 2


def test_a_program_that_is_not_there_is_named(tmp_path, capsys):
    assert run(tmp_path, "--only", "x=2", "--seeds", "1", "--train", "no_such_program") == 1
    reason = "error: no_such_program cannot be started (No such file or directory); check its name and PATH"
    assert f"[sweep] train failed with status 2: {reason}" in capsys.readouterr().out


def test_a_command_gets_every_word(tmp_path):
    run(tmp_path, "--only", "x=2", "--seeds", "1", "--prefix", "echo --", "--train", "a -h")
    log = (tmp_path / "sweep" / "x_2" / "seed_1" / "train.console.log").read_text()
    assert log == "echo -- a -h --x 2\n-- a -h --x 2\n"  # the command, and what it says


def test_less_than_one_run_at_once_is_refused(tmp_path, capsys):
    assert run(tmp_path, "--parallel", "0") == 2
    assert capsys.readouterr().err == "error: --parallel is 0; give the number of runs at once, at least 1\n"


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_after_its_end_no_run_goes_on_or_is_started(tmp_path, by):
    """Ctrl-C reaches all processes, other signals the sweep alone."""
    rows = tmp_path / "rows.json"
    rows.write_text(json.dumps([{"name": name} for name in "abcd"]))
    words = [sys.executable, "-m", "openrlhf_swap.sweep", "--configurations", str(rows), "--output", str(tmp_path)]
    commands = ["--train", "sh -c 'touch {output}/begun; sleep 60'", "--evaluate", "true", "--parallel", "2"]
    process = subprocess.Popen(
        [*words, *commands],
        start_new_session=True,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # background processes ignore it
    )
    try:
        deadline = time.monotonic() + 60
        while len(list(tmp_path.glob("*/seed_1/begun"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        running = psutil.Process(process.pid).children(recursive=True)
        assert len(running) >= 4  # two runs, each with its leash
        os.killpg(process.pid, by) if by == signal.SIGINT else process.send_signal(by)
        assert process.wait(30) != 0
        assert psutil.wait_procs(running, timeout=30)[1] == []
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["a", "b"]


def test_a_thread_that_sees_the_interruption_first_starts_no_further_run(tmp_path):
    """The main thread may be told later: here it never is."""
    rows = tmp_path / "rows.json"
    rows.write_text(json.dumps([{"name": name} for name in "abcd"]))
    words = ["--configurations", str(rows), "--output", str(tmp_path), "--train", "sh -c 'exit 130'"]
    with pytest.raises(KeyboardInterrupt):
        sweep.main([*words, "--evaluate", "true"])
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["a"]


@pytest.mark.parametrize("preset", sweep.PRESETS)
def test_presets_are_valid_settings(preset):
    for configuration in sweep.PRESETS[preset]:
        parse_swap_arguments(list(configuration.train))


def test_rows_of_the_file_replace_those_of_a_preset(tmp_path, capsys):
    """One row of the file has a name of the preset: it runs with its flags, the others with their name alone."""
    rows = [{"name": "laser_d", "train": ["--swap.objective", "laser_d", "5"]}, {"name": "grpo", "train": ["7"]}]
    file = tmp_path / "rows.json"
    file.write_text(json.dumps(rows))
    flags = ["--preset", "paper", "--output", str(tmp_path / "sweep"), "--evaluate", EVALUATE]
    assert run_command(sweep.main, [*flags, "--configurations", str(file), "--train", TRAIN]) == 1
    words = {path.parent.parent.name: path.read_text() for path in tmp_path.rglob("value")}
    assert words == {name: name for name in words} | {"laser_d": "5"}
    assert set(words) == {row.name for row in sweep.PRESETS["paper"]}
    assert capsys.readouterr().out.count("evaluate failed") == 5  # their value is no number


def test_objectives_of_the_presets_exist():
    assert [row.name for row in sweep.PRESETS["all"]] == list(OBJECTIVES)
    assert sweep.PRESETS["step_signal"][0].train == ("--swap.objective", "swap")


def test_numbers_among_the_flags_need_no_quotes(tmp_path):
    path = tmp_path / "c.json"
    path.write_text('[{"name": "a", "train": ["--x", 0.5], "evaluate": ["--y", 2]}]')
    assert sweep.read_configurations(path) == [sweep.Configuration("a", ("--x", "0.5"), ("--y", "2"))]


def test_one_of_both_lists_is_needed(tmp_path, capsys):
    flags = ["--output", str(tmp_path), "--train", "true", "--evaluate", "true"]
    assert run_command(sweep.main, flags) == 2
    assert capsys.readouterr().err.startswith("error: --preset and --configurations are missing; give one")


@pytest.mark.parametrize("text", ['[{"train": []}]', '[{"name": "a", "train": "--x 1"}]'])
def test_unreadable_configurations_are_one_line(tmp_path, capsys, text):
    path = tmp_path / "c.json"
    path.write_text(text)
    flags = ["--configurations", str(path), "--output", str(tmp_path), "--train", "true", "--evaluate", "true"]
    assert run_command(sweep.main, flags) == 2
    assert capsys.readouterr().err.startswith(f"error: --configurations is {path}, which cannot be read")

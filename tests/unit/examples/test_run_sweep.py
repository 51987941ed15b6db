"""The launcher, with small programs instead of training and evaluation."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from itertools import accumulate

import psutil
import pytest
import run_sweep
from support.paths import ROOT, STUDIES
from support.tables import cells_of

from openrlhf_swap.command import run_command
from openrlhf_swap.flags.configuration import configure

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


def configurations(folder, rows):
    """The flag of a file of these rows."""
    path = folder / "configurations.json"
    path.write_text(json.dumps(rows))
    return ["--configurations", str(path)]


def run(tmp_path, *extra):
    rows = [{"name": f"x={x}", "train": ["--x", str(x)]} for x in (2, 3)]
    flags = [
        *configurations(tmp_path, rows),
        "--output",
        str(tmp_path / "sweep"),
        "--seeds",
        "1",
        "2",
    ]
    return run_command(run_sweep.main, [*flags, "--train", TRAIN, "--evaluate", EVALUATE, *extra])


def test_a_failed_evaluation_does_not_repeat_the_training(tmp_path, capsys):
    flags = ["--only", "x=2", "--seeds", "1"]
    assert run(tmp_path, *flags, "--evaluate", "false") == 1
    assert "evaluate failed with status 1" in capsys.readouterr().out
    assert run(tmp_path, *flags) == 0
    assert (tmp_path / "sweep" / "x_2" / "seed_1" / "runs").read_text() == "x"
    # A later call for another configuration keeps what is there in the table.
    assert run(tmp_path, "--only", "x=3", "--seeds", "1") == 0
    _, *rows = cells_of((tmp_path / "sweep" / "table.md").read_text())
    assert [row[0] for row in rows] == ["x=2", "x=3"]


def test_a_sweep_runs_everything_once_and_makes_a_table(tmp_path, capsys):
    assert run(tmp_path, "--only", "x=2") == 0
    # x=3, seed 2 fails: reported, the rest is done, and it is the only one that runs again.
    assert run(tmp_path) == 1
    assert "train failed with status 1" in capsys.readouterr().out
    assert run(tmp_path) == 1
    runs = {
        path.parent.parent.name + path.parent.name: path.read_text()
        for path in tmp_path.rglob("runs")
    }
    assert runs == {"x_2seed_1": "x", "x_2seed_2": "x", "x_3seed_1": "x", "x_3seed_2": "xx"}
    # Values 2 + seed over seeds 1 and 2: mean 3.5, deviation .707.
    rows = cells_of((tmp_path / "sweep" / "table.md").read_text())
    assert rows == [["", "seeds", "value"], ["x=2", "2", "3.500 ± 0.707"], ["x=3", "1", "4.000"]]


def test_as_many_runs_at_once_as_requested(tmp_path):
    copy = f"cp {tmp_path / 'result'} {{output}}/result.json"
    (tmp_path / "result").write_text('{"value": 1}')
    assert run(tmp_path, "--parallel", "2", "--train", IN_PAIRS, "--evaluate", copy) == 0
    log = (tmp_path / "sweep" / "log").read_text()
    assert log.startswith("++") and sorted(log) == sorted("+-" * 4)
    assert max(accumulate(1 if mark == "+" else -1 for mark in log)) == 2


def test_a_configuration_or_a_program_that_is_not_there_is_named(tmp_path, capsys):
    assert run(tmp_path, "--only", "x=2", "x=7") == 2
    assert capsys.readouterr().err.startswith("error: --only has x=7; use any of x=2 x=3; ")
    assert run(tmp_path, "--only", "x=2", "--seeds", "1", "--train", "no_such_program") == 1
    reason = "error: no_such_program cannot be started (No such file or directory); check its name and PATH"
    assert f"[sweep] train failed with status 2: {reason}" in capsys.readouterr().out


def test_a_command_gets_every_word_and_numbers_need_no_quotes(tmp_path):
    rows = configurations(tmp_path, [{"name": "a", "train": ["--x", 0.5]}])
    words = [*rows, "--output", str(tmp_path), "--train", "echo -- a -h", "--evaluate", "true"]
    assert run_command(run_sweep.main, words) == 0
    log = (tmp_path / "a" / "seed_1" / "train.console.log").read_text()
    assert log == "echo -- a -h --x 0.5\n-- a -h --x 0.5\n"  # the command, and what it says


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_after_its_end_no_run_goes_on_or_is_started(tmp_path, by):
    """Ctrl-C reaches all processes, other signals the sweep alone."""
    rows = configurations(tmp_path, [{"name": name} for name in "abcd"])
    words = [sys.executable, str(STUDIES / "run_sweep.py"), *rows, "--output", str(tmp_path)]
    commands = [
        "--train",
        "sh -c 'touch {output}/begun; sleep 60'",
        "--evaluate",
        "true",
        "--parallel",
        "2",
    ]
    process = subprocess.Popen(
        [*words, *commands],
        start_new_session=True,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(
            signal.SIGINT, signal.SIG_DFL
        ),  # background processes ignore it
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
    rows = configurations(tmp_path, [{"name": name} for name in "abcd"])
    words = [*rows, "--output", str(tmp_path), "--train", "sh -c 'exit 130'"]
    with pytest.raises(KeyboardInterrupt):
        run_sweep.main([*words, "--evaluate", "true"])
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["a"]


def test_the_sweeps_of_the_page_can_be_run():
    page = (ROOT / "docs" / "use" / "objectives.md").read_text(encoding="utf-8")
    sweeps = re.findall(r"`--vary (\w+) (.*?)`", page)
    assert len(sweeps) == 2
    for setting, values in sweeps:
        for value in values.split():
            configure([f"--swap.{setting}", value])


def test_a_setting_is_varied(tmp_path):
    flags = [
        "--vary",
        "tau",
        "1",
        "inf",
        "--output",
        str(tmp_path),
        "--evaluate",
        EVALUATE,
        "--train",
        TRAIN,
    ]
    assert run_command(run_sweep.main, flags) == 0
    words = {path.parent.parent.name: path.read_text() for path in tmp_path.rglob("value")}
    assert words == {"tau_1": "1", "tau_inf": "inf"}
    assert "--swap.tau inf" in (tmp_path / "tau_inf" / "seed_1" / "train.console.log").read_text()

"""`openrlhf-swap`: each command under its name, none imported before it is named."""

import subprocess
import sys

import pytest

from openrlhf_swap.__main__ import COMMANDS, main
from openrlhf_swap.train import main as train


def test_help_lists_every_command_in_a_line(capsys):
    assert main(["--help"]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.partition("commands:\n")[2].splitlines())
    assert set(lines) == set(COMMANDS) and lines["train"] == "Train with SWAP's advantages on OpenRLHF."


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "error: a command is missing; use one of: train, plan,"),
        (["evaluat"], "error: evaluat is not a command; did you mean evaluate?"),
        (["train", "--swap.lenght_coef", "1"], "error: unknown flag --swap.lenght_coef; did you mean"),
    ],
)
def test_a_wrong_line(argv, message, capsys):
    assert main(argv) == 2
    assert capsys.readouterr().err.startswith(message)


def test_a_command_s_help_shows_how_it_was_called(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["/bin/openrlhf-swap", "report", "--help"])
    with pytest.raises(SystemExit):
        main()
    assert capsys.readouterr().out.startswith("usage: openrlhf-swap report [-h]")


def test_a_command_does_what_its_module_does(capsys):
    assert main(["train", "--list-objectives"]) == 0
    listed = capsys.readouterr().out
    train(["--list-objectives"])
    assert listed == capsys.readouterr().out != ""


def test_no_command_is_imported_for_help():
    code = (
        "import sys; from openrlhf_swap.__main__ import COMMANDS, main; main(['--help']); "
        "assert not {'torch', 'numpy', *COMMANDS.values()} & set(sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr

import ast
import re
import runpy
import sys

import pytest
from support.paths import ROOT
from support.scripts import COMMANDS, MULTINODE, bash

FILES = (ROOT / "scripts").iterdir()
SCRIPTS = sorted(
    {path.name for path in FILES if path.suffix in (".sh", ".sbatch")} - {"common.sh"}
)  # it is sourced


@pytest.mark.parametrize("script", SCRIPTS)
def test_help(script):
    """Nothing is installed or run for it: this environment would be a folder that cannot be made."""
    result = bash(f"scripts/{script}", "--help", VENV="/dev/null/venv")
    assert result.returncode == 0, result.stderr
    assert len(result.stdout.strip().splitlines()) >= 3
    assert "set -euo" not in result.stdout and "SBATCH" not in result.stdout


def test_the_help_of_the_quickstart_names_every_flag():
    source = (ROOT / "examples" / "worlds" / "quickstart.py").read_text(encoding="utf-8")
    flags = re.findall(r'add_argument\("(--\w+)"', source)
    assert len(flags) > 3
    text = bash("scripts/quickstart.sh", "--steps", "2", "--help").stdout
    assert all(f"{flag} " in text for flag in flags)


@pytest.mark.filterwarnings("ignore:.*found in sys.modules")
@pytest.mark.parametrize("module", [*COMMANDS, "benchmarks.gpu_check"])
def test_every_command_explains_itself(module, monkeypatch, capsys):
    """In this process, where the heavy imports are paid once."""
    monkeypatch.setattr(sys, "argv", [module, "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert "usage: " in text and "--" in text.split("usage: ")[1]
    if module == "openrlhf_swap.sft":
        assert "--model.model_name_or_path" in text  # OpenRLHF's own help
    else:
        source = (ROOT / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")
        assert ast.get_docstring(ast.parse(source)).splitlines()[0] in text


def test_asking_submit_for_help_submits_nothing():
    result = bash(MULTINODE, "submit", "--help")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == bash(MULTINODE, "--help").stdout

"""Scripts and commands explain themselves; nothing is installed or run for it."""

import runpy
import sys

import pytest
from support.paths import ROOT
from support.scripts import COMMANDS, bash

FOLDERS = [ROOT / name for name in ("scripts", "evaluation")]
FILES = [path for folder in FOLDERS for path in folder.iterdir()]
SCRIPTS = [path for path in FILES if path.suffix in (".sh", ".sbatch")]
CALLED = sorted(str(path.relative_to(ROOT)) for path in SCRIPTS if path.name != "common.sh")


@pytest.mark.parametrize("script", CALLED)
def test_help(script):
    result = bash(script, "--help", VENV="/dev/null/venv")
    assert result.returncode == 0, result.stderr
    assert len(result.stdout.strip().splitlines()) >= 3
    assert "set -euo" not in result.stdout and "SBATCH" not in result.stdout


@pytest.mark.filterwarnings("ignore:.*found in sys.modules")
@pytest.mark.parametrize("module", [*COMMANDS, "benchmarks.gpu_check", "benchmarks.beside_trl"])
def test_every_command_explains_itself(module, monkeypatch, capsys):
    """In this process, where the heavy imports are paid once."""
    monkeypatch.setattr(sys, "argv", [module, "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    assert ended.value.code == 0
    assert "--" in capsys.readouterr().out.split("usage: ")[1]

"""Every program of the studies starts; their own tests lie in studies/tests."""

import runpy
import sys
from importlib import import_module

import pytest
from support.paths import ROOT

STUDIES = ROOT / "studies"
# The first prints the help of OpenRLHF's command, in a process that it changes; the second takes
# JSON.
WITHOUT_HELP = {"studies.sft.train", "studies.benchmarks.trl_trial"}


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
def test_every_program_of_the_studies_starts(monkeypatch, capsys):
    for file in sorted(STUDIES.rglob("*.py")):
        if STUDIES / "tests" in file.parents:
            continue
        module = ".".join(file.relative_to(ROOT).with_suffix("").parts)
        if file.stem != "__main__":
            import_module(module)
        is_program = '__name__ == "__main__"' in file.read_text(encoding="utf-8")
        if not is_program or module in WITHOUT_HELP:
            continue
        monkeypatch.setattr(sys, "argv", [module, "--help"])
        with pytest.raises(SystemExit) as ended:
            runpy.run_module(module, run_name="__main__")
        assert not ended.value.code, module
        assert "usage: " in capsys.readouterr().out, module

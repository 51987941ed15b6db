"""The commands as they are started."""

import sys

import pytest
from support.paths import ROOT

from openrlhf_swap.__main__ import COMMANDS, main


@pytest.mark.parametrize("name", [name for name in COMMANDS if name.startswith("eval ")])
def test_a_command_explains_itself(name, capsys):
    with pytest.raises(SystemExit):
        main([*name.split(), "--help"])
    assert capsys.readouterr().out.startswith(f"usage: openrlhf-swap {name} [-h]")


def test_no_module_has_the_name_of_one_of_the_standard_library():
    """Python looks for modules in the folder of a script before the standard library."""
    folders = ("openrlhf_swap", "evaluation", "examples", "benchmarks", "scripts", "tests")
    modules = [
        path.parent if path.stem == "__init__" else path
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        if path.stem != "__main__"
    ]
    assert [str(path) for path in modules if path.stem in sys.stdlib_module_names] == []

"""The commands as they are started."""

import subprocess
import sys

import pytest
from support.paths import ROOT

COMMANDS = [
    path.relative_to(ROOT)
    for path in sorted((ROOT / "evaluation").rglob("*.py"))
    if '\nif __name__ == "__main__":' in path.read_text(encoding="utf-8")
]


def test_these_are_all():
    assert [path.stem for path in COMMANDS] == ["figures", "forced", "__main__", "report", "run", "traces"]


@pytest.mark.parametrize("path", COMMANDS, ids=str)
def test_a_command_explains_itself_by_its_path(path, tmp_path):
    """Python then looks for modules in the file's folder before the standard library."""
    explains_itself([str(ROOT / path)], path, tmp_path)


@pytest.mark.parametrize("path", COMMANDS, ids=str)
def test_a_command_explains_itself_by_its_name(path, tmp_path):
    explains_itself(["-m", module_of(path)], path, tmp_path)


def test_no_module_has_the_name_of_one_of_the_standard_library():
    folders = ("openrlhf_swap", "evaluation", "examples", "benchmarks", "scripts", "tests")
    modules = [
        path.parent if path.stem == "__init__" else path
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        if path.stem != "__main__"
    ]
    assert [str(path) for path in modules if path.stem in sys.stdlib_module_names] == []


def module_of(path):
    return ".".join(path.with_suffix("").parts).removesuffix(".__main__")


def explains_itself(words, path, folder):
    result = subprocess.run(
        [sys.executable, *words, "--help"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith(f"usage: openrlhf-swap {module_of(path).replace('evaluation.', 'eval ')} [-h]")

"""The installation, with tools that only write down what they were asked."""

import os

import pytest
from support.scripts import bash, make_tool

UV = """
echo "uv $*" >>"$CALLS"
[[ "$*" == *" check "* ]] && echo 'The package `openrlhf` requires `flash-attn==2.8.3`' || true
"""
OWN_PYTHON = """
case "$*" in
    "-m venv "*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; cp "$UV" "$3/bin/uv" ;;
    *sysconfig*) echo "$INCLUDE" ;;
    "-m pip config get "*) exit 1 ;;
    "-m pip "*) echo "pip $*" >>"$CALLS" ;;
esac
"""
DF = "printf 'Filesystem\\n/dev/disk 0 0 %d\\n' $(( FREE_GIB * 1024 * 1024 ))"


@pytest.fixture
def acted(tmp_path):
    """Runs setup.sh with acted tools; returns its result and what they wrote."""
    for folder in ("tools", "include"):
        (tmp_path / folder).mkdir()
    (tmp_path / "include" / "Python.h").touch()
    for name, script in {"python": OWN_PYTHON, "uv": UV, "tools/df": DF, "tools/g++": ""}.items():
        make_tool(tmp_path / name, script)
    calls = tmp_path / "calls"
    names = {"VENV": "venv", "PYTHON": "python", "UV": "uv", "CALLS": "calls", "INCLUDE": "include"}
    known = {variable: str(tmp_path / name) for variable, name in names.items()}
    known |= {"PATH": f"{tmp_path / 'tools'}:{os.environ['PATH']}", "PIP_FIND_LINKS": ""}

    def run(**variables):
        result = bash("scripts/setup.sh", **{**known, "FREE_GIB": "31", **variables})
        return result, calls.read_text().splitlines() if calls.exists() else []

    return run


def test_setup_installs_once_and_again_when_the_pins_change(acted, tmp_path):
    result, calls = acted(PROFILE="cpu")
    assert result.returncode == 0, result.stderr
    assert calls[-1].endswith("--no-build-isolation -e .")
    again, after = acted(PROFILE="cpu")
    assert again.stdout == f"[setup] {tmp_path / 'venv'} is up to date (cpu)\n"
    assert after == calls  # nothing was installed
    (tmp_path / "venv" / ".installed").write_text("cpu of other pins\n")
    assert acted(PROFILE="cpu")[1] == 2 * calls
    other, after = acted(PROFILE="gpu")
    assert (other.returncode, after) == (2, 2 * calls)


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"PROFILE": "tpu"}, "PROFILE is tpu; "),
        ({"PROFILE": "cpu", "FLASH_ATTN": "1"}, "FLASH_ATTN is 1 with PROFILE cpu; "),
        ({"PROFILE": "gpu", "FREE_GIB": "14"}, "{folder} has 14 GiB free; "),
        ({"PROFILE": "gpu", "INCLUDE": "/none"}, "/none/Python.h was not found, "),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_installed(acted, tmp_path, variables, reason):
    result, calls = acted(**variables)
    assert (result.returncode, calls) == (2, []) and not (tmp_path / "venv").exists()
    assert result.stderr.startswith("error: " + reason.format(folder=tmp_path))

import hashlib
import os
import re
import shutil

import pytest
from support.paths import ROOT
from support.scripts import bash, make_smi, make_tool, run

UV = """
echo "CUDA_HOME=${CUDA_HOME:-} FIND_LINKS=$UV_FIND_LINKS uv $*" >>"$CALLS"
[[ "$*" == *" check "* ]] && printf '%s\\n' 'The package `openrlhf` requires `flash-attn==2.8.3`' "$COMPLAINT" || true
"""
OWN_PYTHON = """
case "$*" in
    "-m venv "*)
        mkdir -p "$3/bin" "$3/lib/python3.11/site-packages/nvidia/cu13"/{bin,include,nvvm,lib}
        touch "$3/lib/python3.11/site-packages/nvidia/cu13"/lib/{libcudart.so.13,libcurand.so.10}
        cp "$0" "$3/bin/python"; cp "$UV" "$3/bin/uv" ;;
    *sysconfig*) echo "$INCLUDE" ;;
    "-m pip config get global.find-links") echo /some/wheels ;;
    "-m pip config get "*) exit 1 ;;
    "-m pip "*) echo "pip $*" >>"$CALLS" ;;
esac
"""
DF = """
printf 'Filesystem 1024-blocks Used Available\\n/dev/disk 0 0 %d\\n' $(( FREE_GIB * 1024 * 1024 ))
"""


@pytest.fixture
def acted(tmp_path):
    """Runs setup.sh with a Python with headers and an installer that only write down what they were asked, a compiler,
    and a disk with space for everything; returns its result and what they wrote."""
    for folder in ("tools", "include"):
        (tmp_path / folder).mkdir()
    (tmp_path / "include" / "Python.h").touch()
    for name, script in {"python": OWN_PYTHON, "uv": UV, "tools/df": DF, "tools/g++": ""}.items():
        make_tool(tmp_path / name, script)

    def run(**variables):
        calls = tmp_path / "calls"
        known = {
            "VENV": str(tmp_path / "venv"),
            "PYTHON": str(tmp_path / "python"),
            "UV": str(tmp_path / "uv"),
        }
        known |= {
            "PATH": f"{tmp_path / 'tools'}:{os.environ['PATH']}",
            "CALLS": str(calls),
            "PIP_FIND_LINKS": "",
        }
        known |= {"INCLUDE": str(tmp_path / "include")}
        result = bash(
            "scripts/setup.sh", **{**known, "COMPLAINT": "", "FREE_GIB": "31", **variables}
        )
        return result, calls.read_text().splitlines() if calls.exists() else []

    return run


@pytest.mark.parametrize("profile", ["cpu", "gpu"])
def test_setup_is_idempotent(acted, tmp_path, profile):
    result, calls = acted(PROFILE=profile)
    assert result.returncode == 0, result.stderr
    assert calls[-1 - (profile == "gpu")].endswith("--no-build-isolation -e .")
    again, after = acted(PROFILE=profile)
    assert (again.returncode, again.stdout) == (
        0,
        f"[setup] {tmp_path / 'venv'} is up to date ({profile})\n",
    )
    assert after == calls  # nothing was installed
    (tmp_path / "venv" / ".installed").write_text(f"{profile} of other pins\n")
    result, after = acted(PROFILE=profile)
    assert result.returncode == 0 and after == 2 * calls


def test_setup_keeps_the_profiles_apart(acted, tmp_path):
    venv = tmp_path / "venv"
    venv.mkdir()
    (venv / ".installed").write_text("gpu 0123\n")
    result, calls = acted(PROFILE="cpu")
    assert (result.returncode, calls) == (2, [])
    assert (
        result.stderr
        == f"error: {venv} holds the gpu profile; for cpu remove it, or set VENV to another place\n"
    )


@pytest.mark.parametrize(
    ("profile", "flash_attn", "reason"),
    [
        ("tpu", "0", "PROFILE is tpu; use cpu or gpu\n"),
        ("gpu", "yes", "FLASH_ATTN is yes; use 1, or 0"),
        ("cpu", "1", "FLASH_ATTN is 1 with PROFILE cpu; flash-attn runs"),
    ],
)
def test_a_value_that_cannot_be_is_refused(acted, tmp_path, profile, flash_attn, reason):
    result, calls = acted(PROFILE=profile, FLASH_ATTN=flash_attn)
    assert (result.returncode, calls) == (2, [])
    assert result.stderr.startswith(f"error: {reason}")
    assert not (tmp_path / "venv").exists()


def test_gpus_need_no_compiler_of_cuda(acted):
    result, (pip, everything, ours, check) = acted(PROFILE="gpu")
    assert result.returncode == 0, result.stderr
    assert "uv==" in pip
    assert "--no-deps --compile-bytecode -r constraints-gpu.txt" in everything
    assert "FIND_LINKS=/some/wheels" in everything
    assert ours.endswith("--no-build-isolation -e .") and " pip check " in check
    assert not any("flash" in call or "CUDA_HOME=/" in call for call in (everything, ours, check))
    # The one thing that pip would miss is named; anything else ends the setup.
    assert result.stdout.count("[setup] check: ") == 1 and "`flash-attn==2.8.3`" in result.stdout


@pytest.mark.parametrize(
    ("free", "flash_attn", "needed"),
    [("14", "0", 15), ("15", "0", None), ("29", "1", 30), ("30", "1", None)],
)
def test_a_disk_too_small_is_named_before_anything_is_installed(
    acted, tmp_path, free, flash_attn, needed
):
    result, calls = acted(PROFILE="gpu", FREE_GIB=free, FLASH_ATTN=flash_attn)
    if needed is None:
        assert result.returncode == 0, result.stderr
        return
    assert (result.returncode, calls) == (2, [])
    said = f"error: {tmp_path} has {free} GiB free; the gpu profile needs {needed}: free some, or set VENV\n"
    assert result.stderr == said


@pytest.mark.parametrize("profile", ["cpu", "gpu"])
def test_missing_headers_are_named_before_anything_is_installed(acted, tmp_path, profile):
    (tmp_path / "include" / "Python.h").unlink()
    result, calls = acted(PROFILE=profile)
    assert (result.returncode, calls) == (2, []) and not (tmp_path / "venv").exists()
    named = (
        f"error: {tmp_path / 'include' / 'Python.h'} was not found, which training needs; install "
    )
    assert result.stderr == f"{named}Python's headers (Debian: python3.11-dev)\n"


def test_packages_that_do_not_fit_each_other_end_the_setup(acted):
    result, _ = acted(
        PROFILE="gpu", COMPLAINT="The package `a` requires `b<1`, but `2` is installed"
    )
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1].startswith(
        "error: the packages are not compatible with each other"
    )


def test_flash_attn_is_compiled_with_the_compiler_among_the_packages(acted, tmp_path):
    result, calls = acted(PROFILE="gpu", FLASH_ATTN="1", CUDA_HOME="/usr/local/cuda-13.1")
    assert result.returncode == 0, result.stderr
    (compiled,) = [call for call in calls if "requirements-flash-attn.txt" in call]
    assert (
        compiled.startswith(f"CUDA_HOME={tmp_path / 'venv' / 'cuda'} ")
        and "--no-build-isolation" in compiled
    )
    found = {
        path.name
        for folder in (".", "lib64")
        for path in (tmp_path / "venv" / "cuda" / folder).iterdir()
    }
    assert found == {"bin", "include", "nvvm", "lib64", "libcudart.so", "libcurand.so"}


def test_setup_names_the_python_it_needs(tmp_path):
    for tool in ("dirname", "sed", "cat", "sha256sum", "cut", "grep", "awk", "df"):
        (tmp_path / tool).symlink_to(shutil.which(tool))
    result = run("/bin/bash", "scripts/setup.sh", PATH=str(tmp_path))
    assert result.returncode == 2
    assert result.stderr.startswith(
        "error: Python 3.11 was not found; install it, or name it: PYTHON="
    )


@pytest.mark.parametrize(("gpus", "folder"), [(0, ".venv"), (1, ".venv-cpu")])
def test_quickstart_and_tests_run_without_gpus_beside_the_environment_for_them(
    tmp_path, gpus, folder
):
    script = (
        'source scripts/common.sh; unset VENV PROFILE; use_cpu_environment; echo "$PROFILE $VENV"'
    )
    assert (
        bash("-c", script, PATH=make_smi(tmp_path, gpus)).stdout.strip() == f"cpu {ROOT / folder}"
    )


PYTHON = """
case "$*" in
    "-m pytest -n 2 --dist worksteal tests/unit tests/browser tests/gpu")
        echo "===== 5 passed, 1 skipped in 3.20s =====" ;;
    "-m pytest -n 2 --dist loadfile tests/stack")
        echo "== {stack} in 70.10s (0:01:10) =="
        echo "said at exit"
        exit {status} ;;
    *) echo "ran $*" ;;
esac
"""


@pytest.fixture
def installed(tmp_path):
    """Makes an environment that setup.sh takes as up to date, with tools that find nothing and a
    Python that acts.

    The Python that setup.sh finds can make no environment, so nothing is ever installed.
    """

    def make(stack="3 passed", status=0, failing=None):
        pins = (ROOT / "requirements-cpu.txt").read_bytes()
        digest = hashlib.sha256(pins + (ROOT / "pyproject.toml").read_bytes()).hexdigest()
        (tmp_path / ".installed").write_text(f"cpu {digest}\n")
        (tmp_path / "bin").mkdir()
        for tool in ("ruff", "shellcheck", "mypy", "lint-imports", "python"):
            script = PYTHON.format(stack=stack, status=status) if tool == "python" else ""
            make_tool(tmp_path / "bin" / tool, script + "exit 1" * (tool == failing))
        make_tool(tmp_path / "own_python", '[[ "$1" == -c ]]')
        return {"VENV": str(tmp_path), "PYTHON": str(tmp_path / "own_python")}

    return make


@pytest.mark.parametrize(
    ("stack", "status", "sums"),
    [
        ("3 passed", 0, "8 passed, 0 failed, 1 skipped"),
        ("1 failed, 2 passed, 4 skipped, 2 errors", 1, "7 passed, 3 failed, 5 skipped"),
        ("no closing line", 4, "5 passed, 1 failed, 1 skipped"),
    ],
)
def test_the_tests_end_with_times_and_sums(installed, stack, status, sums):
    result = bash("scripts/test.sh", **installed(stack, status))
    assert result.returncode == (1 if status else 0), result.stderr
    *_, unit, stack, last = result.stdout.splitlines()
    assert re.fullmatch(r"\[test\] unit part: \d+ s", unit) and re.fullmatch(
        r"\[test\] stack part: \d+ s", stack
    )
    assert last == sums


def test_arguments_of_the_tests_go_to_one_pytest(installed):
    result = bash("scripts/test.sh", "-m", "not slow", **installed())
    assert result.stdout.splitlines()[-1] == "ran -m pytest -m not slow"


@pytest.mark.parametrize("tool", ["ruff", "shellcheck", "mypy", "lint-imports"])
def test_no_test_runs_after_a_complaint(installed, tool):
    result = bash("scripts/test.sh", **installed(failing=tool))
    assert result.returncode == 1 and "passed" not in result.stdout

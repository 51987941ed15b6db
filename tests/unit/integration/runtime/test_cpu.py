"""What stands for CUDA's functions on a CPU."""

import subprocess
import sys

import psutil
import pytest

from openrlhf_swap.integration.patches import CPU_COMMAND, VARIABLES
from openrlhf_swap.integration.runtime import cpu
from openrlhf_swap.packages.kernels import has_fast_products

CACHE = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"


def test_freed_memory_goes_back_to_the_system():
    """glibc keeps what lies below memory in use, although all of it is free."""
    process, size = (
        psutil.Process(),
        64 * 2**10,
    )  # below what it takes from the system piece by piece
    blocks = [bytearray(size) for _ in range(4000)]
    kept = blocks[::100]
    held = process.memory_info().rss
    blocks.clear()
    cpu.empty_cache()
    assert process.memory_info().rss < held - 3000 * size
    assert len(kept) == 40


PRODUCTS_OF_MANY_SIZES = """
import ctypes, psutil, torch
rows, weight = (torch.ones(size, 256, dtype=torch.bfloat16) for size in (500, 256))
rows[:1] @ weight
def resident():
    ctypes.CDLL(None).malloc_trim(0)
    return psutil.Process().memory_info().rss
before = resident()
for count in range(2, 500):
    rows[:count] @ weight
print(resident() - before)
"""


@pytest.mark.skipif(
    not has_fast_products(), reason="the products are computed in float32, by another library"
)
def test_few_programs_of_onednn_are_kept(monkeypatch):
    def kept():
        return int(
            subprocess.run(
                [sys.executable, "-c", PRODUCTS_OF_MANY_SIZES], capture_output=True, check=True
            ).stdout
        )

    monkeypatch.delenv(CACHE, raising=False)
    without = kept()
    monkeypatch.setenv(CACHE, VARIABLES[CPU_COMMAND][CACHE])
    assert kept() < 0.75 * without

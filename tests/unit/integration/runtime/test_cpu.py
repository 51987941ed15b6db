"""What stands for CUDA's functions on a CPU."""

import psutil

from openrlhf_swap.integration.runtime import cpu


def test_freed_memory_goes_back_to_the_system():
    """glibc keeps what lies below memory in use, although all of it is free."""
    process = psutil.Process()
    size = 64 * 2**10  # below what it takes from the system piece by piece
    blocks = [bytearray(size) for _ in range(4000)]
    kept = blocks[::100]
    held = process.memory_info().rss
    blocks.clear()
    cpu.empty_cache()
    assert process.memory_info().rss < held - 3000 * size
    assert len(kept) == 40

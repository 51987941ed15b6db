"""Main memory that torch pins for GPUs: how much larger its blocks are than the tensors in them."""

from __future__ import annotations

import math
from collections.abc import Iterable

MIB = 2**20
SEGMENT = 20 * MIB  # in which torch puts tensors of less than LARGE on a GPU
LARGE, LARGE_ROUNDING = 10 * MIB, 2 * MIB


def block(size: float) -> int:
    """Bytes of the pinned block for a tensor of `size` bytes: the next power of two, which torch keeps for reuse."""
    return 1 << (math.ceil(size) - 1).bit_length() if size else 0


def blocks(sizes: Iterable[float]) -> int:
    """Bytes of the pinned blocks for tensors of these sizes in bytes."""
    return sum(map(block, sizes))


def backup_blocks(sizes: Iterable[float]) -> int:
    """Bytes of the pinned blocks to which vLLM copies weights of these sizes in bytes before it sleeps.

    vLLM copies what torch has allocated: large weights in whole 2 MiB, the others together in segments.
    """
    held = list(sizes)
    large = [math.ceil(size / LARGE_ROUNDING) * LARGE_ROUNDING for size in held if size >= LARGE]
    segments = math.ceil(sum(size for size in held if size < LARGE) / SEGMENT)
    return blocks(large) + segments * block(SEGMENT)

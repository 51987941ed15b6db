"""A wait for the policy and the reference model that ends."""

import math
from types import SimpleNamespace
from typing import Any

import ray

from openrlhf_swap.errors import RunError

LEAST_SECONDS = 3600.0  # which a piece of work gets, whatever engines get


def results(refs: Any, args: SimpleNamespace, work: str) -> list[Any]:
    """The results of the policy's or the reference model's processes for `work`.

    Raises RunError when it takes an hour, or --swap.generation_timeout where that is longer.
    """
    limit = max(args.swap_run.generation_timeout, LEAST_SECONDS)
    try:
        found: list[Any] = ray.get(refs, timeout=None if math.isinf(limit) else limit)
    except ray.exceptions.GetTimeoutError:
        raise RunError(
            f"{work} of the policy did not end within {limit:g} s: it is stuck. Start again with "
            "--ckpt.load_enable; raise --swap.generation_timeout if it was still at work"
        ) from None
    return found

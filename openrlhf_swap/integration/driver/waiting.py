"""Waits for processes of a run, which all end.

A process that waits inside of its work, such as the policy for the engines that take its weights,
needs no limit of its own: the driver waits for that work.
"""

import math
from types import SimpleNamespace
from typing import Any

import ray

from openrlhf_swap.errors import RunError
from openrlhf_swap.runs.checkpoints import how_to_resume

LEAST_SECONDS = 3600.0  # which a piece of work gets, whatever engines get


def results(refs: Any, args: SimpleNamespace, work: str, least: float = LEAST_SECONDS) -> list[Any]:
    """The results of the processes that do `work`.

    Raises RunError when it takes `least` seconds, or --swap.generation_timeout where that is
    longer.
    """
    limit = max(args.swap_run.generation_timeout, least)
    try:
        return ray.get(refs, timeout=None if math.isinf(limit) else limit)
    except ray.exceptions.GetTimeoutError:
        raise RunError(
            f"{work} did not end within {limit:g} seconds: a process is stuck; "
            f"{how_to_resume(args.ckpt)}; raise --swap.generation_timeout if it was still at work"
        ) from None


def tell_engines(engines: list[Any], args: SimpleNamespace, method: str, **options: Any) -> None:
    """Call a method of all rollout engines; raises RunError as `results`, without a least limit."""
    refs = [getattr(engine, method).remote(**options) for engine in engines]
    results(refs, args, f"{method}() of the rollout engines", least=0)

"""How much memory a process and its machine use."""

import math
import resource

import psutil
import torch

GIB = 2**30


def peak_gib() -> float:
    """This process's peak: of GPU memory since the last call or, without a GPU, of main memory since its start."""
    if not torch.cuda.is_available():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # Linux counts in KiB
    peak = torch.cuda.max_memory_allocated() / GIB
    torch.cuda.reset_peak_memory_stats()
    return peak


def host_metrics() -> dict[str, float]:
    return {"memory/host_used_gib": psutil.virtual_memory().used / GIB}


def engine_capacity(tokens: int, context: int) -> str:
    return f"a vLLM engine's cache holds {tokens:,} tokens, {tokens // context:,} sequences of --data.max_len"


def describe_usage(metrics: dict[str, float]) -> str:
    total = psutil.virtual_memory().total / GIB
    return (
        f"at most {metrics.get('memory/policy_peak_gib', math.nan):.1f} GiB in the policy's process; "
        f"{metrics['memory/host_used_gib']:.1f} of {total:.1f} GiB in use on this machine, after one step"
    )

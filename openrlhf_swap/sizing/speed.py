"""How long a training step takes, roughly: vLLM and DeepSpeed in turn on all GPUs, or at the same time on some each.

Both use an assumed share of what the GPU's data sheet promises. Loading prompts, handing over weights, sleeping and
waking are left out.
"""

from __future__ import annotations

import math
from typing import Any

from openrlhf_swap.sizing.memory import kept_cache
from openrlhf_swap.sizing.models import Model
from openrlhf_swap.sizing.settings import BIT16, Settings

Peaks = tuple[float, float]
PEAKS: dict[str, Peaks] = {  # bf16 operations without sparsity and bytes, a second
    "a100-40": (312e12, 1.555e12),
    "a100-80": (312e12, 2.039e12),
    "h100": (989e12, 3.35e12),
    "h200": (989e12, 4.8e12),
    "b200": (2250e12, 8.0e12),
    "l40s": (362e12, 0.864e12),
    "rtx4090": (165e12, 1.008e12),
}
OF_OPERATIONS, OF_BYTES = 0.4, 0.6  # assumed: shares of the peaks that are reached


def generation_seconds(
    model: Model, settings: Settings, gpus: int, step: dict[str, Any], prompt: int, most: int, peaks: Peaks
) -> float:
    """Of all responses of a step.

    A token of every response that an engine runs takes one reading of the weights and of the keys and values so far.
    An engine takes as many of these as its longest response has tokens, at least.

    Args:
        model: the model.
        settings: the run's.
        gpus: on which engines run.
        step: the plan's numbers of a step.
        prompt: its mean tokens.
        most: responses that an engine runs at a time.
        peaks: as in `PEAKS`.
    """
    size = settings.tensor_parallel
    tokens = step["tokens"] * size / gpus  # of an engine
    at_a_time = min(most, math.ceil(step["responses"] * size / gpus))
    decodings: float = max(tokens / at_a_time, step["most_tokens"] / step["responses"])
    running = tokens / decodings
    read = BIT16 * model.parameters + running * kept_cache(model, prompt + step["mean_response"] // 2)
    operations = 2 * running * model.multiplying
    slowest: float = max(read / (OF_BYTES * peaks[1]), operations / (OF_OPERATIONS * peaks[0]))
    return decodings / size * slowest


def step_seconds(
    model: Model, settings: Settings, step: dict[str, Any], prompt: int, most: int, peaks: Peaks
) -> dict[str, dict[str, float]]:
    """Of a step in turn on all GPUs, and apart, where they can be split.

    Args:
        model: the model.
        settings: the run's.
        step: the plan's numbers of a step.
        prompt: its mean tokens.
        most: responses that an engine runs at a time.
        peaks: as in `PEAKS`.

    Returns:
        `in_turn`, `fastest` of all splits, and `apart`, the run's own split if it has one: the GPUs that generate
        (`gpus`), seconds of `generate` and `train`, and of the whole `step`, which is their sum or the longer one.
    """
    flops = sum(value for phase, value in step["flops"].items() if phase != "generate")
    size = settings.tensor_parallel
    gpus = settings.gpus

    def times(generating: int, training: int) -> dict[str, float]:
        generate = generation_seconds(model, settings, generating, step, prompt, most, peaks)
        return {"gpus": generating, "generate": generate, "train": flops / (training * OF_OPERATIONS * peaks[0])}

    in_turn = times(gpus // size * size, gpus)
    ways = {"in_turn": in_turn | {"step": in_turn["generate"] + in_turn["train"]}}
    splits = {
        number: split | {"step": max(split["generate"], split["train"])}
        for number in range(size, gpus, size)
        for split in [times(number, gpus - number)]
        if settings.dynamic or settings.batch % ((gpus - number) * settings.update_rows) == 0
    }
    if splits:
        ways["fastest"] = min(splits.values(), key=lambda split: split["step"])
    if not settings.shared:
        ways["apart"] = splits[settings.engines * size]
    return ways

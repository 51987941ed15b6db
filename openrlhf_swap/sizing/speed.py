"""Estimate a training step's time: vLLM and DeepSpeed in turn on all GPUs, or at the same time on some GPUs each.

Both are assumed to reach a share of the data sheet's peaks; that of operations is what an H100 reached in
`benchmarks.policy_step`. Loading prompts, sending weights, sleeping and waking are not counted.
"""

from __future__ import annotations

import math
from typing import Any

from openrlhf_swap.sizing.memory import kept_cache
from openrlhf_swap.sizing.models import Model
from openrlhf_swap.sizing.settings import BIT16, Settings

Peaks = tuple[float, float]
PEAKS: dict[str, Peaks] = {  # per second: dense bf16 operations, and bytes
    "a100-40": (312e12, 1.555e12),
    "a100-80": (312e12, 2.039e12),
    "h100": (989e12, 3.35e12),
    "h200": (989e12, 4.8e12),
    "b200": (2250e12, 8.0e12),
    "l40s": (362e12, 0.864e12),
    "rtx4090": (165e12, 1.008e12),
}
OF_OPERATIONS, OF_BYTES = 0.3, 0.6  # shares of the peaks: measured (docs/measurements.md), and assumed


def generation_seconds(
    model: Model, settings: Settings, gpus: int, step: dict[str, Any], prompt: int, most: int, peaks: Peaks
) -> float:
    """Seconds to generate all responses of a step.

    Each decoding step of an engine adds a token to every running response, and reads the weights and the keys and
    values so far once. An engine takes at least as many steps as its longest response has tokens.

    Args:
        model: the model.
        settings: the run's.
        gpus: GPUs that the engines run on.
        step: the plan's numbers for a step.
        prompt: mean tokens of a prompt.
        most: responses that an engine runs at a time.
        peaks: as in `PEAKS`.
    """
    size = settings.tensor_parallel
    tokens = step["tokens"] * size / gpus  # per engine
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
    """Seconds of a step in turn on all GPUs and, if the GPUs can be split, at the same time.

    Args:
        model: the model.
        settings: the run's.
        step: the plan's numbers for a step.
        prompt: mean tokens of a prompt.
        most: responses that an engine runs at a time.
        peaks: as in `PEAKS`.

    Returns:
        `in_turn`, `fastest` of all splits, and `apart`, the run's own split if it has one. Each has the GPUs that
        generate (`gpus`), and the seconds of `generate`, `train` and the whole `step`: their sum or the longer one.
    """
    flops = sum(value for phase, value in step["flops"].items() if phase != "generate")
    size = settings.tensor_parallel
    gpus = settings.gpus

    def times(generating: int, training: int) -> dict[str, float]:
        generate = generation_seconds(model, settings, generating, step, prompt, most, peaks)
        return {"gpus": generating, "generate": generate, "train": flops / (training * OF_OPERATIONS * peaks[0])}

    in_turn = times(gpus // size * size, gpus)
    layouts = {"in_turn": in_turn | {"step": in_turn["generate"] + in_turn["train"]}}
    splits = {
        number: split | {"step": max(split["generate"], split["train"])}
        for number in range(size, gpus, size)
        for split in [times(number, gpus - number)]
        if settings.dynamic or settings.batch % ((gpus - number) * settings.update_rows) == 0
    }
    if splits:
        layouts["fastest"] = min(splits.values(), key=lambda split: split["step"])
    if not settings.shared:
        layouts["apart"] = splits[settings.engines * size]
    return layouts

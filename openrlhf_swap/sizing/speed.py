"""How much compute a training step takes, in floating-point operations, and how long that may last."""

from __future__ import annotations

import math
from typing import Any

from openrlhf_swap.sizing.memory import kept_cache
from openrlhf_swap.sizing.models import Model
from openrlhf_swap.sizing.settings import ANSWER, BIT16, BRANCH, Settings

# Shares of the data sheet's peaks: that of operations is what an H100 reached in benchmarks.policy_step
# (docs/measurements.md), that of bytes is assumed. Loading prompts, sending weights, sleeping and waking are left out.
OF_OPERATIONS, OF_BYTES = 0.3, 0.6
Peaks = tuple[float, float]
"""Operations and bytes a second of a GPU, by its data sheet."""


def forward_flops(model: Model, tokens: float) -> float:
    """FLOPs for one sequence: 2 for each token and multiplying weight, and 4 for each pair of attending tokens."""
    return 2 * model.multiplying * tokens + 4 * model.query * model.pairs(tokens)


def scoring_flops(model: Model, prompt: float, response: float, steps: int) -> float:
    """FLOPs of the `steps` + 1 branches of one response, on its cache, as a GPU attends them: in one call a layer.

    In that call every branch meets the keys of the whole response and of all branches, twice what it sees; in a layer
    with a window, only the window's and its own.
    """
    branches, head = steps + 1, model.hidden * model.vocabulary
    layers = 2 * (model.multiplying - head) * branches * BRANCH
    reach = prompt + response
    seen = sum(window + BRANCH if window < reach else reach + branches * BRANCH for window in model.windows)
    return layers + 4 * model.query * branches * BRANCH * seen + 2 * head * branches * ANSWER


def step_flops(
    model: Model, settings: Settings, prompt: float, response: float, steps: int, epochs: int
) -> dict[str, float]:
    """FLOPs for one response in a whole training step, by phase."""
    forward = forward_flops(model, prompt + response)
    head = 2 * model.hidden * model.vocabulary * (prompt + response)
    recomputed = (forward - head if settings.checkpointing else 0) + (head if settings.logits_chunk else 0)
    return {
        "generate": forward,
        "log-probabilities": forward,
        "score": scoring_flops(model, prompt, response, steps) if settings.branches else 0.0,
        # Frozen weights have no gradient of their own.
        "update": epochs * ((2 if model.adapters else 3) * forward + recomputed),
    }


def generation_seconds(
    model: Model,
    settings: Settings,
    gpus: int,
    step: dict[str, Any],
    prompt: int,
    at_a_time: int,
    peaks: Peaks,
) -> float:
    """Seconds to generate all responses of a step.

    Each decoding step of an engine adds a token to every running response, and reads the weights and the keys and
    values so far once. An engine takes at least as many steps as its longest response has tokens.

    `gpus` are those of the engines, `step` the plan's numbers for a step, `prompt` the mean tokens of a prompt and
    `at_a_time` the responses that an engine runs at a time.
    """
    size = settings.tensor_parallel
    tokens = step["tokens"] * size / gpus  # per engine
    started = min(at_a_time, math.ceil(step["responses"] * size / gpus))
    decodings: float = max(tokens / started, step["most_tokens"] / step["responses"])
    running = tokens / decodings
    read = BIT16 * model.parameters + running * kept_cache(model, prompt + step["mean_response"] // 2)
    operations = 2 * running * model.multiplying
    slowest: float = max(read / (OF_BYTES * peaks[1]), operations / (OF_OPERATIONS * peaks[0]))
    return decodings / size * slowest


def step_seconds(
    model: Model, settings: Settings, step: dict[str, Any], prompt: int, at_a_time: int, peaks: Peaks
) -> dict[str, dict[str, float]]:
    """Seconds of a step with vLLM and DeepSpeed in turn on all GPUs and, on some of them each, at the same time.

    Returns:
        `in_turn`, `fastest` of all splits, and `apart`, the run's own split if it has one. Each has the GPUs that
        generate (`gpus`), and the seconds of `generate`, `train` and the whole `step`: their sum or the longer one.
    """
    flops = sum(value for phase, value in step["flops"].items() if phase != "generate")
    size, gpus = settings.tensor_parallel, settings.gpus

    def times(generating: int, training: int) -> dict[str, float]:
        generate = generation_seconds(model, settings, generating, step, prompt, at_a_time, peaks)
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

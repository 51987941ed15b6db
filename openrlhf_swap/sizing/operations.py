"""The floating-point operations of a training step, and its seconds."""

from dataclasses import dataclass

from openrlhf_swap.sizing.engine import kept_cache
from openrlhf_swap.sizing.models import Model, Peaks
from openrlhf_swap.sizing.settings import ANSWER_TOKENS, BIT16, BRANCH_TOKENS, Settings

# Shares of the data sheet's peaks: the first is what an H100 reached
# (studies/records/measurements.md), the second is assumed. Loading prompts, sending weights,
# sleeping and waking are left out.
OF_OPERATIONS = 0.3
OF_BYTES = 0.6


def forward_flops(model: Model, tokens: float) -> float:
    """FLOPs for one sequence.

    These are 2 for each token and multiplying weight, and 4 for each pair of attending tokens.
    """
    weights = 2 * model.multiplying * tokens
    attention = 4 * model.query * model.pairs(tokens)
    return weights + attention


def scoring_flops(model: Model, prompt: float, response: float, steps: int) -> float:
    """FLOPs of the `steps` + 1 branches of one response, in one call a layer as on a GPU.

    There a branch attends to the keys of the response and of all branches. In a layer with a window
    it attends to the window alone.
    """
    tokens = (steps + 1) * BRANCH_TOKENS
    head = model.hidden * model.vocabulary
    layers = 2 * (model.multiplying - head) * tokens
    output = 2 * head * (steps + 1) * ANSWER_TOKENS
    reach = prompt + response
    seen = sum(min(window + BRANCH_TOKENS, reach + tokens) for window in model.windows)
    attention = 4 * model.query * tokens * seen
    return layers + attention + output


def hiding_flops(
    model: Model,
    settings: Settings,
    prompt: float,
    response: float,
    steps: int,
) -> float:
    """FLOPs of reading one response's steps again, without each hidden step before them.

    A step is read again for each of the `need_window` steps before it that is hidden. The answer,
    which the last ones read again, is left out.
    """
    window = settings.need_window or steps
    flops = 0.0
    for before in range(steps):
        start = prompt + response * before / steps
        end = prompt + response * (before + 1) / steps
        once = forward_flops(model, end) - forward_flops(model, start)
        flops += min(before, window) * once
    return flops / settings.need_every


def step_flops(
    model: Model,
    settings: Settings,
    prompt: float,
    response: float,
    steps: int,
    epochs: int,
) -> dict[str, float]:
    """FLOPs for one response in a whole training step, by phase."""
    forward = forward_flops(model, prompt + response)
    head = 2 * model.hidden * model.vocabulary * (prompt + response)
    passes = 2 if model.adapters else 3  # frozen weights have no gradient of their own
    update = passes * forward
    if settings.checkpointing and not settings.keeps_products:
        update += forward - head
    if settings.logits_chunk:
        update += head
    scoring = 0.0
    if settings.branches:
        scoring = scoring_flops(model, prompt, response, steps)
    if settings.hides_steps:
        scoring += hiding_flops(model, settings, prompt, response, steps)
    return {
        "generate": forward,
        "log-probabilities": 0.0 if settings.reuses_logprobs else forward,
        "score": scoring,
        "update": epochs * update,
    }


def generation_seconds(
    model: Model,
    settings: Settings,
    prompt: int,
    response: int,
    at_a_time: int,
    peaks: Peaks,
) -> float:
    """Seconds to generate all responses of a step.

    A response has `response` tokens on average, and an engine runs `at_a_time` responses. One
    decoding adds a token to each of them; it reads the weights, and all keys and values so far,
    once. There are at least as many decodings as the longest response has tokens.
    """
    tokens = settings.engine_responses * response
    decodings = max(tokens / at_a_time, settings.longest)
    running = tokens / decodings
    cache = kept_cache(model, prompt + response // 2)
    read = BIT16 * model.parameters + running * cache
    reading = read / (OF_BYTES * peaks.bandwidth)
    computing = 2 * running * model.multiplying / (OF_OPERATIONS * peaks.operations)
    return decodings / settings.tensor_parallel * max(reading, computing)


@dataclass(frozen=True)
class StepSeconds:
    """Seconds of a training step."""

    generate: float
    train: float
    step: float  # together


def step_seconds(
    settings: Settings,
    generation: float,
    training: float,
    peaks: Peaks,
) -> StepSeconds:
    """Seconds of a step of `generation` seconds and of `training` FLOPs for all responses."""
    train = training / (settings.ranks * OF_OPERATIONS * peaks.operations)
    step = generation + train if settings.shared else max(generation, train)
    return StepSeconds(generation, train, step)

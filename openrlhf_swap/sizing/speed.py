"""How much compute a training step takes, in floating-point operations, and how long that may last."""

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
    """FLOPs of the `steps` + 1 branches of one response, as a GPU attends them: in one call a layer.

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
    model: Model, settings: Settings, prompt: int, response: int, at_a_time: int, peaks: Peaks
) -> float:
    """Seconds to generate all responses of a step, of `response` tokens on average.

    Each decoding step of an engine adds a token to every running response, `at_a_time` of them, and reads the weights
    and the keys and values so far once. An engine takes at least as many steps as its longest response has tokens.
    """
    tokens = settings.engine_responses * response
    decodings = max(tokens / at_a_time, settings.longest)
    running = tokens / decodings
    read = BIT16 * model.parameters + running * kept_cache(model, prompt + response // 2)
    operations = 2 * running * model.multiplying
    slowest = max(read / (OF_BYTES * peaks[1]), operations / (OF_OPERATIONS * peaks[0]))
    return decodings / settings.tensor_parallel * slowest


def step_seconds(settings: Settings, generation: float, training: float, peaks: Peaks) -> dict[str, float]:
    """Seconds of a step: vLLM and DeepSpeed take turns on their GPUs, or work at the same time on GPUs of their own.

    `generation` are seconds, `training` the FLOPs of all responses in the other phases.
    """
    train = training / (settings.ranks * OF_OPERATIONS * peaks[0])
    step = generation + train if settings.shared else max(generation, train)
    return {"generate": generation, "train": train, "step": step}

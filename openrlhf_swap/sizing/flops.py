"""How much compute a training step takes, in floating-point operations."""

from __future__ import annotations

from openrlhf_swap.sizing.models import Model
from openrlhf_swap.sizing.settings import ANSWER, BRANCH, Settings


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

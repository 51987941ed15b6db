"""Advice on `--swap.step_tokens` for responses that are too short for it."""

FEWEST_STEPS = 3  # of a response, for its steps to be compared
AIMED_STEPS = 8
MANY = 0.5  # of the responses


def fitting_step_tokens(reasoning_tokens: float) -> int:
    """M for about eight steps in so many tokens, in tens where that is exact enough."""
    exact = reasoning_tokens / AIMED_STEPS
    if exact < 2 * AIMED_STEPS:
        return max(1, round(exact))
    return round(exact / 10) * 10


def advice_on_step_tokens(
    reasoning_tokens: float, step_tokens: int, steps: float, single: float = 0.0
) -> str | None:
    """Which M to use instead of one that leaves too few steps; None for enough of them.

    Args:
        reasoning_tokens: mean tokens of the reasoning.
        step_tokens: M.
        steps: mean number of steps.
        single: share of the responses that have one step, where it is known.
    """
    fitting = fitting_step_tokens(reasoning_tokens)
    has_steps = steps >= FEWEST_STEPS and single <= MANY
    is_enough = has_steps and reasoning_tokens >= 2 * step_tokens
    if is_enough or fitting >= step_tokens:
        return None
    count = f"{steps:.1f}".removesuffix(".0")
    plural = "" if count == "1" else "s"
    effect = ""
    if single > 0:
        effect = f" ({single:.0%} of them have only one, so that SWAP cannot choose between steps)"
    return (
        f"responses reason for {reasoning_tokens:.0f} tokens, so --swap.step_tokens {step_tokens} "
        f"leaves {count} step{plural}{effect}; --swap.step_tokens {fitting} makes about "
        f"{reasoning_tokens / fitting:.0f}"
    )

"""Whether a training step needs a pass for log-probabilities before its update."""

from __future__ import annotations

from typing import TYPE_CHECKING

from openrlhf_swap.flags.configuration import Configuration
from openrlhf_swap.flags.placement import updates_a_step

if TYPE_CHECKING:
    from openrlhf_swap.objectives.base import Objective


def why_logprobs_are_read(run: Configuration, objective: Objective) -> str | None:
    """What needs the policy's log-probabilities before the update; None if nothing does.

    No weight changes between the pass and a step's first update, so without dropout both give the
    same log-probabilities, up to rounding.
    """
    args = run.args
    name = run.method.objective
    updates = updates_a_step(args)
    kl = args.algo.kl.init_coef
    level = args.algo.advantage.is_correction_level
    dropout = args.ds.lora.dropout if args.ds.lora.rank else 0.0
    reads_tokens = objective.reads_logprobs or ":" in name
    needed = {
        f"{name} reads {', '.join(objective.wanted_signals)} in it": objective.wanted_signals,
        f"{name} may read the log-probabilities of tokens": reads_tokens,
        f"{name} may replace some of them": objective.reshapes_responses,
        f"a step has {updates} updates": updates > 1,
        f"--algo.kl.init_coef is {kl:g}": kl > 0,
        f"--algo.advantage.is_correction_level is {level}": level != "off",
        f"--ds.lora.dropout is {dropout:g}": dropout > 0,
    }
    return next((reason for reason, applies in needed.items() if applies), None)

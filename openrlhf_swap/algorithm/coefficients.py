"""The coefficients of the step arithmetic."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Coefficients:
    """Weights and constants of the unified advantage, with the paper's symbols first.

    Attributes:
        length_coef: lambda, of the penalty mass.
        tau: tau of the penalty's softmax, in nats.
        in_deviations: whether it is in standard deviations of a group's gains instead.
        monotone_weights: whether the softmax is of the monotone gains Delta, or of the local gains g.
        outcome_weight: beta.
        process_weight: theta; 0 needs no step scores.
        centres_steps: whether step rewards are normalised around their mean, or around zero.
        price_by_weights: whether a response's steps share by w what the mean charges it, or alike.
        step_noise: lower bound, in nats, of the deviation that step rewards are divided by.
        step_constant: subtracted from every *normalised* step reward; before normalisation it would cancel out.
        penalises_outcome: the outcome reward becomes c - c P instead of c.
        eps: added to standard deviations; a deviation below it counts as zero.
    """

    length_coef: float = 1.0
    tau: float = 1.0
    in_deviations: bool = False
    monotone_weights: bool = False
    outcome_weight: float = 1.0
    process_weight: float = 0.3
    centres_steps: bool = True
    price_by_weights: bool = False
    step_noise: float = 0.0
    step_constant: float = 0.0
    penalises_outcome: bool = False
    eps: float = 1e-6

    @property
    def needs_scores(self) -> bool:
        """Whether the policy has to score the answer after each step."""
        return self.process_weight > 0

"""The coefficients of the step arithmetic."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Coefficients:
    """Weights and constants of the unified advantage, with the paper's symbols."""

    length_coef: float = 1.0  # lambda, of the penalty mass
    tau: float = 1.0  # of the penalty's softmax, in nats
    in_deviations: bool = False  # whether tau is in standard deviations of a group's gains instead
    monotone_weights: bool = (
        False  # whether the softmax is of the monotone gains Delta, or of the local gains g
    )
    outcome_weight: float = 1.0  # beta
    process_weight: float = 0.3  # theta; 0 needs no step scores
    centres_steps: bool = (
        True  # whether step rewards are normalised around their mean, or around zero
    )
    price_by_weights: bool = (
        False  # whether a response's steps share by w what the mean charges it, or alike
    )
    step_discount: float = 1.0  # gamma: of a later step's reward, per step in between
    rewards_need: bool = False  # whether a step earns gain plus need, or gain less penalty
    step_noise: float = (
        0.0  # lower bound, in nats, of the deviation that step rewards are divided by
    )
    step_constant: float = (
        0.0  # taken off every *normalised* step reward; before normalisation it would cancel out
    )
    penalises_outcome: bool = False  # the outcome reward becomes c - c P instead of c
    eps: float = 1e-6  # added to standard deviations; a deviation below it counts as zero

    @property
    def needs_scores(self) -> bool:
        """Whether the policy has to score the answer after each step."""
        return self.process_weight > 0

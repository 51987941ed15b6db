r"""Sampled answers beside step scores: `vsrm` with its cuts at the ends of steps.

The answer is scored there, too.

    bash studies/toy_tasks/train_swap.sh --swap.objective studies.comparison.step_rewards:Both \
        --swap.Both.answer_tokens 30

It trains as vsrm does, and logs how far both kinds agree, over the steps of correct responses.
"""

from __future__ import annotations

from itertools import chain

import torch
from torch import Tensor

from openrlhf_swap.objectives.base import Continuation
from openrlhf_swap.objectives.peers.vsrm import VSRM, step_rewards
from openrlhf_swap.rollouts.reader import ResponseReader, StepReader
from openrlhf_swap.rollouts.rollout import Batch, Rollout

NOISE = 0.02  # of a probability; as in vsrm_scores


class Both(VSRM):
    """Vsrm with cuts at the ends of steps, beside the answer's probability there."""

    scores_steps = True

    def continuations(self, rollout: Rollout, reader: ResponseReader) -> list[Continuation]:
        """Answers after each step of a correct response: no other is scored."""
        assert isinstance(reader, StepReader)
        ends = reader.step_ends(rollout.response_ids) if rollout.correct else ()
        return [
            Continuation(end + 1, reader.end_of_thought, self.answer_tokens, self.answers)
            for end in ends
        ]

    def token_advantages(self, batch: Batch) -> Tensor:
        """Those of vsrm; keeps both kinds of levels and rewards for `metrics`."""
        scored = [rollout for rollout in chain.from_iterable(batch.groups) if rollout.probes]
        levels = []
        rewards = []
        for rollout in scored:
            accuracies = [accuracy for _, accuracy in rollout.probes]
            probabilities = torch.tensor(rollout.answer_logprobs[1:]).exp().tolist()
            levels += list(zip(accuracies, probabilities, strict=True))
            sampled = step_rewards(accuracies, self.least_change)
            rewards += list(zip(sampled, step_rewards(probabilities, NOISE), strict=True))
        self._agreement = {"accuracy": torch.tensor(levels), "reward": torch.tensor(rewards)}
        return super().token_advantages(batch)

    def metrics(self) -> dict[str, float]:
        """Pearson correlations of the levels and of the step rewards, over the batch's steps."""
        found = self._agreement.items()
        return {
            f"swap/both_{name}_correlation": torch.corrcoef(pairs.T)[0, 1].item()
            for name, pairs in found
        }

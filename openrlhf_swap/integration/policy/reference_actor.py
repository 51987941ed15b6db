"""OpenRLHF's reference model in a process that is prepared for it."""

from __future__ import annotations

from typing import Any

from openrlhf.trainer.ray.launcher import ReferenceModelActor

from openrlhf_swap.integration.inventory import REFERENCE_LOADS
from openrlhf_swap.integration.patches import in_force, undecorated

_StockReferenceActor: Any = undecorated(ReferenceModelActor)


class SwapReferenceActor(_StockReferenceActor):
    """OpenRLHF's reference actor; importing it from here prepares its process."""

    def init_model_from_pretrained(self, strategy: Any, pretrain: str) -> None:
        """Overrides OpenRLHF's: log-probabilities are made in chunks, as the policy's are."""
        with in_force(REFERENCE_LOADS):
            super().init_model_from_pretrained(strategy, pretrain)
        self.model.hold_logits_of(strategy.args.swap_run.logits_chunk)

"""OpenRLHF's reference model in a process that is prepared for it."""

from __future__ import annotations

from typing import Any

from openrlhf.trainer.ray.launcher import ReferenceModelActor

from openrlhf_swap.integration.patches import rebound, undecorated
from openrlhf_swap.integration.policy.chunked_actor import ChunkedActor

_StockReferenceActor: Any = undecorated(ReferenceModelActor)


class SwapReferenceActor(_StockReferenceActor):
    """OpenRLHF's; a process that imports it from here has what `openrlhf_swap.integration` prepares."""

    def init_model_from_pretrained(self, strategy: Any, pretrain: str) -> None:
        """As OpenRLHF's, with the log-probabilities made as the policy's are."""
        with rebound({"openrlhf.trainer.ray.launcher.Actor": ChunkedActor}):
            super().init_model_from_pretrained(strategy, pretrain)
        self.model.hold_logits_of(strategy.args.swap_run.logits_chunk)

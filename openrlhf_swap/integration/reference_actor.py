"""OpenRLHF's reference model in a process that is prepared for it."""

from __future__ import annotations

from typing import Any

from openrlhf.trainer.ray.launcher import ReferenceModelActor

from openrlhf_swap.integration.patches import undecorated

_StockReferenceActor: Any = undecorated(ReferenceModelActor)


class SwapReferenceActor(_StockReferenceActor):
    """OpenRLHF's; a process that imports it from here has what `openrlhf_swap.integration` prepares."""

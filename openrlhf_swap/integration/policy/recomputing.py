"""An update that recomputes all of a layer but its products and its attention."""

from functools import partial
from typing import Any

from torch.utils.checkpoint import create_selective_checkpoint_contexts

from openrlhf_swap.packages.kernels import PRODUCTS_AND_ATTENTION


def keep_products(model: Any) -> None:
    """Let a model with gradient checkpointing keep the results of products and attention.

    Takes the place of OpenRLHF's own checkpointing, which recomputes them, too. The rest is
    recomputed from these results, so that gradients are the same bit for bit.
    """
    contexts = partial(create_selective_checkpoint_contexts, PRODUCTS_AND_ATTENTION)
    model.gradient_checkpointing_enable({"use_reentrant": False, "context_fn": contexts})

"""The attention that a run takes, with or without flash-attn.

Where flash-attn is not installed, only the modules that OpenRLHF imports get a stand-in, not `flash_attn` itself, so
transformers and vLLM still see that there is none.
"""

from __future__ import annotations

import importlib.util
from functools import cache

from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig

from openrlhf_swap.integration.patches import EVERY, NO_FLASH, install
from openrlhf_swap.packages.kernels import leave_out_cudnn
from openrlhf_swap.packages.versions import installed_version

FLASH = "flash_attention_2"


@cache
def is_installed() -> bool:
    return importlib.util.find_spec("flash_attn") is not None


@cache
def prepare() -> None:
    """Set up the process for its kernels. Idempotent.

    OpenRLHF can be imported without flash-attn, vLLM samples without a compiler, and torch's SDPA leaves out cuDNN.
    """
    install(EVERY)
    leave_out_cudnn()
    if not is_installed() and installed_version("openrlhf"):
        install(NO_FLASH)


@cache
def implementation(asked: str, model: str) -> str:
    """The attention that actor and reference model run with: as asked, or the best that is there and the model has.

    Args:
        asked: `--ds.attn_implementation`.
        model: folder or id; code that comes with it is trusted, as OpenRLHF does.
    """
    if asked not in (FLASH, "sdpa"):
        return asked
    code = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(AutoConfig.from_pretrained(model, trust_remote_code=True)), None)
    # gpt-oss takes flash-attention with sinks, from kernels of the hub, only.
    has_flash = getattr(code, "_supports_flash_attn", True) and not getattr(
        code, "_compatible_flash_implementations", None
    )
    if asked == FLASH and is_installed() and has_flash:
        return FLASH
    return "sdpa" if getattr(code, "_supports_sdpa", True) else "eager"


def summary(asked: str, model: str) -> str:
    """One line: which attention a run takes, and what the other would change."""
    masks = "packed or padded rows get masks of length x length"
    taken = implementation(asked, model)
    if taken == FLASH:
        return f"attention: flash-attn; with --ds.attn_implementation sdpa, {masks}"
    if taken == "eager" != asked:
        return f"attention: eager, because the code of {model} has no {asked}; {masks}"
    remedy = "is installed" if is_installed() else "can be had on GPUs: FLASH_ATTN=1 bash scripts/setup.sh"
    return f"attention: {taken}, where {masks}; flash-attn, which needs none, {remedy}"

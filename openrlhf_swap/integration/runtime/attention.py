"""The attention that a run takes, with or without flash-attn.

Where flash-attn is not installed, only the modules that OpenRLHF imports get a stand-in, not `flash_attn` itself, so
transformers and vLLM still see that there is none.
"""

import importlib.util
from functools import cache

from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig

from openrlhf_swap.integration.patches import EVERY, NO_FLASH, install
from openrlhf_swap.integration.runtime import packed_rows
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
    packed_rows.register()
    if not is_installed() and installed_version("openrlhf"):
        install(NO_FLASH)


@cache
def implementation(asked: str, model: str) -> str:
    """The attention that actor and reference model run with: as asked, or the best that is there and the model has.

    `asked` is `--ds.attn_implementation`. Code that comes with the model is trusted, as OpenRLHF does.
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
    if not getattr(code, "_supports_sdpa", True):
        return "eager"
    return packed_rows.NAME if getattr(code, "_supports_attention_backend", False) else "sdpa"


def summary(asked: str, model: str) -> str:
    """One line: which attention a run takes, and what it costs."""
    taken = implementation(asked, model)
    masks = "with masks of length x length for padded and packed rows"
    costs = {
        FLASH: "flash-attn",
        packed_rows.NAME: "torch's; packed responses get no masks, padded rows get masks of length x length",
        "sdpa": f"sdpa, {masks}",
        "eager": "eager" if asked == "eager" else f"eager, because the code of {model} has no {asked}; {masks}",
    }
    return f"attention: {costs.get(taken, taken)}"

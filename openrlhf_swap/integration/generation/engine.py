"""Arguments of vLLM's engines, and an engine for commands that only generate."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from openrlhf_swap.flags.device import is_cpu_build
from openrlhf_swap.integration.runtime.cpu import set_cpu_environment

if TYPE_CHECKING:
    from vllm import LLM


def open_engine(model: str, longest: int | None = None, **options: Any) -> LLM:
    """A vLLM engine in this process. Its KV cache outlives the object: `close_engine` before another is opened.

    Args:
        model: folder or hub id.
        longest: tokens of the longest prompt and response together. vLLM's cache has to have room for a sequence of
            the engine's context, which is then no longer than this.
        options: for `vllm.LLM`; they override ours.
    """
    defaults: dict[str, Any] = {"dtype": "bfloat16"}
    if is_cpu_build():
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
        set_cpu_environment()
        # On a CPU, vLLM cannot revoke a seeded token sampled for a partly read prompt, so prompts are read whole.
        defaults |= {"enforce_eager": True, "gpu_memory_utilization": 0.2, "enable_chunked_prefill": False}

    from vllm import LLM, EngineArgs

    options = {**defaults, **options}
    if longest is not None:
        # vLLM knows a model's context: rope scaling and the tokenizer's limit change what its configuration says.
        context = EngineArgs(model, **options).create_model_config().max_model_len
        options["max_model_len"] = min(longest, context)
    return LLM(model, **options)


def close_engine(engine: LLM) -> None:
    """Free what an engine of `open_engine` holds; it cannot generate afterwards."""
    engine.llm_engine.engine_core.shutdown()


def expert_kernels(model: str) -> dict[str, str]:
    """Arguments with which vLLM's engines keep the weights of experts as they are in a checkpoint.

    On GPUs newer than Hopper, vLLM 0.29 prefers kernels that reorder these weights once, after loading: those that the
    policy sends later would be put into the wrong places.

    Args:
        model: folder or id; code that comes with it was allowed before.
    """
    from transformers import AutoConfig
    from vllm.transformers_utils.model_arch_config_convertor import (
        MODEL_ARCH_CONFIG_CONVERTORS,
        ModelArchConfigConvertorBase,
    )

    config = AutoConfig.from_pretrained(model, trust_remote_code=True)
    convertor = MODEL_ARCH_CONFIG_CONVERTORS.get(config.model_type, ModelArchConfigConvertorBase)
    experts = convertor(config, config.get_text_config()).get_num_experts()
    if not experts or getattr(config, "quantization_config", None):  # which has kernels of its own
        return {}
    return {"moe_backend": "triton"}

"""Arguments of vLLM's engines for the rollouts."""

from __future__ import annotations


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

"""Which way the weights of a run take to its engines, and what this asks of vLLM.

The senders and receivers stand in `worker`, whose import takes seconds.
"""

from types import SimpleNamespace
from typing import Any

from transformers import PretrainedConfig

from openrlhf_swap.packages import is_cpu_build

# vLLM's worker imports the module of its extension, and so knows our receivers.
EXTENSION = "openrlhf_swap.integration.weights.worker.WorkerExtension"


def share_gpus(args: SimpleNamespace) -> bool:
    """Whether engines and policy have the same GPUs."""
    return bool(args.train.colocate_all and not args.train.async_enable)


def way_of(args: SimpleNamespace) -> str:
    """The name of a run's receiver: by a shared GPU's memory, over NCCL, or as bytes over Ray."""
    if args.vllm.sync_backend == "nccl" and share_gpus(args):
        return "swap_ipc"
    return "swap_bytes" if is_cpu_build() else "swap_nccl"


def engine_arguments(args: SimpleNamespace) -> dict[str, Any]:
    """The arguments of vLLM for an engine that receives weights."""
    return {"worker_extension_cls": EXTENSION, "weight_transfer_config": {"backend": way_of(args)}}


def expert_kernels(config: PretrainedConfig) -> dict[str, str]:
    """The arguments of vLLM that keep experts' weights in the order in which they are sent.

    On GPUs after Hopper, vLLM 0.29 would reorder them.
    """
    # vLLM's module cannot be the first of its package that a process imports.
    from vllm.transformers_utils.model_arch_config_convertor import (
        MODEL_ARCH_CONFIG_CONVERTORS,
        ModelArchConfigConvertorBase,
    )

    convertor = MODEL_ARCH_CONFIG_CONVERTORS.get(config.model_type, ModelArchConfigConvertorBase)
    experts = convertor(config, config.get_text_config()).get_num_experts()
    is_quantized = getattr(config, "quantization_config", None)  # it has kernels of its own
    if not experts or is_quantized:
        return {}
    return {"moe_backend": "triton"}

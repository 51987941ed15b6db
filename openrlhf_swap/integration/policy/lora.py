"""LoRA adapters: the model under them, and their way to vLLM, which knows the model without them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from peft import PeftModel
from peft.tuners.lora import LoraLayer
from torch import nn


def without_adapters(model: nn.Module) -> Any:
    """The model itself where `model` wraps it in adapters; else `model`."""
    return model.get_base_model() if isinstance(model, PeftModel) else model


def named_weights(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """The weights of the model without its adapters, by the plain model's names."""
    return [
        (name.removeprefix("base_model.model.").replace(".base_layer.", "."), parameter)
        for name, parameter in model.named_parameters()
        if ".lora_" not in name
    ]


@contextmanager
def merged_into_weights(model: nn.Module) -> Iterator[None]:
    """Meanwhile the weights have the adapters added.

    Does nothing for a model without adapters. The weights without adapters are kept beside the merged ones and put
    back: subtracting the adapters again would not give the same numbers in bfloat16.
    """
    layers = [module for module in model.modules() if isinstance(module, LoraLayer)]
    kept = [layer.get_base_layer().weight.data for layer in layers]
    for layer in layers:
        weight = layer.get_base_layer().weight
        for adapter in layer.active_adapters:
            weight.data = weight.data + layer.get_delta_weight(adapter)
    try:
        yield
    finally:
        for layer, weight in zip(layers, kept, strict=True):
            layer.get_base_layer().weight.data = weight

"""A policy with LoRA adapters, as those see it that want whole weights under the plain names."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from peft import PeftModel
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn


def without_adapters(model: nn.Module) -> Any:
    """The model itself where `model` wraps it in adapters; else `model`."""
    return model.get_base_model() if isinstance(model, PeftModel) else model


def named_weights(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """The weights of the model without its adapters, by the plain model's names, as vLLM's are."""
    return [
        (_plain(name), parameter)
        for name, parameter in model.named_parameters()
        if ".lora_" not in name
    ]


def merges(model: nn.Module) -> dict[str, Callable[[], Tensor]]:
    """By plain name, functions that make a layer's weight with what its adapters add to it.

    Their result has the weight's shape and dtype. The weight itself stays as it is: in bfloat16,
    adding and subtracting would change it.
    """
    return {
        _plain(f"{name}.weight"): partial(_merged, layer)
        for name, layer in model.named_modules()
        if isinstance(layer, LoraLayer)
    }


@torch.no_grad()
def _merged(layer: Any) -> Tensor:
    weight = layer.get_base_layer().weight.detach()
    for adapter in layer.active_adapters:
        sum_of_both = weight + layer.get_delta_weight(adapter)
        weight = sum_of_both.to(weight.dtype)  # peft may keep adapters in float32
    return weight


def _plain(name: str) -> str:
    return name.removeprefix("base_model.model.").replace(".base_layer.", ".")

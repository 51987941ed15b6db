"""Weights beside those that are trained: with LoRA adapters added, and their moving average
(`--train.enable_ema`).

OpenRLHF keeps the average in bfloat16, which rounds away what an update adds to it, and leaves it
out of checkpoints. The first rank saves the model, so it alone keeps the average, in float32 and
main memory; others keep an empty one. Sharded weights (ZeRO-3) are refused before a run starts.
"""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn

FILE = "moving_average.pt"


def without_adapters(model: nn.Module) -> Any:
    """The model itself where `model` wraps it in adapters; else `model`."""
    return model.get_base_model() if isinstance(model, PeftModel) else model


def named_weights(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """The weights of the model without its adapters, by the plain model's names, which vLLM knows."""
    return [
        (name.removeprefix("base_model.model.").replace(".base_layer.", "."), parameter)
        for name, parameter in model.named_parameters()
        if ".lora_" not in name
    ]


@contextmanager
def _holding(values: Iterable[tuple[nn.Parameter, Tensor]]) -> Iterator[None]:
    """Let parameters hold other values inside the block, and put their own back."""
    kept = []
    try:
        for parameter, value in values:
            kept.append((parameter, parameter.data))
            parameter.data = value
        yield
    finally:
        for parameter, data in kept:
            parameter.data = data


def merged_into_weights(model: nn.Module) -> AbstractContextManager[None]:
    """Add the adapters to the weights inside the block; subtracting them again would change weights
    in bfloat16.
    """
    layers = [
        (module, module.get_base_layer().weight)
        for module in model.modules()
        if isinstance(module, LoraLayer)
    ]
    return _holding(
        (weight, sum(map(layer.get_delta_weight, layer.active_adapters), weight.data))
        for layer, weight in layers
    )


def begin_average(average: nn.Module, first: bool) -> None:
    """Turn a model that was just loaded into the average, which only the first rank holds."""
    for parameter in average.parameters():
        parameter.data = parameter.data.cpu().float() if first else parameter.data.new_empty(0)


def rounded_average(average: nn.Module | None) -> AbstractContextManager[None]:
    """Hold the average, if there is one, in bfloat16 inside the block, as the policy is exported."""
    parameters = () if average is None else average.parameters()
    return _holding((parameter, parameter.data.bfloat16()) for parameter in parameters)


def save_average(checkpoint: Path, average: nn.Module, strategy: Any) -> None:
    weights = [parameter.data for parameter in average.parameters()]
    torch.save({"weights": weights, "updates": strategy.time_steps["ema"]}, checkpoint / FILE)


def load_average(checkpoint: Path, average: nn.Module, strategy: Any) -> None:
    state = torch.load(checkpoint / FILE, weights_only=True, mmap=True)
    for parameter, saved in zip(average.parameters(), state["weights"], strict=True):
        parameter.data.copy_(saved)
    strategy.time_steps["ema"] = state["updates"]

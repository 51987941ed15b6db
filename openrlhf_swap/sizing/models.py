"""The sizes of GPUs and models."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from openrlhf_swap.errors import ConfigError, reader_errors

GIB = 2**30


@dataclass(frozen=True)
class Peaks:
    """What a GPU reaches at most, by its data sheet."""

    operations: float  # dense bf16 operations a second
    bandwidth: float  # bytes a second


@dataclass(frozen=True)
class GpuModel:
    """A GPU with its memory, and its speed if that is known."""

    gib: float  # of memory, as CUDA reports it
    peaks: Peaks | None = None  # None if unknown

    @property
    def memory(self) -> int:
        """Bytes of memory."""
        return int(self.gib * GIB)


GPUS = {
    "a100-40": GpuModel(39.4, Peaks(312e12, 1.555e12)),
    "a100-80": GpuModel(79.1, Peaks(312e12, 2.039e12)),
    "h100": GpuModel(79.1, Peaks(989e12, 3.35e12)),
    "h200": GpuModel(139.8, Peaks(989e12, 4.8e12)),
    "b200": GpuModel(178.3, Peaks(2250e12, 8.0e12)),
    "l40s": GpuModel(44.4, Peaks(362e12, 0.864e12)),
    "rtx4090": GpuModel(23.5, Peaks(165e12, 1.008e12)),
}
PRESETS: dict[str, dict[str, Any]] = yaml.safe_load(
    (Path(__file__).parent / "models.yaml").read_text("utf-8")
)


def _short_name(path: str) -> str:
    """A short name such as r1-7b or qwen2.5-0.5b."""
    name = path.rpartition("/")[2].lower().removesuffix("-instruct")
    return name.replace("deepseek-r1-distill-qwen", "r1")


SHORT_NAMES = {_short_name(path): path for path in PRESETS}


@dataclass(frozen=True)
class Model:
    """A decoder of grouped-query, latent or recurrent layers, with gated MLPs or experts."""

    parameters: int  # N, tied weights once; without adapters
    largest: int  # parameters of the largest trained weight
    looked_up: int  # parameters of an untied input embedding: they multiply nothing
    layers: int
    hidden: int
    heads: int
    query: int  # heads times their size, the mean of keys' and values' where these differ
    key_value: int  # key-value heads times their size
    intermediate: int  # width of all MLPs that a token passes in a layer
    vocabulary: int
    windows: tuple[float, ...] = ()  # tokens that each layer with keys sees at most
    cached: int = 0  # numbers that each of these keeps per token
    states: int = 0  # numbers that all recurrent layers keep per response
    idle: int = 0  # parameters of experts that a token is not routed to
    adapters: int = 0  # parameters of LoRA adapters, which are then all that is trained
    weights: tuple[int, ...] = ()  # parameters of each trained weight
    served: tuple[int, ...] = ()  # parameters of each weight in vLLM, which joins some
    largest_sent: int = 0  # parameters of the largest weight that travels to vLLM
    largest_merged: int = 0  # parameters of the largest weight that adapters are added to

    @property
    def multiplying(self) -> int:
        """Parameters that multiply a token."""
        return self.parameters - self.looked_up - self.idle

    def pairs(self, tokens: float) -> float:
        """Pairs of attending tokens in a causal forward, over all layers."""
        within = [min(window, tokens) for window in self.windows]
        return sum(seen * tokens - seen**2 / 2 for seen in within)

    @property
    def trained(self) -> int:
        """Parameters that the optimizer updates."""
        return self.adapters or self.parameters

    @property
    def held(self) -> int:
        """Parameters of the actor."""
        return self.parameters + self.adapters


def gib(size: float) -> str:
    """Bytes as GiB with one decimal."""
    return f"{size / GIB:.1f}"


def read_model(
    path: str,
    context: int,
    rank: int = 0,
    targets: str | Sequence[str] = "all-linear",
) -> Model:
    """Build a model, of a folder or the Hub, without its weights, and measure it.

    `context` has the tokens of prompt and response together; `targets` names the layers that get
    adapters of LoRA's `rank`, 0 for none. Raises ConfigError when the configuration cannot be read
    or is not supported.
    """
    model = _without_weights(path)
    config = model.config.get_text_config()
    refused = f"--actor.model_name_or_path is {path}, "
    for name in ("num_key_value_heads", "intermediate_size", "max_position_embeddings"):
        if not hasattr(config, name):
            raise ConfigError(
                f"{refused}which has no {name}; the plan supports models like Qwen and Llama"
            )
    if context > config.max_position_embeddings:
        raise ConfigError(
            f"--data.max_len is {context}, but {path} takes {config.max_position_embeddings} tokens"
        )
    sizes = [parameter.numel() for parameter in model.parameters()]
    adapted = _adapted_layers(model, targets) if rank else []
    if rank and not adapted:
        raise ConfigError(
            f"--ds.lora.target_modules is {targets}, which names no linear layer of {path}"
        )
    # An adapter of a layer has two weights.
    adapters = [rank * size for layer in adapted for size in layer.weight.shape]
    embedding = model.get_input_embeddings().weight
    output = model.get_output_embeddings().weight
    attention = _attention(config)
    layers = _cached_layers(config)
    experts = [weight for name, weight in model.named_parameters() if ".experts." in name]
    return Model(
        parameters=sum(sizes),
        largest=max(adapters or sizes),
        looked_up=0 if embedding is output else embedding.numel(),
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        query=attention.query,
        key_value=attention.key_value,
        intermediate=_mlp_width(config, experts),
        vocabulary=config.vocab_size,
        windows=_windows(layers),
        cached=attention.cached,
        states=_recurrent_states(layers, config, refused),
        idle=_idle_experts(config, experts),
        adapters=sum(adapters),
        weights=tuple(adapters or sizes),
        served=_served(model),
        largest_sent=max(sizes),
        largest_merged=max((layer.weight.numel() for layer in adapted), default=0),
    )


def _adapted_layers(model: Any, targets: str | Sequence[str]) -> list[Any]:
    """The linear layers that get adapters: all but the output, or those that are named."""
    from torch.nn import Linear

    output = model.get_output_embeddings()
    every = targets in ("all-linear", ["all-linear"])
    return [
        layer
        for name, layer in model.named_modules()
        if isinstance(layer, Linear)
        and layer is not output
        and (every or name.rpartition(".")[2] in targets)
    ]


def _served(model: Any) -> tuple[int, ...]:
    """Parameters of each weight in vLLM.

    It has one for queries, keys and values of a layer, and one for gate and up.
    """
    served: Counter[str] = Counter()
    for name, weight in model.named_parameters():
        joined = re.sub(r"\b[qkv]_proj\b", "qkv_proj", name)
        joined = re.sub(r"\b(gate|up)_proj\b", "gate_up_proj", joined)
        served[joined] += weight.numel()
    return tuple(served.values())


def head_size(config: Any) -> int:
    """Numbers of an attention head, by the configuration of a model without latent attention."""
    size = getattr(config, "head_dim", None)
    return int(size or config.hidden_size // config.num_attention_heads)


@dataclass(frozen=True)
class _Attention:
    """Widths of a layer's attention."""

    query: int  # of the queries of all heads; the mean of keys' and values' where these differ
    key_value: int  # of the keys of all heads
    cached: int  # numbers that the layer keeps per token


def _attention(config: Any) -> _Attention:
    heads = config.num_attention_heads
    latent = getattr(config, "kv_lora_rank", None)
    if latent:
        keys = config.qk_nope_head_dim + config.qk_rope_head_dim
        query = heads * (keys + config.v_head_dim) // 2
        return _Attention(query, heads * keys, latent + config.qk_rope_head_dim)
    size = head_size(config)
    width = config.num_key_value_heads * size
    return _Attention(heads * size, width, 2 * width)


def _cached_layers(config: Any) -> list[Any]:
    """The layers of a cache of transformers, each with what it keeps."""
    from transformers import DynamicCache

    return list(DynamicCache(config=config).layers)


def _windows(layers: list[Any]) -> tuple[float, ...]:
    """The most tokens that each layer with keys sees; infinity for one without a window."""
    keeping = [layer for layer in layers if hasattr(layer, "keys")]
    limits = [getattr(layer, "sliding_window", None) for layer in keeping]
    return tuple(float(limit or math.inf) for limit in limits)


def _recurrent_states(layers: list[Any], config: Any, refused: str) -> int:
    """Numbers that all recurrent layers keep per response.

    Raises ConfigError, whose message starts with `refused`, for layers without a formula.
    """
    recurrent = sum(hasattr(layer, "conv_states") for layer in layers)
    if not recurrent:
        return 0
    if not hasattr(config, "linear_num_value_heads"):
        raise ConfigError(
            f"{refused}with recurrent layers of a kind that the plan does not support"
        )
    keys = config.linear_num_key_heads * config.linear_key_head_dim
    values = config.linear_num_value_heads * config.linear_value_head_dim
    convolution = (2 * keys + values) * config.linear_conv_kernel_dim  # of the last tokens
    return int(recurrent * (values * config.linear_key_head_dim + convolution))


def _idle_experts(config: Any, experts: list[Any]) -> int:
    """Parameters of the experts that a token is not routed to.

    A weight in `experts` is stacked: it is that of all experts of a layer.
    """
    if not experts:
        return 0
    routed = sum(weight.numel() for weight in experts)
    return int(routed - routed * config.num_experts_per_tok // len(experts[0]))


def _mlp_width(config: Any, experts: list[Any]) -> int:
    """Width of all MLPs that a token passes in a layer."""
    if not experts:
        return int(config.intermediate_size)
    width = getattr(config, "moe_intermediate_size", None) or config.intermediate_size
    shared = getattr(config, "shared_expert_intermediate_size", None)
    if not shared:
        shared = width * (getattr(config, "n_shared_experts", None) or 0)
    return int(config.num_experts_per_tok * width + shared)


def model_config(path: str) -> Any:
    """The model's configuration, from the known ones or as transformers finds it."""
    from transformers import AutoConfig

    if path in PRESETS:
        return AutoConfig.for_model(**PRESETS[path])
    return AutoConfig.from_pretrained(path)


@cache
def _without_weights(path: str) -> Any:
    """The model on torch's meta device, which holds shapes alone; raises ConfigError."""
    import torch
    from transformers import AutoModelForCausalLM

    make_model: Any = AutoModelForCausalLM.from_config  # untyped
    message = (
        f"--actor.model_name_or_path is {path}, whose configuration cannot be read ({{reason}}); "
        "give a folder with config.json, a model id of the hub, or one that is known offline: "
        f"{', '.join(PRESETS)}"
    )
    with reader_errors(message, ConfigError), torch.device("meta"):
        return make_model(model_config(path))

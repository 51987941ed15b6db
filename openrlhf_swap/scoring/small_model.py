"""A small random model, to try a family's code before the model itself is loaded."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import PretrainedConfig, PreTrainedModel

WORDS = 32
# Sizes that nothing else depends on, and what they are reduced to; at last limits that even the
# few tokens of a trial must exceed.
_LIMIT = 8
_SMALLER = {
    "vocab_size": WORDS,
    "vocab_size_per_layer_input": WORDS,
    "intermediate_size": 64,
    "intermediate_size_mlp": 64,
    "moe_intermediate_size": 32,
    "num_experts": 8,
    "num_local_experts": 8,
    "n_routed_experts": 8,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "top_k_experts": 2,
    "first_k_dense_replace": 1,
    "num_nextn_predict_layers": 0,
    "chunk_size": 8,
    "mamba_chunk_size": 8,
    "sliding_window": _LIMIT,
    "attention_chunk_size": _LIMIT,
    "index_topk": _LIMIT,
}
_HEADS = 4
# Numbers of heads whose keys are shared, and of those that share them.
_GROUPED_HEADS = {
    "num_attention_heads": "num_key_value_heads",
    "linear_num_value_heads": "linear_num_key_heads",
}
_SPECIAL_TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id")


def small_model(
    config: PretrainedConfig,
    build: Callable[[PretrainedConfig], PreTrainedModel],
    device: torch.device | str = "cpu",
) -> PreTrainedModel:
    """Build a small float32 model of the same architecture, in eval mode.

    It has a few layers of each kind, few heads, windows of 8 tokens and a vocabulary of 32. Its
    random weights are larger than usual initial weights, so that no layer's effect is too small to
    be noticed. The global random state is left as it was. An architecture that does not allow these
    sizes to be chosen freely raises errors of its own when the model is built or run.
    """
    on_gpu = torch.device(device).type == "cuda"
    devices = [device] if on_gpu else []
    with torch.random.fork_rng(devices=devices), torch.no_grad(), torch.device(device):
        torch.manual_seed(0)
        model: Any = build(_shrunk(config))
        model.float().eval()
        for weights in model.parameters():
            if weights.dim() > 1:
                weights.normal_(std=weights.shape[-1] ** -0.5)
            else:
                weights.add_(torch.randn_like(weights), alpha=0.3)
    built: PreTrainedModel = model
    return built


def _shrunk(config: PretrainedConfig) -> PretrainedConfig:
    small = copy.deepcopy(config)
    text = small.get_text_config()
    _keep_layers(text)
    _make_narrow(text)
    if "flash" in (small._attn_implementation or ""):
        small._attn_implementation = None  # the best that has float32, which flash has not
    for name, size in _SMALLER.items():
        known = getattr(text, name, None)
        if isinstance(known, int):
            setattr(text, name, min(size, known))
    for name in _SPECIAL_TOKENS:
        if getattr(text, name, None) is not None:
            setattr(text, name, 0)
    rope = getattr(text, "rope_parameters", None) or {}
    if "original_max_position_embeddings" in rope:  # some use other frequencies beyond it
        rope["original_max_position_embeddings"] = 4 * _LIMIT
    return small


def _make_narrow(config: PretrainedConfig) -> None:
    """Reduce the heads, with groups of the same size, and the width to 16 for each head."""
    for queries, keys in _GROUPED_HEADS.items():
        heads = getattr(config, queries, None)
        shared = getattr(config, keys, None)
        if heads and shared:
            group = heads // shared
            kept = max(_HEADS, group)
            setattr(config, queries, kept)
            setattr(config, keys, kept // group)
    config.hidden_size = 16 * config.num_attention_heads
    if getattr(config, "mamba_num_heads", None):
        config.mamba_num_heads = config.n_groups
    if getattr(config, "mamba_d_ssm", None):
        config.mamba_n_heads = config.mamba_n_groups
        config.mamba_d_ssm = config.mamba_n_groups * config.mamba_d_head
    elif getattr(config, "mamba_n_heads", None):
        config.mamba_n_heads = config.mamba_expand * config.hidden_size // config.mamba_d_head


def _keep_layers(config: PretrainedConfig) -> None:
    """Cut everything that is listed by layer to the first few of each kind.

    As many layers stay that share their keys, if any do.
    """
    layers: int = config.num_hidden_layers
    shared = getattr(config, "num_kv_shared_layers", None) or 0
    kinds = {}
    for name, value in vars(config).items():
        if _is_by_layer(value, layers):
            kinds[name] = value
    few = 2
    for value in (getattr(config, "layer_types", None), *kinds.values()):
        if value:
            few = max(few, _covering(value[: layers - shared]))
    kept = list(range(min(few, layers - shared)))
    if shared:
        kept += range(layers - shared, min(layers, layers - shared + few))
        config.num_kv_shared_layers = len(kept) - few
    for name, value in kinds.items():
        setattr(config, name, [value[number] for number in kept])
    if config.num_hidden_layers != len(kept):  # some compute it from their layers
        config.num_hidden_layers = len(kept)


def _is_by_layer(value: object, layers: int) -> bool:
    return isinstance(value, list | tuple) and len(value) == layers


def _covering(kinds: Sequence[object]) -> int:
    """The length of the shortest prefix that holds one of each kind."""
    seen = [kinds.index(kind) for kind in set(kinds) if isinstance(kind, str | int)]
    return max(seen, default=0) + 1

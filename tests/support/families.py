"""A small random model of each family, for the tests of scoring."""

import copy
import functools

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, Gemma2PreTrainedModel

from openrlhf_swap.scoring.small_model import small_model

WORDS = 32
SHAPE = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
WINDOW = {"sliding_window": 8}
MIXED = {**WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
DELTA = {
    "num_hidden_layers": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
MAMBA = {"mamba_d_head": 8, "mamba_d_state": 8, "mamba_chunk_size": 8}
ROUTED = {
    **EXPERTS,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
LATENT_DIMENSIONS = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "qk_nope_head_dim": 8,
    "num_key_value_heads": 4,
}
LATENT = {**LATENT_DIMENSIONS, **ROUTED}
SHARED_KEYS = {
    **WINDOW,
    "num_hidden_layers": 4,
    "num_kv_shared_layers": 2,
    "head_dim": 8,
    "vocab_size_per_layer_input": WORDS,
    "hidden_size_per_layer_input": 8,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}
SPARSE = {"activation_sparsity_pattern": [0.0] * 4, "laurel_rank": 4}
NEMOTRON = {
    "ssm_state_size": 8,
    "mamba_num_heads": 4,
    "mamba_head_dim": 8,
    "n_groups": 2,
    "num_hidden_layers": 5,
    "head_dim": 8,
    "chunk_size": 8,
    "moe_shared_expert_intermediate_size": 16,
    "layers_block_type": ["linear_attention", "mlp", "linear_attention", "full_attention", "moe"],
}
FAMILIES = {
    # keys and values of all tokens
    "llama": {"num_key_value_heads": 1},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {"head_dim": 16},
    "qwen3_moe": {"head_dim": 16, "num_experts": 4, **EXPERTS},
    "smollm3": {"no_rope_layer_interval": 2},
    "olmo2": {},
    "glm4": {"head_dim": 8},
    "glm4_moe": {"head_dim": 8, **ROUTED},
    "seed_oss": {"head_dim": 8},
    # windows, sinks, capped scores, keys of earlier layers
    "mistral": WINDOW,
    "mixtral": {**WINDOW, "num_local_experts": 4, "num_experts_per_tok": 2},
    "phi3": WINDOW,
    "olmo3": MIXED,
    "exaone4": MIXED,
    "cohere2": MIXED,
    "gemma2": {**MIXED, "head_dim": 8},
    "gemma3_text": {**MIXED, "head_dim": 8},
    "gemma3n_text": {**SHARED_KEYS, **SPARSE, "intermediate_size": [48] * 4},
    "gemma4_text": {**SHARED_KEYS, "global_head_dim": 8},
    "gpt_oss": {**MIXED, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2},
    # latent attention
    "deepseek_v2": LATENT,
    "deepseek_v3": LATENT,
    "glm4_moe_lite": LATENT,
    "minicpm3": LATENT_DIMENSIONS,
    # recurrent layers
    "qwen3_next": {
        **DELTA,
        **EXPERTS,
        "head_dim": 8,
        "num_experts": 4,
        "shared_expert_intermediate_size": 16,
    },
    "qwen3_5_text": {**DELTA, "head_dim": 8},
    "olmo_hybrid": {**DELTA, "layer_types": ["linear_attention"] * 3 + ["full_attention"]},
    "falcon_h1": {**MAMBA, "mamba_d_ssm": 32, "mamba_n_heads": 4},
    "bamba": {**MAMBA, "mamba_n_heads": 8, "mamba_n_groups": 1, "attn_layer_indices": [1]},
    "nemotron_h": {**ROUTED, **NEMOTRON},
    "lfm2": {"num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"]},
}
# How exact these families are in float64: some part of their code (a recurrence, a softmax, a
# router of experts) computes in float32 whatever the model's dtype.
PARTLY_FLOAT32 = {
    "qwen3_next": 1e-4,
    "qwen3_5_text": 1e-4,
    "olmo_hybrid": 1e-4,
    "falcon_h1": 1e-5,
    "bamba": 1e-5,
    "nemotron_h": 1e-5,
    "gpt_oss": 1e-5,
    "qwen3_moe": 1e-5,
    "mixtral": 1e-5,
    "deepseek_v2": 1e-5,
    "deepseek_v3": 1e-5,
    "glm4_moe": 1e-5,
    "glm4_moe_lite": 1e-5,
}
if not Gemma2PreTrainedModel._supports_sdpa:  # from transformers 5.24 on, for its cap on scores
    PARTLY_FLOAT32["gemma2"] = 1e-5
RECURRENT = (
    "qwen3_next",
    "qwen3_5_text",
    "olmo_hybrid",
    "falcon_h1",
    "bamba",
    "nemotron_h",
    "lfm2",
)


def config_of(family):
    """The configuration of a family's small model."""
    changes = FAMILIES.get(family, {})
    config = CONFIG_MAPPING[family](**{**SHAPE, **copy.deepcopy(changes)})
    config._experts_implementation = "eager"  # the default knows no float64
    return config


@functools.cache
def build(family, dtype=torch.float32):
    """The small random model of a family, with weights large enough to matter."""
    return small_model(config_of(family), AutoModelForCausalLM.from_config).to(dtype)

"""Small random models of several families train two steps with Ray, vLLM and DeepSpeed."""

import os
import shutil

import pytest
from support.paths import POLICY
from support.running import SMALL_STEPS, start_training, words
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoTokenizer

from openrlhf_swap.files import read_rows

pytestmark = pytest.mark.slow
SHAPE = {
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "head_dim": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
}
MIXED = {"sliding_window": 64, "layer_types": ["sliding_attention", "full_attention"]}
EXPERTS = {"num_experts_per_tok": 2, "num_local_experts": 4}
# vLLM's code of these families has an output layer of its own.
UNTIED = {"tie_word_embeddings": False}
FAMILIES = {
    "gemma3_text": MIXED,
    "gpt_oss": {**MIXED, **EXPERTS, **UNTIED},
    "deepseek_v3": {
        **UNTIED,
        # vLLM's latent attention on a CPU supports only this cache size: 512 + 64.
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "head_dim": 64,
        "q_lora_rank": 64,
        "qk_nope_head_dim": 32,
        "v_head_dim": 32,
        "num_key_value_heads": 4,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "topk_method": "noaux_tc",
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
    },
    "qwen3_5_text": {
        "num_hidden_layers": 4,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
    },
}
ALIKE = 1e-3  # vllm_kl where vLLM has the trainer's weights
# A random model is never correct: every other response is declared so, and its steps are scored.
REWARD = """
import torch

def reward_func(queries, prompts, labels):
    rewards = torch.tensor([float(len(query) % 2) for query in queries])
    return {"rewards": rewards, "scores": rewards, "extra_logs": {"format": rewards}}
"""


def make_policy(family, folder):
    """Write a small random model of a family, with the tokenizer of the quickstart's policy."""
    shutil.copytree(POLICY, folder, ignore=shutil.ignore_patterns("*.safetensors", "config.json"))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokens = {
        "vocab_size": len(tokenizer),
        "bos_token_id": None,
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }
    config = CONFIG_MAPPING[family](**{**SHAPE, **tokens, **FAMILIES[family]})
    AutoModelForCausalLM.from_config(config, dtype="bfloat16").save_pretrained(folder)


@pytest.mark.parametrize("family", FAMILIES)
def test_two_steps_of_training(family, tmp_path, prompts_file):
    if family != "gemma3_text" and "TEST_SLOW" not in os.environ:
        pytest.skip("a minute: TEST_SLOW=1")
    if family == "qwen3_5_text":
        pytest.importorskip("torchvision", reason="vLLM's code of the family imports it")
    model = tmp_path / "model"
    make_policy(family, model)
    reward = tmp_path / "reward.py"
    reward.write_text(REWARD)
    output = tmp_path / "run"
    flags = ["--actor.model_name_or_path", str(model), "--reward.remote_url", str(reward)]
    flags += words("--data.max_samples 16 --rollout.max_new_tokens 48 --data.max_len 128")
    flags += [*SMALL_STEPS, "--algo.advantage.is_correction_level", "token"]
    result = start_training(output, prompts_file, *flags)
    said = result.stdout + result.stderr
    assert result.returncode == 0, said[-3000:]
    assert "(shared_prefix)" in said
    metrics = list(read_rows(output / "metrics.jsonl"))
    assert [line["step"] for line in metrics] == [1, 2]
    assert all(line["swap/adv_process_absmean"] > 0 for line in metrics)
    # The second step's rollouts are by weights that an update has changed and vLLM was sent.
    assert max(abs(line["vllm_kl"]) for line in metrics) < ALIKE

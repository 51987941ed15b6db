"""Two steps of training of a small random model with sliding windows, on the real stack."""

import json
import shutil

import pytest
from support.paths import POLICY
from support.running import start_training
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoTokenizer

pytestmark = pytest.mark.slow

SHAPE = {
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
}
FAMILIES = {"gemma3_text": {"sliding_window": 64, "layer_types": ["sliding_attention", "full_attention"]}}
# A random model is never right: every other response is called so, and its steps are scored.
REWARD = """
import torch

def reward_func(queries, prompts, labels):
    rewards = torch.tensor([float(len(query) % 2) for query in queries])
    return {"rewards": rewards, "scores": rewards, "extra_logs": {"format": rewards}}
"""


def make_policy(family, folder):
    shutil.copytree(POLICY, folder, ignore=shutil.ignore_patterns("*.safetensors", "config.json"))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    special = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id, "bos_token_id": None}
    config = CONFIG_MAPPING[family](**{**SHAPE, "vocab_size": len(tokenizer), **special, **FAMILIES[family]})
    AutoModelForCausalLM.from_config(config, dtype="bfloat16").save_pretrained(folder)


@pytest.mark.parametrize("family", FAMILIES)
def test_two_steps_of_training(family, tmp_path, prompts_file):
    model, reward, output = tmp_path / "model", tmp_path / "reward.py", tmp_path / "run"
    make_policy(family, model)
    reward.write_text(REWARD)
    flags = ["--actor.model_name_or_path", str(model), "--reward.remote_url", str(reward)]
    flags += ["--data.max_samples", "32", "--rollout.max_new_tokens", "48", "--data.max_len", "128"]
    result = start_training(output, prompts_file, *flags)
    said = result.stdout + result.stderr
    assert result.returncode == 0, said[-3000:]
    assert "(shared_prefix)" in said
    metrics = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in metrics] == [1, 2]
    assert all(line["swap/adv_process_absmean"] > 0 for line in metrics)

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.prefix_scores import largest_difference, masks_of, ragged_case
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from openrlhf_swap.scoring.answer import AnswerBranch
from openrlhf_swap.scoring.per_prefix import score_per_prefix

WORDS = 97
SHAPE = {
    "vocab_size": WORDS,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
}
MODELS = {
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SHAPE, num_key_value_heads=2, tie_word_embeddings=True)),
    "llama_grouped": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, num_key_value_heads=1)),
    "llama_tied": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, num_key_value_heads=4, tie_word_embeddings=True)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE, num_key_value_heads=2, head_dim=16)),
}


def build(name, dtype, attention="sdpa"):
    torch.manual_seed(0)
    model = MODELS[name]().to(dtype).eval()
    model.set_attn_implementation(attention)
    return model


@pytest.mark.parametrize("left", [False, True], ids=["right_padded", "left_padded"])
@pytest.mark.parametrize("name", MODELS)
def test_shared_prefix_equals_per_prefix(name, left):
    for seed in range(5):
        case = ragged_case(seed, rows=4, left=left, longest=40, words=WORDS)
        assert largest_difference(build(name, torch.float32), case) < 1e-4
        assert largest_difference(build(name, torch.float64), case) < 1e-9
        with masks_of(100):
            assert largest_difference(build(name, torch.float64), case) < 1e-9


@given(st.integers(0, 2**31), st.integers(1, 5), st.booleans(), st.sampled_from(sorted(MODELS)))
@settings(max_examples=30)
def test_shared_prefix_equals_per_prefix_on_any_shape(seed, rows, left, name):
    assert (
        largest_difference(build(name, torch.float64), ragged_case(seed, rows, left, longest=40, words=WORDS)) < 1e-9
    )


def test_eager_attention_agrees():
    # Eager attention takes its softmax in float32 whatever the model's dtype.
    assert (
        largest_difference(
            build("qwen2", torch.float64, "eager"), ragged_case(3, rows=4, left=False, longest=40, words=WORDS)
        )
        < 1e-5
    )


def test_per_prefix_by_hand():
    """Against the definition: the mean log-probability of the answer's tokens, from full logits."""
    model = build("llama_grouped", torch.float64)
    ids = torch.tensor([5, 6, 7, 8, 9])
    branch = AnswerBranch((1, 2, 3), (False, True, True))
    (score,) = score_per_prefix(model, ids, [4], branch)
    logprobs = model(torch.tensor([[5, 6, 7, 8, 1, 2, 3]])).logits[0].log_softmax(-1)
    # Token 2 is predicted at position 4 (after 1), token 3 at position 5 (after 2).
    assert score.item() == pytest.approx((logprobs[4, 2] + logprobs[5, 3]).item() / 2, abs=1e-12)

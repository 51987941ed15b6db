"""Scoring in segments, for models whose attention cannot be replaced: any cache that can be copied will do."""

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from openrlhf_swap.scoring.backends import PER_PREFIX, SEGMENTS, ScoringBackend, trial_batch
from openrlhf_swap.scoring.per_prefix import score_per_prefix, score_segments
from openrlhf_swap.scoring.small_model import small_model

FAMILIES = ["qwen2", "bloom", "gpt_neox", "mistral", "llama4_text", "gemma4_text", "gpt_oss", "deepseek_v3", "lfm2"]


@pytest.mark.parametrize("family", FAMILIES)
def test_segments_equal_a_forward_for_each_prefix(family):
    config = CONFIG_MAPPING[family](num_hidden_layers=4)
    model = small_model(config, AutoModelForCausalLM.from_config)
    for left in (False, True):
        segments, slow = (
            torch.cat(ScoringBackend(name).score(model, model.config, *trial_batch(left, "cpu")))
            for name in (SEGMENTS, PER_PREFIX)
        )
        assert segments.sub(slow).abs().max() < 1e-4


def test_prefixes_may_come_in_any_order_and_twice():
    model = small_model(CONFIG_MAPPING["qwen2"](), AutoModelForCausalLM.from_config).double()
    ids, _, (request, _) = trial_batch(False, "cpu")
    lengths = [30, 7, 30, 1]
    expected = score_per_prefix(model, ids[0], lengths, request.branch)
    assert score_segments(model, ids[0], lengths, request.branch, model.config).sub(expected).abs().max() < 1e-9

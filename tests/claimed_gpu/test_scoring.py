"""Scoring on a GPU as far as a machine without one can tell: no mix of devices, no waiting in a layer."""

import pytest
import torch
from support.claimed_gpu import NAME, ClaimedTensor, MixedDevicesError, claiming, device, to_claimed
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from openrlhf_swap.scoring.answer import AnswerBranch, ScoreRequest
from openrlhf_swap.scoring.shared_prefix import score_shared_prefix
from openrlhf_swap.scoring.small_model import WORDS, small_model

FAMILIES = ["qwen2", "gemma3_text", "gpt_oss", "deepseek_v3", "qwen3_5_text"]


def model_of(family):
    return small_model(CONFIG_MAPPING[family](), AutoModelForCausalLM.from_config).to(torch.bfloat16)


def batch():
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(0, WORDS, (2, 50), generator=generator)
    mask = torch.ones_like(ids)
    mask[0, 44:] = 0
    branch = AnswerBranch((3, 4, 5, 6), (False, True, True, True))
    return ids, mask, [ScoreRequest(0, (9, 20, 30, 43), branch), ScoreRequest(1, (12, 25, 49), branch)]


def test_a_mix_of_devices_raises():
    with claiming() as waits:
        there = torch.arange(4, device=device())
        assert there.device.type == NAME and isinstance(there, ClaimedTensor)
        assert (there + 1).tolist() == [1, 2, 3, 4]
        with pytest.raises(MixedDevicesError):
            there + torch.arange(4)
        with pytest.raises(MixedDevicesError):
            torch.nn.functional.embedding(torch.arange(2), there.float().unsqueeze(-1))
    assert waits


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_without_a_mix_of_devices(family):
    model, (ids, mask, requests) = model_of(family), batch()
    expected = torch.cat(score_shared_prefix(model, model.config, ids, mask, requests))
    with claiming(), torch.no_grad():
        to_claimed(model)
        given = ids.to(device()), mask.to(device())
        scores = torch.cat(score_shared_prefix(model, model.config, *given, requests))
    assert scores.device.type == "cpu"
    assert scores.sub(expected).abs().max() < 0.05  # bfloat16, in calls of other sizes

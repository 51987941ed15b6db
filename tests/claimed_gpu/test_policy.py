"""The policy's passes on a GPU, as far as a machine without one can tell: no mixed devices, no
needless waiting.
"""

import pytest
import torch
from support.claimed_gpu import NAME, ClaimedTensor, MixedDevicesError, claiming, device, to_claimed
from support.passes import FAMILIES, actor_of, micro_batch, model_of, scorer_of, update_of

from openrlhf_swap.integration.runtime import attention
from openrlhf_swap.scoring.backends import SHARED_PREFIX
from openrlhf_swap.scoring.shared_prefix import score_shared_prefix

CASES = [
    ("qwen2", True, True),
    ("gemma3_text", True, False),
    ("gpt_oss", False, False),
    ("deepseek_v3", True, True),
    ("qwen3_5_text", False, True),
]


def scored(model, packing, tokens=40):
    """The pass for log-probabilities and scores; its tensors come from the host, as from Ray."""
    ids, actions, mask, requests = micro_batch(tokens)
    scorer = scorer_of(actor_of(model, packing))
    assert scorer._backend.name == SHARED_PREFIX
    return scorer.forward(ids, actions, mask, requests)


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
def test_scores_alone(family):
    ids, _, mask, requests = micro_batch()
    model = model_of(family)
    expected = torch.cat(score_shared_prefix(model, ids, mask, requests))
    with claiming(), torch.no_grad():
        to_claimed(model)
        given = ids.to(device()), mask.to(device())
        scores = torch.cat(score_shared_prefix(model, *given, requests))
    assert scores.device.type == "cpu"
    assert scores.sub(expected).abs().max() < 0.05  # bfloat16, in calls of other sizes


@pytest.mark.parametrize(("family", "packing", "adapted"), CASES)
def test_log_probabilities_and_scores(family, packing, adapted, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "current_device", lambda: "cpu")
        expected = scored(model_of(family, adapted=adapted), packing)
    with claiming():
        ours = scored(to_claimed(model_of(family, adapted=adapted)), packing)
    assert ours.action_log_probs.device.type == "cpu"
    assert ours.action_log_probs.sub(expected.action_log_probs).abs().max() < 0.1  # bfloat16
    for one, other in zip(ours.signals, expected.signals, strict=True):
        assert (one["answer_logprobs"] - other["answer_logprobs"]).abs().max() < 0.1


@pytest.mark.parametrize(("family", "packing", "adapted"), CASES)
def test_an_update(family, packing, adapted):
    loss, norm = update_of(model_of(family, adapted=adapted), packing)
    with claiming():
        ours = [
            value.item()
            for value in update_of(to_claimed(model_of(family, adapted=adapted)), packing, device())
        ]
    assert ours == pytest.approx([loss.item(), norm.item()], rel=0.15)  # bfloat16


def kernels(query, key, value, starts, starts_k, *_, scale, window_size, enable_gqa):
    """In the place of torch's kernels for packed responses, on the same device; without a wait,
    like them.
    """
    assert starts.device == starts_k.device == query.device and window_size == (-1, 0)
    token = torch.arange(len(query), device=query.device)
    response = torch.searchsorted(starts, token, right=True)
    seen = (response[:, None] == response) & (token[:, None] >= token)
    q, k, v = (part.transpose(0, 1)[None] for part in (query, key, value))
    options = {"attn_mask": seen, "scale": scale, "enable_gqa": enable_gqa}
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)[0].transpose(0, 1)


@pytest.mark.parametrize("packing", [False, True, "by kernels"])
def test_the_host_waits_neither_for_layers_nor_for_tokens(packing, monkeypatch):
    if packing == "by kernels":
        monkeypatch.setattr(attention, "takes_kernels", lambda *_: True)
        monkeypatch.setattr(attention, "varlen_attn", kernels)
    waits = []
    for layers, tokens in ((2, 40), (5, 40), (2, 120)):
        with claiming() as counted:
            scored(to_claimed(model_of("qwen2", layers=layers)), packing, tokens)
            update_of(to_claimed(model_of("qwen2", layers=layers)), packing, device(), tokens)
        waits.append(counted)
    # One wait a chunk of logits would be nine more in the last.
    assert waits[0] == waits[1] == waits[2]

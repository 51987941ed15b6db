"""States out of a forward, against transformers' own `output_hidden_states`."""

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, LlamaConfig

from openrlhf_swap.scoring import states
from openrlhf_swap.scoring.answer import ScoreRequest
from openrlhf_swap.scoring.small_model import WORDS, small_model
from openrlhf_swap.scoring.states import read_states, recording_states

FAMILIES = ["qwen2", "gemma3_text", "gpt_oss", "deepseek_v3", "qwen3_5_text", "nemotron_h"]
FAMILIES += ["bloom", "opt", "gpt_neox"]
LENGTHS = (44, 31)


def made(family):
    return small_model(CONFIG_MAPPING[family](), AutoModelForCausalLM.from_config)


def rows(left=False):
    """Two rows of different lengths, padded on one side, and requests for some of their tokens."""
    ids = torch.randint(3, WORDS, (2, 50), generator=torch.Generator().manual_seed(2))
    mask, requests = torch.zeros_like(ids), []
    for row, (length, ends) in enumerate(zip(LENGTHS, ((9, 20, 43), (4,)), strict=True)):
        start = 50 - length if left else 0
        mask[row, start : start + length] = 1
        requests.append(ScoreRequest(row, tuple(start + end for end in ends)))
    return ids, mask, requests


def normalised(hidden):
    return hidden / hidden.square().mean(-1, keepdim=True).add(1e-6).sqrt()


def expected_states(model, ids, mask, requests):
    """Each row alone, without padding; what the last layer gave is taken behind its norm."""
    found = []
    for request in requests:
        present = mask[request.row].bool()
        options = {"output_hidden_states": True, "use_cache": False}
        with torch.no_grad():
            hidden = model(ids[request.row][present][None], **options).hidden_states
        places = present.cumsum(0)[list(request.prefix_ends)] - 1
        middle = hidden[model.config.get_text_config().num_hidden_layers // 2][0, places]
        found.append(torch.cat([normalised(middle), normalised(hidden[-1][0, places])], -1))
    return found


def assert_states(found, model, *batch):
    for ours, theirs in zip(found, expected_states(model, *batch), strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_states_are_those_of_the_middle_and_of_the_end(family, left, monkeypatch):
    monkeypatch.setattr(states, "WIDTH", 4096)
    model = made(family)
    ids, mask, requests = rows(left)
    if left and family in ("qwen3_5_text", "nemotron_h"):
        pytest.skip("recurrent layers see the padding on the left")
    found = read_states(model, ids, mask, requests)
    assert_states(found, model, ids, mask, requests)


def test_of_packed_rows():
    model = made("qwen2")
    ids, mask, requests = rows()
    positions = mask.cumsum(-1) - 1
    packed, places = ids[mask.bool()][None], positions[mask.bool()][None]
    with torch.no_grad(), recording_states(model, mask, requests, packed=True) as recorded:
        model(packed, position_ids=places, use_cache=False)
    assert_states(recorded, model, ids, mask, requests)


def number_of_hooks(model):
    parts = model.modules()
    return sum(len(part._forward_hooks) + len(part._forward_pre_hooks) for part in parts)


def test_only_the_first_forward_is_recorded_and_no_hook_stays():
    model = made("qwen2")
    ids, mask, requests = rows()
    before = number_of_hooks(model)
    with torch.no_grad(), recording_states(model, mask, requests) as recorded:
        assert number_of_hooks(model) > before
        model(ids, attention_mask=mask, use_cache=False)
        model(ids.flip(0), attention_mask=mask, use_cache=False)
    assert number_of_hooks(model) == before
    assert_states(recorded, model, ids, mask, requests)


def llama(hidden_size, layers):
    shape = {"hidden_size": hidden_size, "num_hidden_layers": layers, "intermediate_size": 32}
    config = LlamaConfig(**shape, num_attention_heads=4, vocab_size=WORDS)
    return AutoModelForCausalLM.from_config(config).eval()


def test_wide_states_are_projected_by_the_same_matrix_everywhere():
    model = llama(192, layers=2)
    ids, mask, requests = rows()
    whole = expected_states(model, ids, mask, requests)
    found = read_states(model, ids, mask, requests)
    states._projection.cache_clear()  # as in another process
    again = read_states(model, ids, mask, requests)
    for ours, same, plain in zip(found, again, whole, strict=True):
        assert ours.shape == (len(plain), 2 * states.WIDTH) and torch.equal(ours, same)
        # A random projection keeps products up to about 1/sqrt(128) of the lengths.
        products = plain[:, :192] @ plain[:, :192].T / 192
        shown = ours[:, :128] @ ours[:, :128].T / 128
        assert (products - shown).abs().max() < 0.35


def test_a_model_of_one_layer_has_only_a_last_state():
    found = read_states(llama(32, layers=1), *rows())
    assert [tuple(one.shape) for one in found] == [(3, 32), (1, 32)]

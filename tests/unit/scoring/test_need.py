"""What the rest needs of a step, beside the slow way: a pass with a dense mask for each step."""

from dataclasses import replace
from unittest import mock

import pytest
import torch
from support.families import FAMILIES, RECURRENT, WORDS, build, config_of
from support.hidden_steps import slow_needs
from support.prefix_scores import masks_of
from torch.nn.functional import scaled_dot_product_attention
from transformers import AutoModelForCausalLM

from openrlhf_swap.errors import ConfigError
from openrlhf_swap.packages import kernels
from openrlhf_swap.scoring import attention, need
from openrlhf_swap.scoring.answer import AnswerBranch, ScoreRequest
from openrlhf_swap.scoring.branches import ResponseColumns, Rows
from openrlhf_swap.scoring.limits import MASK_ELEMENTS
from openrlhf_swap.scoring.need import check_can_hide_steps, hidden_steps
from openrlhf_swap.scoring.shared_prefix import read_shared_prefix
from openrlhf_swap.scoring.small_model import small_model

BOTH = ("answer_logprobs", "need")
ANSWER = AnswerBranch((3, 4, 5, 6), (False, True, True, True))
ATTENTIVE = [family for family in FAMILIES if family not in RECURRENT]


def batch(left=False, width=44):
    """Three responses of unequal lengths; the second is not asked, the third has observations.

    Steps end at the places of `ends`, the prompt before the first of them.
    """
    generator = torch.Generator().manual_seed(4)
    ids = torch.randint(0, WORDS, (3, width), generator=generator)
    mask = torch.zeros_like(ids)
    requests = []
    lengths = (42, 20, 30)
    step_ends = ((4, 9, 10, 21, 33, 38), (), (2, 12, 25))
    for row, (length, ends) in enumerate(zip(lengths, step_ends, strict=True)):
        offset = width - length if left else 0
        mask[row, offset : offset + length] = 1
        if ends:
            places = tuple(offset + end for end in ends)
            requests.append(ScoreRequest(row, places, ANSWER, BOTH))
    observed = requests[1]
    own_ends = (observed.prefix_ends[1] - 3, observed.prefix_ends[2])
    requests[1] = replace(observed, generated_ends=own_ends)
    return ids, mask, requests


def largest_difference(model, left=False, packed=False, window=0, **changes):
    ids, mask, requests = batch(left)
    requests = [replace(each, need_window=window, **changes) for each in requests]
    found = read_shared_prefix(model, ids, mask, requests, packed)["need"]
    return difference_to_slow(model, ids, mask, requests, found)


def difference_to_slow(model, ids, mask, requests, found):
    """The largest one where need was read."""
    slow = []
    for request in requests:
        present = mask[request.row].bool()
        offset = int(mask[request.row].argmax())
        moved = replace(
            request,
            prefix_ends=tuple(end - offset for end in request.prefix_ends),
            generated_ends=tuple(end - offset for end in request.generated_ends),
        )
        slow.append(slow_needs(model, ids[request.row][present], moved, request.need_window))
    differences = torch.cat(found) - torch.cat(slow)
    return differences[~torch.cat(found).isnan()].abs().max().item()


@pytest.mark.parametrize("left", [False, True], ids=["right_padded", "left_padded"])
@pytest.mark.parametrize("family", ATTENTIVE)
def test_needs_are_those_of_a_masked_pass_for_each_step(family, left, monkeypatch):
    """On the left, of a window of steps and in several passes."""
    if left:
        monkeypatch.setattr(need, "HIDDEN_TOKENS", 30)
    with masks_of(100 if left else MASK_ELEMENTS):
        assert largest_difference(build(family), left, window=2 if left else 0) < 1e-5


@pytest.mark.parametrize("family", ["qwen2", "gemma3_text", "deepseek_v3"])
def test_of_packed_rows(family):
    assert largest_difference(build(family), packed=True) < 1e-5


def plain_varlen_attn(query, key, value, query_starts, key_starts, *_, scale, **options):
    """Each branch's queries beside its keys, of which they are the last; causal."""
    assert options == {"window_size": (-1, 0), "enable_gqa": True}
    outputs = []
    for branch in range(len(query_starts) - 1):
        own = slice(query_starts[branch], query_starts[branch + 1])
        seen = slice(key_starts[branch], key_starts[branch + 1])
        q = query[own].transpose(0, 1)
        k = key[seen].transpose(0, 1)
        v = value[seen].transpose(0, 1)
        visible = torch.ones(q.shape[1], k.shape[1]).tril(k.shape[1] - q.shape[1]).bool()
        output = scaled_dot_product_attention(
            q, k, v, attn_mask=visible, scale=scale, enable_gqa=True
        )
        outputs.append(output)
    return torch.cat(outputs, dim=1).transpose(0, 1)


@pytest.mark.parametrize("family", ["qwen2", "llama", "deepseek_v3", "gemma3_text"])
def test_a_kernel_for_varying_lengths_gets_the_keys_of_each_branch(family, monkeypatch):
    """A GPU's kernel has a plain stand-in here; layers with a window keep their masks."""
    kernel = mock.Mock(side_effect=plain_varlen_attn)
    monkeypatch.setattr(attention, "takes_sequences", lambda *_: True)
    monkeypatch.setattr(kernels, "varlen_attn", kernel)
    model = build(family)
    assert largest_difference(model, left=True, window=3) < 1e-5
    layers = 1 if family == "gemma3_text" else model.config.num_hidden_layers
    assert kernel.call_count == layers


@pytest.mark.parametrize("window", [1, 3, 9])
@pytest.mark.parametrize("ids", [(7,), (7, 8)])
def test_an_answer_without_a_template(window, ids):
    """Its first token is predicted by the last step: hidden or not, that step sees itself."""
    branch = AnswerBranch(ids, (True,) * len(ids))
    model = build("llama", torch.float64)
    assert largest_difference(model, window=window, branch=branch) < 1e-9


def test_a_window_of_one_generated_token_needs_no_pass():
    """An agent's second step is that token and an observation; the third is in sight."""
    ids, mask, _ = batch()
    agent = ScoreRequest(2, (2, 12, 25, 29), ANSWER, BOTH, (12, 13, 29), 1, need_every=3)
    found = read_shared_prefix(build("qwen2"), ids, mask, [agent])["need"]
    read = ~found[0].isnan()
    assert read.tolist() == [True, False, False]
    assert found[0][read].tolist() == [0.0]


def test_the_branches_by_hand():
    """A prompt of 3 tokens and steps of 2, 3 and 1 tokens, behind 10 columns of another row.

    The answer has two tokens behind a template of one.
    """
    branch = AnswerBranch((7, 8, 9), (False, True, True))
    request = ScoreRequest(1, (2, 4, 7, 8), branch, BOTH, need_window=2)
    rows = Rows(2, 10, [ResponseColumns(0, 10, 0), ResponseColumns(10, 19, 0)])
    # Of the targets of the rows, 100 is the first of a step and 50 the last answer's first.
    first, second, third = hidden_steps(request, rows, 100, 50)
    # Step 1 is columns 13 and 14; steps 2 and 3 are read again, of step 2 all but the first token.
    assert first.branch.end == 13
    assert first.branch.copied == range(15, 19)
    assert first.branch.given == ()
    assert first.branch.scored == [[1, 2], [3]]
    assert first.counts == [3, 1]
    assert first.branch.position == 5
    assert second.branch.end == 15
    assert second.branch.copied == range(18, 19)
    # Step 3's one token is predicted by step 2; the answer stands behind it and the template's 7.
    assert second.branch.given == (7, 8, 9)
    assert second.branch.scored == [[], [2, 3]]
    assert third.branch.end == 18
    assert third.branch.scored == [[1, 2]]
    assert third.counts == [2]
    assert first.in_sight == [103, 104, 105]
    assert second.in_sight == third.in_sight == [50, 51]


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        # 40 tokens for each later step, and 3 of the answer's 4, behind each of 25 steps.
        (0, 40 * 25 * 24 // 2 + 25 * 3),
        # The last token of a window predicts nothing; behind the last step comes the answer alone.
        (1, 24 * 39 + 3),
        (2, 23 * 79 + (40 + 3) + 3),
        (4, 21 * 159 + (120 + 3) + (80 + 3) + (40 + 3) + 3),
    ],
)
def test_tokens_that_are_read_again(window, expected):
    """Of 1,000 tokens in 25 equal steps: 12.1, .9, 1.9 and 3.6 times as many."""
    ends = (9, *range(49, 1010, 40))
    request = ScoreRequest(0, ends, ANSWER, BOTH, need_window=window)
    rows = Rows(1, 1010, [ResponseColumns(0, 1010, 0)])
    assert sum(each.branch.length for each in hidden_steps(request, rows, 0, 0)) == expected


@pytest.mark.parametrize(
    ("every", "read"),
    [
        # Thoughts of 34 and 23 tokens with steps 0 to 4, and 0 and 1.
        (1, [[True] * 5, [True] * 2]),
        (2, [[True, False, True, False, True], [False, True]]),
        (3, [[False, False, True, False, False], [False, True]]),
        (40, [[False] * 5, [False] * 2]),
    ],
)
def test_one_step_of_so_many_is_hidden_and_reads_what_it_would_among_all(every, read):
    model = build("qwen2")
    ids, mask, requests = batch()
    requests = [replace(each, need_window=2, need_every=every) for each in requests]
    found = read_shared_prefix(model, ids, mask, requests)["need"]
    assert [(~each.isnan()).tolist() for each in found] == read
    if every < 40:
        assert difference_to_slow(model, ids, mask, requests, found) < 1e-5


def test_recurrent_layers_are_refused():
    model = small_model(config_of("qwen3_5_text"), AutoModelForCausalLM.from_config)
    with pytest.raises(ConfigError, match=r"recurrent layers.* use --swap.step_reward gain"):
        check_can_hide_steps(model, None)
    with pytest.raises(ConfigError, match="because it is off"):
        check_can_hide_steps(build("llama"), "it is off")
    check_can_hide_steps(build("llama"), None)

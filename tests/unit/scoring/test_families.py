"""Families of models as small random ones: prefixes scored together equal a forward for each.

And what the attention of the branches shows each of them, and launches, whatever their number.
"""

from collections import Counter
from contextlib import contextmanager, nullcontext
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.families import FAMILIES, PARTLY_FLOAT32, RECURRENT, WORDS, build, config_of
from support.prefix_scores import (
    largest_difference,
    masks_of,
    ragged_case,
    score_shared_prefix,
)
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM

from openrlhf_swap.scoring.answer import AnswerBranch, ScoreRequest, read_per_prefix
from openrlhf_swap.scoring.attention import BranchAttention
from openrlhf_swap.scoring.branches import Branch, Layout, attention_calls
from openrlhf_swap.scoring.limits import MASK_ELEMENTS
from openrlhf_swap.scoring.mixers import cache_name
from openrlhf_swap.scoring.shared_prefix import BranchedRows
from openrlhf_swap.scoring.small_model import small_model


def exactness(family):
    """How near to a forward for each prefix float64 comes."""
    return PARTLY_FLOAT32.get(family, 1e-9)


@pytest.mark.parametrize("left", [False, True], ids=["right_padded", "left_padded"])
@pytest.mark.parametrize("family", FAMILIES)
def test_prefixes_together_equal_a_forward_for_each(family, left):
    """On the left in float64, with each branch attended alone."""
    case = ragged_case(5, rows=3, left=left, longest=80, words=WORDS)
    if left:
        with masks_of(100):
            assert largest_difference(build(family, torch.float64), case) < exactness(family)
    else:
        assert largest_difference(build(family), case) < 1e-4


# These read on from one packed response into the next, whoever scores: packing them is refused.
CARRIED_ON = ("gpt_oss", *RECURRENT)


@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in CARRIED_ON])
def test_packed_responses_are_scored_in_their_row(family):
    case = ragged_case(7, rows=4, left=True, longest=60, words=WORDS)
    with masks_of(100):
        found = largest_difference(build(family, torch.float64), case, packed=True)
    assert found < exactness(family)


@contextmanager
def float64_throughout():
    """Code that computes a part in float32 on purpose does it in float64."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "float", torch.Tensor.double)
        patch.setattr(torch, "float32", torch.float64)
        yield


FLOAT64_CAN_BE_HAD = ("qwen3_next", "qwen3_5_text", "olmo_hybrid", "nemotron_h", "gpt_oss")


@given(st.integers(0, 2**31), st.integers(1, 4), st.booleans(), st.sampled_from(sorted(FAMILIES)))
@settings(max_examples=25)
def test_any_shape(seed, rows, left, family):
    case = ragged_case(seed, rows, left, longest=40, words=WORDS)
    model = build(family, torch.float64)
    if family not in CARRIED_ON:
        assert largest_difference(model, case, packed=True) < exactness(family)
    if family in FLOAT64_CAN_BE_HAD:
        with float64_throughout():
            assert largest_difference(model, case) < 1e-9
    else:
        assert largest_difference(model, case) < exactness(family)


def test_a_forward_for_each_by_hand():
    """Against the definition: the mean log-probability of the answer's tokens, from full logits."""
    model = build("llama", torch.float64)
    branch = AnswerBranch((1, 2, 3), (False, True, True))
    (score,) = read_per_prefix(model, torch.tensor([5, 6, 7, 8, 9]), [4], branch)
    logprobs = model(torch.tensor([[5, 6, 7, 8, 1, 2, 3]])).logits[0].log_softmax(-1)
    # Token 2 is predicted at position 4 (after 1), token 3 at position 5 (after 2).
    expected = (logprobs[4, 2] + logprobs[5, 3]) / 2
    assert score.item() == pytest.approx(expected.item(), abs=1e-12)


KINDS = ["qwen2", "gemma3_text", "gpt_oss", "deepseek_v3", "qwen3_5_text"]


@pytest.mark.parametrize("family", [*KINDS, "gemma2"])
def test_eager_attention_agrees(family):
    """It caps the scores where SDPA leaves the cap out."""
    config = config_of(family)
    config._attn_implementation = "eager"
    if family == "gemma2":
        config.attn_logit_softcapping = 0.5
    model = small_model(config, AutoModelForCausalLM.from_config)
    assert model.config._attn_implementation == "eager"
    case = ragged_case(3, rows=4, left=False, longest=30, words=WORDS)
    assert largest_difference(model, case) < 1e-4


@pytest.mark.parametrize("left", [False, True], ids=["right_padded", "left_padded"])
@pytest.mark.parametrize("family", [*KINDS, "nemotron_h", "lfm2"])
def test_rows_are_computed_as_without_branches(family, left):
    model = build(family, torch.float64)
    ids, mask, requests, _ = ragged_case(11, rows=3, left=left, longest=60, words=WORDS)
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    rows = BranchedRows(model, mask, requests)
    exact = exactness(family)
    precision = nullcontext()
    if family in FLOAT64_CAN_BE_HAD:
        exact = 1e-9
        precision = float64_throughout()
    with torch.no_grad(), precision:
        with rows.branching():
            branched = model(**rows.inputs(ids, positions)).logits[:, : ids.shape[1]]
        for row, present in enumerate(mask.bool()):
            plain = model(ids[row, present][None], use_cache=False).logits[0]
            assert (branched[row, present] - plain).abs().max() < exact


@pytest.mark.parametrize("family", KINDS)
def test_the_first_token_alone_can_be_a_prefix(family):
    """An idle rank takes part with it."""
    model = build(family)
    ids = torch.tensor([[5, 6, 7]])
    request = ScoreRequest(0, (0,), AnswerBranch((3, 4), (True, True)))
    (score,) = score_shared_prefix(model, ids, torch.ones_like(ids), [request])
    expected = read_per_prefix(model, ids[0], [1], request.branch)
    assert (score - expected).abs().max() < 1e-4


def test_ranks_that_need_fewer_pieces_keep_in_step():
    """Under ZeRO-3 every rank runs each recurrent layer equally often; extra calls do nothing."""
    model = build("qwen3_5_text")
    mixer = model.model.layers[0].linear_attn
    mixer.forward = mock.Mock(side_effect=mixer.forward)
    ids, mask, requests, _ = ragged_case(11, rows=2, left=False, longest=40, words=WORDS)
    scores = score_shared_prefix(model, ids, mask, requests)
    alone = mixer.forward.call_count
    padded = score_shared_prefix(model, ids, mask, requests, agree=lambda count: count + 5)
    calls = mixer.forward.call_count
    del mixer.forward
    assert calls == 2 * alone + 5
    for one, other in zip(scores, padded, strict=True):
        assert torch.equal(one, other)


def test_a_mixer_that_does_not_name_its_cache_is_refused():
    """Under a name that it does not know, it would lose its state without an error."""
    others = {"hidden_states", "attention_mask"}
    for name in ("cache_params", "past_key_values", "cache"):  # of transformers 5.15 and 5.24
        assert cache_name(torch.nn.Identity(), {*others, name}) == name
    with pytest.raises(TypeError, match="Identity is given no cache as cache_params or past_key_"):
        cache_name(torch.nn.Identity(), others)


LAYERS = 3
BRANCH = 5


class Operations(TorchDispatchMode):
    """Counts what is launched, and where the host waits for a tensor's value."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.counts[function.overloadpacket.__name__] += 1
        return function(*args, **(kwargs or {}))

    def of(self, word):
        """How many of the operations that were launched have the word in their name."""
        return sum(count for name, count in self.counts.items() if word in name)


def build_layers(family, layers=LAYERS):
    torch.manual_seed(0)
    config = config_of(family)
    config.num_hidden_layers = layers
    config.layer_types = [*(layers - 1) * config.layer_types[:1], config.layer_types[-1]]
    return AutoModelForCausalLM.from_config(config).eval()


def scored(model, branches, rows=1, tokens=120):
    """Operations of scoring some branches of each row, spread evenly, as on a GPU."""
    ids = torch.randint(0, WORDS, (rows, tokens))
    ends = tuple(torch.linspace(3, tokens - 1, branches).long().tolist())
    is_scored = (False, False) + (True,) * (BRANCH - 2)
    branch = AnswerBranch(tuple(range(BRANCH)), is_scored)
    requests = [ScoreRequest(row, ends, branch) for row in range(rows)]
    with masks_of(MASK_ELEMENTS), Operations() as operations:
        score_shared_prefix(model, ids, torch.ones_like(ids), requests)
    return operations


@pytest.mark.parametrize("family", ["qwen2", "gemma3_text"])
@pytest.mark.parametrize("rows", [1, 3])
def test_a_layer_attends_its_rows_and_all_branches_in_one_call_each(family, rows):
    few = scored(build_layers(family), branches=2, rows=rows)
    many = scored(build_layers(family), branches=26, rows=rows)
    assert few.of("scaled_dot_product") == many.of("scaled_dot_product") == 2 * LAYERS
    assert sum(few.counts.values()) == sum(many.counts.values())


@pytest.mark.parametrize("family", ["qwen2", "gemma3_text"])
def test_no_layer_waits_for_the_device(family):
    """The host reads a tensor's value as often for three layers as for one."""
    one_layer = scored(build_layers(family, 1), branches=26)
    more = scored(build_layers(family, LAYERS), branches=26)
    for name in ("_local_scalar_dense", "item", "nonzero"):
        assert one_layer.of(name) == more.of(name)


def branch(first, end, tokens, hidden=0):
    """A branch of so many tokens, the first of which is repeated from behind `hidden` others."""
    return Branch(first, end, range(end + hidden, end + hidden + 1), [3] * tokens, [[tokens]])


@pytest.mark.parametrize("window", [None, 4])
def test_what_a_token_sees_by_hand(window):
    """Two responses in one row, from columns 0 and 20 on.

    The first has an answer branch behind 5 tokens, and one that leaves out tokens 6 to 8.
    """
    branches = [branch(0, 5, 3), branch(0, 6, 3, hidden=3), branch(20, 23, 2)]
    layout = Layout(branches, 1, torch.device("cpu"))
    assert layout.position.tolist() == [5, 6, 7, 9, 10, 11, 3, 4]
    (call,) = attention_calls(layout, on_cpu=False)
    columns = call.columns(window)
    assert columns == slice(0 if window is None else 2, 23)
    mask = BranchAttention(30, layout).mask(call, window, torch.float32)
    assert mask.shape == (8, 23 - columns.start + 8)
    assert mask.stride(0) % 16 == 0
    near = 100 if window is None else window
    start = 0  # of a branch among the tokens
    for own in branches:
        for offset in range(own.length):
            position = own.position + offset
            seen = []
            for column in range(own.first, own.end):
                if position - (column - own.first) < near:
                    seen.append(column - columns.start)
            for before in range(max(0, offset - near + 1), offset + 1):
                seen.append(23 - columns.start + start + before)
            is_visible = mask[start + offset] == 0
            assert is_visible.nonzero().flatten().tolist() == seen
        start += own.length


def calls_of(responses, length, ends, on_cpu):
    """The calls for responses of one length, each with a branch of 24 tokens behind these ends."""
    branches = []
    for first in range(0, responses * length, length):
        branches += [branch(first, first + end, tokens=24) for end in ends]
    calls = attention_calls(Layout(branches, 1, torch.device("cpu")), on_cpu)
    attended = []
    for call in calls:
        attended += call.branches
    assert attended == branches
    return calls


@pytest.mark.parametrize(("on_cpu", "limit"), [(False, 2**24), (True, 2**17)])
def test_a_mask_stays_below_its_limit_for_long_responses(on_cpu, limit):
    """Of 12,000 tokens with 26 branches of 24 tokens, four in a row."""
    ends = (*range(480, 11_521, 450), 11_999)
    calls = calls_of(4, 12_000, ends, on_cpu)
    for call in calls:
        columns = call.columns(None)
        tokens = call.queries.stop - call.queries.start
        keys = columns.stop - columns.start + call.own.stop - call.own.start
        assert tokens * keys <= limit or len(call.branches) == 1
    # By hand: 38 branches, 12 of the second response, see 17,430 columns: 912 x 18,342 < 2**24 <
    # 936 x (17,880 + 936).
    assert len(calls[0].branches) == (3 if on_cpu else 38)


def test_a_long_branch_is_attended_in_parts():
    """600 tokens behind 400: 131 queries a call, with the keys up to their own last one."""
    layout = Layout([branch(0, 400, 600)], 1, torch.device("cpu"))
    calls = attention_calls(layout, on_cpu=True)
    parts = [slice(start, min(start + 131, 600)) for start in range(0, 600, 131)]
    assert [call.queries for call in calls] == parts
    assert all(call.own == slice(0, call.queries.stop) for call in calls)


def test_short_responses_are_attended_together():
    (call,) = calls_of(30, 40, (10, 39), on_cpu=False)
    assert len(call.branches) == 60
    assert len(calls_of(30, 40, (10, 39), on_cpu=True)) > 1

"""What the attention of the branches shows each of them, and what it launches, whatever their number."""

from collections import Counter

import pytest
import torch
from support.prefix_scores import masks_of
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AttentionInterface, AutoModelForCausalLM, Gemma3TextConfig, Qwen2Config

from openrlhf_swap.scoring.answer import AnswerBranch, ScoreRequest
from openrlhf_swap.scoring.shared_prefix import (
    MAX_MASK,
    Branch,
    BranchAttention,
    group_branches,
    score_shared_prefix,
)

LAYERS, HEADS, KEY_HEADS, BRANCH = 3, 4, 2, 5
SIZES = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KEY_HEADS,
    "head_dim": 8,
}
WINDOW = 16


class Operations(TorchDispatchMode):
    """Counts what is launched, and where the host waits for a tensor's value."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.counts[function.overloadpacket.__name__] += 1
        return function(*args, **(kwargs or {}))

    def of(self, *words):
        return sum(count for name, count in self.counts.items() if any(word in name for word in words))


def model_of(family, layers=LAYERS):
    torch.manual_seed(0)
    sizes = SIZES | {"num_hidden_layers": layers}
    if family == "qwen2":
        config = Qwen2Config(**{name: value for name, value in sizes.items() if name != "head_dim"})
    else:
        kinds = ["sliding_attention"] * (layers - 1) + ["full_attention"]
        config = Gemma3TextConfig(**sizes, sliding_window=WINDOW, layer_types=kinds)
    return AutoModelForCausalLM.from_config(config).eval()


def scored(model, branches, rows=1, tokens=120):
    """Operations of scoring some branches of each row, spread evenly, as on a GPU."""
    ids = torch.randint(0, 40, (rows, tokens))
    ends = tuple(torch.linspace(3, tokens - 1, branches).long().tolist())
    branch = AnswerBranch(tuple(range(BRANCH)), (False,) * 2 + (True,) * (BRANCH - 2))
    requests = [ScoreRequest(row, ends, branch) for row in range(rows)]
    with masks_of(MAX_MASK), Operations() as operations:
        score_shared_prefix(model, model.config, ids, torch.ones_like(ids), requests)
    return operations


@pytest.mark.parametrize("family", ["qwen2", "gemma3_text"])
@pytest.mark.parametrize("rows", [1, 3])
def test_a_layer_attends_its_rows_and_all_branches_in_one_call_each(family, rows):
    few, many = (scored(model_of(family), branches, rows=rows) for branches in (2, 26))
    assert few.of("scaled_dot_product") == many.of("scaled_dot_product") == 2 * LAYERS
    assert sum(few.counts.values()) == sum(many.counts.values())


@pytest.mark.parametrize("family", ["qwen2", "gemma3_text"])
def test_no_layer_waits_for_the_device(family):
    """The host reads a tensor's value as often for three layers as for one."""
    waits = [
        scored(model_of(family, layers), 26).of("_local_scalar_dense", "item", "nonzero", "is_nonzero")
        for layers in (1, LAYERS)
    ]
    assert waits[0] == waits[1]


@pytest.mark.parametrize("window", [None, 4])
def test_what_a_token_sees_by_hand(window):
    """Two responses in one row, from columns 0 and 20 on, with two branches and one."""
    branches = [Branch(0, 3, 0, 5), Branch(3, 6, 0, 12), Branch(6, 8, 20, 23)]
    tokens = [(number, offset) for number, each in enumerate(branches) for offset in range(each.stop - each.start)]
    spans = [branches[number] for number, _ in tokens]
    position = [each.end - each.first + offset for each, (_, offset) in zip(spans, tokens, strict=True)]
    table = torch.tensor(
        [position, [number for number, _ in tokens], [each.first for each in spans], [each.end for each in spans]]
    )
    attention = BranchAttention(30, [branches], table)
    first = min(branch.sees_from(window) for branch in branches)
    assert first == (0 if window is None else 2)
    mask = attention._mask(slice(0, 8), slice(first, 23), window, torch.float32)
    assert mask.shape == (8, 23 - first + 8) and mask.stride(0) % 16 == 0
    seen = mask == 0
    for token, (number, offset) in enumerate(tokens):
        start, end = branches[number].first, branches[number].end
        columns = {column for column in range(start, end) if window is None or end + offset - column < window}
        own = {
            other
            for other, (its, before) in enumerate(tokens)
            if its == number and before <= offset and (window is None or offset - before < window)
        }
        expected = {column - first for column in columns} | {23 - first + other for other in own}
        assert set(seen[token].nonzero().flatten().tolist()) == expected


def groups(spans, device, width=24):
    """How many branches are attended in each call, of spans (first column, columns before which prefixes end)."""
    ends = [(first, end) for first, several in spans for end in several]
    branches = [Branch(width * n, width * (n + 1), first, end) for n, (first, end) in enumerate(ends)]
    made = group_branches(branches, torch.device(device))
    assert [branch for group in made for branch in group] == branches
    return made


@pytest.mark.parametrize(("device", "limit"), [("cuda", 2**24), ("cpu", 2**17)])
def test_a_mask_stays_below_its_limit_for_long_responses(device, limit):
    """Of 12,000 tokens with 26 branches of 24 tokens, four in a row."""
    ends = (*range(480, 11_521, 450), 11_999)
    made = groups([(12_000 * n, [12_000 * n + end for end in ends]) for n in range(4)], device)
    for group in made:
        tokens, seen = 24 * len(group), max(each.end for each in group) - group[0].first
        assert tokens * (seen + tokens) <= limit or len(group) == 1
    # By hand: 38 branches, 12 of the second response, see 17,430 columns: 912 x 18,342 < 2**24 < 936 x (17,880 + 936).
    assert len(made[0]) == (38 if device == "cuda" else 3)


def test_short_responses_are_attended_together():
    spans = [(40 * n, [40 * n + 10, 40 * n + 39]) for n in range(30)]
    assert [len(group) for group in groups(spans, "cuda")] == [60]
    assert max(len(group) for group in groups(spans, "cpu")) < 60


def test_nothing_stays_replaced():
    stock = AttentionInterface.get_interface
    scored(model_of("qwen2"), 3)
    assert AttentionInterface.get_interface is stock

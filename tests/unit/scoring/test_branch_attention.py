"""What the attention of the branches launches and holds, whatever the number of branches."""

import gc
import weakref
from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM, Gemma3TextConfig, Qwen2Config

from openrlhf_swap.scoring import branch_attention, shared_prefix
from openrlhf_swap.scoring.answer import AnswerBranch, ScoreRequest
from openrlhf_swap.scoring.prefix_cache import PrefixCache
from openrlhf_swap.scoring.shared_prefix import score_branches

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


def model_of(family):
    torch.manual_seed(0)
    if family == "qwen2":
        config = Qwen2Config(**{name: value for name, value in SIZES.items() if name != "head_dim"})
    else:
        kinds = ["sliding_attention"] * (LAYERS - 1) + ["full_attention"]
        config = Gemma3TextConfig(**SIZES, sliding_window=WINDOW, layer_types=kinds)
    return AutoModelForCausalLM.from_config(config).eval()


def recorded(model, branches, tokens=120, rows=1):
    """What scoring some branches of each row, spread evenly, takes: cache, tokens, mask, requests."""
    ids = torch.randint(0, 40, (rows, tokens))
    mask = torch.ones_like(ids)
    ends = tuple(torch.linspace(3, tokens - 1, branches).long().tolist())
    branch = AnswerBranch(tuple(range(BRANCH)), (False,) * 2 + (True,) * (BRANCH - 2))
    requests = [ScoreRequest(row, ends, branch) for row in range(rows)]
    cache = PrefixCache(model.config, model)
    with torch.no_grad(), cache.recording(mask, requests):
        model(ids, attention_mask=mask, past_key_values=cache, use_cache=True)
    return cache, ids, mask, requests


def scored(family, branches, tokens=120, rows=1):
    """Operations of scoring them."""
    model = model_of(family)
    case = recorded(model, branches, tokens, rows)
    with Operations() as operations:
        score_branches(model, model.config, *case)
    return operations


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    monkeypatch.setattr(shared_prefix, "MAX_MASK_ON_CPU", shared_prefix.MAX_MASK)


@pytest.mark.parametrize("family", ["qwen2", "gemma3_text"])
@pytest.mark.parametrize("rows", [1, 3])
def test_a_layer_attends_all_branches_in_one_call(as_on_a_gpu, family, rows):
    few, many = (scored(family, branches, rows=rows) for branches in (2, 26))
    assert few.of("scaled_dot_product") == many.of("scaled_dot_product") == LAYERS
    assert sum(few.counts.values()) == sum(many.counts.values())


@pytest.mark.parametrize("family", ["qwen2", "gemma3_text"])
def test_no_layer_waits_for_the_device(as_on_a_gpu, monkeypatch, family):
    """The host reads a tensor's value as often for three layers as for one."""
    waits = []
    for layers in (1, LAYERS):
        monkeypatch.setitem(SIZES, "num_hidden_layers", layers)
        if family == "gemma3_text":
            monkeypatch.setattr(f"{__name__}.LAYERS", layers)
        waits.append(scored(family, 26).of("_local_scalar_dense", "item", "nonzero", "is_nonzero"))
    assert waits[0] == waits[1]


@pytest.mark.parametrize(
    ("ends", "window", "positions"),
    [
        # 26 branches of 5 tokens have 130 keys of their own; with those of 119 positions 249, filled up to 256.
        (range(19, 120, 4), None, range(119 - 126, 119)),
        ((119,), None, range(119 - 123, 119)),  # 119 + 5, filled up to 128
        ((119,), 16, range(119 - 27, 119)),  # 15 + 5, filled up to 32
        ((112, 119), 16, range(119 - 22, 119)),  # the first branch sees 97 .. 111; 22 + 10, which is 32
        ((0,), None, range(1 - 11, 1)),  # one at least
    ],
)
def test_the_keys_of_a_forward_by_hand(ends, window, positions):
    table = torch.tensor([list(ends)])
    branches = branch_attention.Branches(None, *[torch.zeros(1, dtype=torch.int64)] * 3, [list(ends)], table, BRANCH)
    assert branches.seen_positions(window) == positions
    assert branches.mask(window, 3, torch.float32).shape == (1, 1, 3 * len(ends) * 5, len(positions) + len(ends) * 5)


def chunks(requests, device, heads=12, max_tokens=4096):
    config = Qwen2Config(num_attention_heads=heads, num_key_value_heads=2)
    made = shared_prefix._chunks(requests, config, torch.device(device), max_tokens, 10**6)
    return [[(number, len(piece.prefix_ends), piece.prefix_ends[-1]) for number, piece in chunk] for chunk in made]


@pytest.mark.parametrize(("device", "limit"), [("cuda", 2**27), ("cpu", 2**21)])
def test_a_mask_stays_below_its_limit_for_long_responses(device, limit):
    """Of 12,000 tokens with 26 branches of 24 tokens and six query heads a key head, in a batch of four."""
    branch, ends = AnswerBranch((1,) * 24, (True,) * 24), (*range(480, 11_521, 450), 11_999)
    made = chunks([ScoreRequest(row, ends, branch) for row in range(4)], device)
    for chunk in made:
        own = max(branches for _, branches, _ in chunk) * 24
        assert 6 * len(chunk) * own * (max(reach for *_, reach in chunk) + own) <= limit or own == 24
    assert sum(branches for chunk in made for _, branches, _ in chunk) == 4 * 26
    if device == "cuda":
        assert made == [[(0, 26, 11_999), (1, 26, 11_999)], [(2, 26, 11_999), (3, 26, 11_999)]]


def test_short_responses_are_bounded_by_their_tokens():
    request = ScoreRequest(0, tuple(range(500)), AnswerBranch((1,) * 10, (True,) * 10))
    assert chunks([request], "cuda") == [[(0, 409, 499)], [(0, 91, 90)]]


def test_responses_of_similar_lengths_run_together():
    branch = AnswerBranch((1,) * 10, (True,) * 10)
    requests = [ScoreRequest(row, (1, end), branch) for row, end in enumerate((900, 5, 901, 6))]
    assert chunks(requests, "cuda", max_tokens=40) == [[(2, 2, 901), (0, 2, 900)], [(3, 2, 6), (1, 2, 5)]]


@pytest.mark.parametrize("family", ["qwen2", "gemma3_text"])
def test_nothing_of_a_batch_is_kept_after_its_scores(family):
    """Keys and values of long responses are gigabytes, which the update and vLLM need next."""
    model = model_of(family)
    case = recorded(model, branches=4)
    kept = [weakref.ref(case[0]), *(weakref.ref(layer.keys) for layer in case[0].layers)]
    score_branches(model, model.config, *case)
    del case
    gc.collect()
    assert [one() for one in kept] == [None] * len(kept)

"""What the attention of the branches launches and holds, whatever the number of branches."""

import gc
import weakref
from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM, Gemma3TextConfig, Qwen2Config

from openrlhf_swap.scoring import branch_attention, branch_layout, shared_prefix
from openrlhf_swap.scoring.answer import AnswerBranch
from openrlhf_swap.scoring.shared_prefix import ScoreRequest, recorded_prefix, score_branches

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
    """What scoring some branches of each row takes: cache, tokens, mask, requests."""
    ids = torch.randint(0, 40, (rows, tokens))
    mask = torch.ones_like(ids)
    ends = tuple(torch.linspace(3, tokens - 1, branches).long().tolist())
    branch = AnswerBranch(tuple(range(BRANCH)), (False,) * 2 + (True,) * (BRANCH - 2))
    requests = [ScoreRequest(row, ends, branch) for row in range(rows)]
    with torch.no_grad(), recorded_prefix(model, model.config, mask, requests) as cache:
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
    monkeypatch.setattr(branch_attention, "CPU_BLOCK", 10**6)


@pytest.mark.parametrize("family", ["qwen2", "gemma3_text"])
@pytest.mark.parametrize("rows", [1, 3])
def test_a_layer_attends_all_branches_in_one_call(as_on_a_gpu, family, rows):
    few, many = (scored(family, branches, rows=rows) for branches in (2, 26))
    assert few.of("scaled_dot_product") == many.of("scaled_dot_product") == LAYERS
    assert sum(few.counts.values()) == sum(many.counts.values())


def test_a_cpu_attends_few_branches_a_call():
    assert scored("qwen2", 26).of("scaled_dot_product") == LAYERS * 7  # ceil(26 / 4)


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


def mask_elements(monkeypatch, family, branches, tokens, width=BRANCH, rows=1):
    """Of each mask that a layout made; the masks are not filled."""
    made = []
    monkeypatch.setattr(
        branch_layout, "_additive", lambda seen, dtype: made.append(seen.numel()) or torch.zeros(seen.shape)
    )
    scored(family, branches, tokens, rows)
    return made


def test_masks_by_hand(as_on_a_gpu, monkeypatch):
    # 26 branches of 5 tokens see the 119 tokens before the last one's end, and 130 own ones: 249, rounded up to 256.
    assert mask_elements(monkeypatch, "qwen2", 26, 120) == [26 * 5 * 256]
    # With a window of 16 each branch has 16 keys and its own 5, rounded up to 32.
    assert mask_elements(monkeypatch, "gemma3_text", 26, 120) == [26 * 5 * 32, 26 * 5 * 256]


def test_a_mask_stays_below_its_limit_for_long_responses():
    """Of 12,000 tokens with 26 branches of 24 tokens and six query heads a key head, in a batch of four."""
    config = Qwen2Config(num_attention_heads=12, num_key_value_heads=2)
    ids, mask = torch.zeros(4, 12_000, dtype=torch.int64), torch.ones(4, 12_000, dtype=torch.bool)
    ends = (*range(480, 11_521, 450), 11_999)
    requests = [ScoreRequest(row, ends, AnswerBranch((1,) * 24, (True,) * 24)) for row in range(4)]
    branches = shared_prefix._Branches.build(requests, ids, mask, packed=False)
    size = branches.chunk_size(config, 4096)
    assert 26 <= size < 4 * 26  # at least a whole response at a time
    elements = 6 * size * 24 * (12_000 + size * 24)
    assert elements <= shared_prefix.MOST_MASK == 2**27


def test_short_responses_are_bounded_by_their_tokens():
    config = Qwen2Config(num_attention_heads=12, num_key_value_heads=2)
    ids, mask = torch.zeros(1, 50, dtype=torch.int64), torch.ones(1, 50, dtype=torch.bool)
    request = ScoreRequest(0, (9, 49), AnswerBranch((1,) * 10, (True,) * 10))
    branches = shared_prefix._Branches.build([request], ids, mask, packed=False)
    assert branches.chunk_size(config, 4096) == 409


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

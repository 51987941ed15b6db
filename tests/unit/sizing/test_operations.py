"""Floating-point operations by hand, and as torch counts them in real forwards."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from support.paths import POLICY
from support.prefix_scores import masks_of
from support.sizing import NODE, R1
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM

from openrlhf_swap.algorithm.signals import NEED
from openrlhf_swap.scoring.answer import AnswerBranch, ScoreRequest
from openrlhf_swap.scoring.limits import MASK_ELEMENTS
from openrlhf_swap.scoring.shared_prefix import read_shared_prefix
from openrlhf_swap.sizing.models import Model, read_model
from openrlhf_swap.sizing.operations import (
    forward_flops,
    hiding_flops,
    scoring_flops,
    step_flops,
)
from openrlhf_swap.sizing.settings import ANSWER_TOKENS, BRANCH_TOKENS

PROMPT = 40  # tokens
RESPONSE = 400
STEPS = 8


def count_flops(function, without=()):
    """Operations of a call as torch counts them, without those of some operators."""
    counter = FlopCounterMode(display=False)
    with counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        function()
    counts = counter.get_flop_counts()["Global"]
    return sum(flops for operator, flops in counts.items() if operator not in without)


class RealForwards:
    """The quickstart's policy, a response of PROMPT + RESPONSE tokens, and its score request."""

    def __init__(self):
        options = {"attn_implementation": "eager", "dtype": torch.float32}
        self.model = AutoModelForCausalLM.from_pretrained(POLICY, **options).eval()
        self.sizes = read_model(str(POLICY), 512)
        self.tokens = PROMPT + RESPONSE
        self.ids = torch.zeros(1, self.tokens, dtype=torch.int64)
        self.present = torch.ones_like(self.ids)
        before_answer = BRANCH_TOKENS - ANSWER_TOKENS
        scored = (False,) * before_answer + (True,) * ANSWER_TOKENS
        branch = AnswerBranch(ids=(1,) * BRANCH_TOKENS, scored=scored)
        ends = tuple(PROMPT - 1 + RESPONSE * step // STEPS for step in range(STEPS + 1))
        self.request = ScoreRequest(row=0, prefix_ends=ends, branch=branch)

    def forward(self, **options):
        return self.model(self.ids, attention_mask=self.present, **options)

    def score(self, request):
        return read_shared_prefix(self.model, self.ids, self.present, [request])


@pytest.fixture(scope="module")
def real():
    return RealForwards()


def test_a_forward_takes_what_torch_counts(real):
    counted = count_flops(partial(real.forward, use_cache=True))
    # Eager attention computes both triangles: 4 times layers, width and the square of the length
    # instead of 2.
    expected = forward_flops(real.sizes, real.tokens) + 2 * 4 * 128 * real.tokens**2
    assert counted == pytest.approx(expected, rel=0.01)


def test_scoring_takes_what_torch_counts(real):
    plain = count_flops(partial(real.forward, logits_to_keep=1))
    with masks_of(MASK_ELEMENTS):
        scored = count_flops(partial(real.score, real.request))
    one_token = 2 * real.sizes.hidden * real.sizes.vocabulary
    planned = scoring_flops(real.sizes, PROMPT, RESPONSE, STEPS)
    assert scored - plain + one_token == pytest.approx(planned, rel=0.01)


def test_hiding_steps_takes_what_torch_counts(real):
    """Without attention, because masks also compute its hidden half."""
    window = 2
    wanted = (*real.request.wanted, NEED.name)
    hidden = replace(real.request, wanted=wanted, need_window=window)
    attention = [torch.ops.aten.bmm]
    without_need = count_flops(partial(real.score, real.request), attention)
    with_need = count_flops(partial(real.score, hidden), attention)
    linear = replace(real.sizes, query=0)
    settings = replace(NODE, need_window=window)
    planned = hiding_flops(linear, settings, PROMPT, RESPONSE, STEPS)
    planned += 2 * forward_flops(linear, BRANCH_TOKENS)  # two branches have the answer
    assert with_need - without_need == pytest.approx(planned, rel=0.02)


# A model of 1,000 parameters that multiply, 10 of them (hidden 5, vocabulary 2) in the output; no
# attention.
PLAIN = Model(
    parameters=1_200,
    largest=200,
    looked_up=200,
    layers=0,
    hidden=5,
    heads=1,
    query=0,
    key_value=0,
    intermediate=0,
    vocabulary=2,
)
UNSCORED = replace(NODE, branches=0)
FORWARD = 200_000  # 2 x 1,000 for each of 100 tokens


def of_step(settings, steps=3, epochs=1):
    """Operations for a response of 40 + 60 tokens."""
    return step_flops(PLAIN, settings, 40, 60, steps, epochs)


def test_a_step_by_hand():
    # An update takes three forwards and what checkpointing repeats: all but the output's 2 x 10 x
    # 100, which chunks of logits repeat.
    assert of_step(UNSCORED) == {
        "generate": FORWARD,
        "log-probabilities": FORWARD,
        "score": 0,
        "update": 4 * FORWARD,
    }
    without_a_pass = of_step(replace(UNSCORED, reuses_logprobs=True))
    assert without_a_pass["log-probabilities"] == 0
    at_once = of_step(replace(UNSCORED, logits_chunk=0))
    assert at_once["update"] == 4 * FORWARD - 2_000
    twice = of_step(replace(UNSCORED, checkpointing=False), epochs=2)
    assert twice["update"] == 2 * (3 * FORWARD + 2_000)


def test_hidden_steps_by_hand():
    # Of 60 tokens in 6 steps the second step is read again without the first, and each later one
    # without the two before it: 1 + 4 x 2 steps of 10 tokens, or half where every other is hidden.
    hiding = replace(UNSCORED, hides_steps=True, need_window=2)
    assert of_step(hiding, steps=6)["score"] == 9 * 10 * 2_000
    half = of_step(replace(hiding, need_every=2), steps=6)
    assert half["score"] == 9 * 10 * 1_000


def test_lora_computes_no_gradients_of_frozen_weights():
    model = read_model(R1 + "1.5B", 14_000)
    adapted = replace(model, adapters=1_000_000)
    full = step_flops(model, NODE, 200, 6000, 17, 1)
    lora = step_flops(adapted, NODE, 200, 6000, 17, 1)
    assert lora["update"] == full["update"] - full["generate"]

"""The arithmetic of a plan against hand-worked numbers, and against what the real code computes."""

from dataclasses import replace

import pytest
import torch
from support.paths import POLICY
from support.prefix_scores import masks_of
from support.sizing import NODE
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM

from openrlhf_swap.scoring.answer import AnswerBranch, ScoreRequest
from openrlhf_swap.scoring.shared_prefix import MAX_MASK, score_shared_prefix
from openrlhf_swap.sizing.memory import ANSWER, BRANCH, forward_flops, scoring_flops, step_flops
from openrlhf_swap.sizing.models import Model, read_model


def count_flops(function):
    counter = FlopCounterMode(display=False)
    with counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        result = function()
    return counter.get_total_flops(), result


def test_flops_are_those_of_the_real_forwards():
    model = AutoModelForCausalLM.from_pretrained(POLICY, attn_implementation="eager", dtype=torch.float32).eval()
    sizes = read_model(str(POLICY), 512)
    prompt, response, steps = 40, 400, 8
    tokens = prompt + response
    ids = torch.zeros(1, tokens, dtype=torch.int64)
    present = torch.ones_like(ids)
    counted, _ = count_flops(lambda: model(ids, attention_mask=present, use_cache=True))
    # Eager attention computes both triangles: 4 times layers, width and the square of the length instead of 2.
    assert counted == pytest.approx(forward_flops(sizes, tokens) + 2 * 4 * 128 * tokens**2, rel=0.01)

    branch = AnswerBranch(ids=(1,) * BRANCH, scored=(False,) * 18 + (True,) * ANSWER)
    ends = tuple(prompt - 1 + response * step // steps for step in range(steps + 1))
    request = ScoreRequest(row=0, prefix_ends=ends, branch=branch)
    plain, _ = count_flops(lambda: model(ids, attention_mask=present, logits_to_keep=1))
    with masks_of(MAX_MASK):
        scored, _ = count_flops(lambda: score_shared_prefix(model, model.config, ids, present, [request]))
    one_token = 2 * sizes.hidden * sizes.vocabulary
    assert scored - plain + one_token == pytest.approx(scoring_flops(sizes, prompt, response, steps), rel=0.01)


def test_a_step_by_hand():
    # 1,000 parameters that multiply, 10 of them (hidden 5, vocabulary 2) in the output; no attention. Of 100 tokens a
    # forward takes 2 x 1,000 x 100, an update three and what checkpointing repeats: all but the output's 2 x 10 x 100,
    # which chunks of logits repeat.
    model = Model(1_200, 200, 200, 0, 5, 1, 0, 0, 0, 2)
    flops = step_flops(model, replace(NODE, branches=0), 40, 60, 3, epochs=1)
    forward = 200_000
    assert flops == {"generate": forward, "log-probabilities": forward, "score": 0, "update": 4 * forward}
    at_once = step_flops(model, replace(NODE, branches=0, logits_chunk=0), 40, 60, 3, epochs=1)
    assert at_once["update"] == 4 * forward - 2_000
    twice = step_flops(model, replace(NODE, checkpointing=False), 40, 60, 3, epochs=2)
    assert twice["update"] == 2 * (3 * forward + 2_000)

"""Responses of several turns: where their tokens stand, where their steps end, and what these earn; worked by hand."""

from dataclasses import replace
from itertools import chain

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.paths import POLICY
from transformers import AutoModelForCausalLM

from openrlhf_swap import SwapConfig, swap_advantages
from openrlhf_swap.rollouts.rollout import Rollout, StepReader
from openrlhf_swap.runs.metrics import turn_metrics
from openrlhf_swap.scoring.answer import ScoreRequest, answer_branch, score_per_prefix
from openrlhf_swap.scoring.shared_prefix import score_shared_prefix

# Prompt 7 8 9; the policy: 1 2, the environment: 50 51 52, the policy: 3, the environment: nothing, the policy: 4 5.
TURNS = Rollout("?", "4", [1, 2, 3, 4, 5], [7, 8, 9], 1.0, observations=[(2, [50, 51, 52]), (3, [])])


def test_where_tokens_stand():
    assert [list(turn) for turn in TURNS.turns] == [[1, 2], [3], [4, 5]]
    assert TURNS.row_ids == [7, 8, 9, 1, 2, 50, 51, 52, 3, 4, 5]
    assert TURNS.positions.tolist() == [3, 4, 8, 9, 10]


def test_a_turn_is_scored_after_its_observation():
    rollout = replace(TURNS, step_ends=(0, 1, 2, 3))
    assert rollout.prefix_ends == (2, 3, 7, 8, 9)  # the second step ends with 52
    assert rollout.split_prefix_ends == (2, 3, 4, 7, 8, 9)
    # The observation adds 2 nats: without it, the third and the fourth step are 2 lower.
    assert rollout.without_observations([-5.0, -4.0, -3.5, -1.5, -1.0, -0.5]) == [-5.0, -4.0, -3.5, -3.0, -2.5]


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 4)), min_size=1, max_size=6))
def test_positions_are_those_of_the_row(turns):
    ids, observations, row = [], [], [0, 0]
    for number, (generated, seen) in enumerate(turns):
        ids += [1] * generated
        row += [1] * generated
        if number < len(turns) - 1:
            observations.append((len(ids), [2] * seen))
            row += [2] * seen
    rollout = Rollout("?", "4", ids, [0, 0], 1.0, observations=observations)
    assert rollout.row_ids == row
    assert rollout.positions.tolist() == [place for place, token in enumerate(row) if token == 1]


def test_no_step_crosses_a_turn(tokenizer):
    def ids(text):
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    turns = [ids("ones: 7+6+0="), ids("tens: 1+2+1=\nwait tens: 1+2+1=\ntens: 1+2+1="), ids("</think>\n\n\\boxed{1}")]
    response, starts = [*chain.from_iterable(turns)], [len(turns[0]), len(turns[0] + turns[1])]
    reader = StepReader(tokenizer, "</think>", step_tokens=8, max_steps=25)
    ends = reader.step_ends(response, starts)
    texts = ["ones: 7+6+0=", "tens: 1+2+1=\n", "wait tens: 1+2+1=\n", "tens: 1+2+1="]
    assert reader.step_texts(response, ends) == texts
    assert reader.step_ends(response[: starts[0]], []) == [starts[0] - 1]  # one turn, as always
    three = StepReader(tokenizer, "</think>", step_tokens=8, max_steps=3).step_ends(response, starts)
    assert len(three) <= 3 and {starts[0] - 1, starts[1] - 1} <= {*three}
    # At most K, but one for each turn in any case.
    assert StepReader(tokenizer, "</think>", 8, 1).step_ends(response, starts) == [starts[0] - 1, starts[1] - 1]
    turns_are_steps = SwapConfig(step_tokens=8, steps="turns").segmentation
    assert StepReader(tokenizer, "</think>", *turns_are_steps).step_ends(response, starts) == [
        starts[0] - 1,
        starts[1] - 1,
    ]


def test_a_group_of_two_turns_worked_by_hand():
    """Both correct, 6 and 2 generated tokens: the observations' 100 tokens count nowhere."""
    long = Rollout("?", "4", range(6), [7], 1.0, False, (1, 3), (-4.0, -1.0, -1.0), observations=[(2, [9] * 100)])
    short = Rollout("?", "4", range(2), [7], 1.0, False, (0,), (-4.0, -2.0))
    traces = [long.trace(), short.trace()]
    assert [trace.length for trace in traces] == [6, 2]
    # The target is 4, P = (6 - 4)/4 = .5; gains 3, 0 and 2; tau without end: each step of the long one pays .25.
    rewards = torch.tensor([2.75, -0.25, 2.0], dtype=torch.float64)
    normalised = (rewards - rewards.mean()) / (rewards.std(correction=1) + 1e-6)
    first, second = swap_advantages(traces, SwapConfig(tau=float("inf"), process_weight=1.0))
    outcome = 0.0  # both correct
    a, b, c = normalised.tolist()
    assert first.tolist() == pytest.approx([outcome + a + b] * 2 + [b] * 2 + [0.0] * 2)
    assert second.tolist() == pytest.approx([c, 0.0])
    penalties = torch.tensor([[[0.25, 0.25], [0.0, 0.0]]])
    expected = {
        "swap/turns": 1.5,
        "swap/observation_tokens": 50.0,
        "swap/penalty_turn_1": 0.5,
        "swap/penalty_turn_2": 0.5,
    }
    assert turn_metrics([[long, short]], penalties) == expected
    assert turn_metrics([[short]], penalties) == {}


def test_scores_of_turns_are_those_of_one_forward_for_each_prefix(tokenizer):
    model = AutoModelForCausalLM.from_pretrained(POLICY, dtype=torch.float32).eval()

    def ids(text):
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    prompt = ids("<|user|>What is 47 + 36?<|assistant|><think>\n")
    calls, seen = [ids("ones: 7+6+0="), ids("tens: 4+3+1="), ids("</think>\n\n")], [ids("13\n"), ids("08\n")]
    response, starts = [*chain.from_iterable(calls)], [len(calls[0]), len(calls[0] + calls[1])]
    rollout = Rollout("?", "83", response, prompt, 1.0, observations=list(zip(starts, seen, strict=True)))
    reader = StepReader(tokenizer, "</think>", *SwapConfig(steps="turns").segmentation)
    rollout = replace(rollout, step_ends=reader.step_ends(response, rollout.turn_starts))
    branch, row = answer_branch(tokenizer, "</think>\n\n\\boxed{", "83"), torch.tensor([rollout.row_ids])
    for places in (rollout.prefix_ends, rollout.split_prefix_ends):
        request = ScoreRequest(0, places, branch)
        (scores,) = score_shared_prefix(model, model.config, row, torch.ones_like(row), [request])
        expected = score_per_prefix(model, row[0], [place + 1 for place in places], branch)
        torch.testing.assert_close(scores, expected, atol=5e-6, rtol=0)

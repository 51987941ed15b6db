"""What OpenRLHF's executor returns, as a rollout and as OpenRLHF's own row of it."""

import math
import operator
import re

import pytest
import torch
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator

from openrlhf_swap.errors import DataError
from openrlhf_swap.integration.driver.experience import check_names, experience_row, fit_context
from openrlhf_swap.integration.engine.responses import read_response
from openrlhf_swap.rewards.verifiers import GRADED_CORRECT

RESPONSE = {
    "prompt": "2 + 2?",
    "label": "4",
    "observation_tokens": [7, 8, 9, 1, 2, 3, 4],
    "action_ranges": [(3, 7)],
    "reward": 1,
    "scores": 1.0,
    "rollout_log_probs": None,
    "truncated": True,
}
TURNS = {
    **RESPONSE,
    "observation_tokens": [7, 8, 9, 1, 2, 50, 51, 3, 4, 60],
    "action_ranges": [(3, 5), (7, 9)],
    "rollout_log_probs": [0.0, 0.0, 0.0, -0.1, -0.2, 0.0, 0.0, -0.3, -0.4, 0.0],
}


def test_a_response_is_read():
    rollout = read_response(RESPONSE)
    assert rollout.prompt == "2 + 2?"
    assert rollout.answer == "4"
    assert rollout.response_ids == [1, 2, 3, 4]
    assert rollout.start == 3
    assert rollout.reward == 1.0
    assert rollout.truncated
    assert rollout.correct
    assert not read_response({**RESPONSE, "extra_logs": {GRADED_CORRECT: 0.0}}).correct
    continued = read_response(RESPONSE, start=1)
    assert continued.prompt_ids == [7]
    assert continued.response_ids == [8, 9, 1, 2, 3, 4]


def test_what_an_environment_wrote_is_no_action():
    rollout = read_response(TURNS)
    assert rollout.prompt_ids == [7, 8, 9]
    assert rollout.response_ids == [1, 2, 3, 4]
    assert rollout.observations == [(2, [50, 51])]
    row = experience_row(rollout, 20)
    assert row.response_length.tolist() == [4]  # OpenRLHF counts what lies between, too
    # What follows the last action is left out.
    assert row.sequences.tolist() == [[7, 8, 9, 1, 2, 50, 51, 3, 4]]
    assert row.action_mask.tolist() == [[0, 0, 1, 1, 0, 0, 1, 1]]
    expected = torch.tensor([[0, 0, -0.1, -0.2, 0, 0, -0.3, -0.4]])
    torch.testing.assert_close(row.rollout_log_probs, expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reward": None}, "gave no reward for a response"),
        *(
            ({"reward": reward}, f"gave {reward!r} as the reward of a response; it has to be one")
            for reward in (math.nan, -math.inf, [1.0, 0.0], [], {"score": 1}, "good")
        ),
        ({"scores": math.nan}, "gave nan as the score of a response"),
        ({"extra_logs": {"calls": "two"}}, "gave 'two' as calls of a response"),
        ({"action_ranges": []}, "generated nothing for a prompt"),
    ],
)
def test_a_response_that_cannot_be_learnt_from_is_an_error(changes, message):
    with pytest.raises(DataError, match=re.escape(message)):
        read_response({**RESPONSE, **changes})


# The response of one turn is cut at every place, and the one of two.
CUTS = [(RESPONSE, size) for size in (3, 5, 7, 9)]
CUTS += [(TURNS, size) for size in range(4, 11)]


@pytest.mark.parametrize(("response", "context"), CUTS)
def test_a_row_is_what_openrlhf_makes_of_the_response(response, context):
    response = {**response, "reward": 1.0, "extra_logs": {"mine": 2.0}}
    stock = SamplesGenerator._process_response_into_experience(None, response, max_len=context)
    rollout = fit_context(read_response(response), context)
    ours = vars(experience_row(rollout, context))
    stock.response_length = stock.action_mask.sum(-1)
    tokens = ours["sequences"].shape[1]
    if tokens == stock.sequences.shape[1]:
        fields = vars(stock)
        assert fields.pop("images") == fields.pop("mm_train_inputs") == [None]  # only text trains
        for name, value in fields.items():
            same = torch.equal if isinstance(value, torch.Tensor) else operator.eq
            assert same(ours[name], value), name
    else:  # OpenRLHF keeps what stands after the last action
        assert torch.equal(ours["sequences"], stock.sequences[:, :tokens])
        assert torch.equal(ours["action_mask"], stock.action_mask[:, : tokens - 1])
        assert not stock.action_mask[:, tokens - 1 :].any()
    actions = ours["action_mask"][0].bool()
    assert ours["sequences"][0, 1:][actions].tolist() == rollout.response_ids
    places = actions.nonzero().flatten()
    assert (rollout.positions - 1).tolist() == places.tolist()


def test_a_metric_that_some_responses_lack_is_named():
    """OpenRLHF would say that sizes do not match."""
    whole = read_response({**RESPONSE, "extra_logs": {"calls": 1.0}})
    check_names([whole, whole])
    with pytest.raises(DataError, match="the extra_logs of 1 of 3 responses lack 'calls'"):
        check_names([whole, whole, read_response(RESPONSE)])

"""A response from the engine to the sample that is trained on."""

import math
import pickle
import random
import re

import pytest
import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator

from openrlhf_swap.errors import DataError
from openrlhf_swap.integration.generation.response import make_sample, read_response
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


def test_a_response_is_read():
    rollout = read_response(RESPONSE)
    assert (rollout.prompt, rollout.answer, rollout.response_ids, rollout.start) == ("2 + 2?", "4", [1, 2, 3, 4], 3)
    assert (rollout.reward, rollout.truncated, rollout.correct) == (1.0, True, True)
    assert not read_response({**RESPONSE, "extra_logs": {GRADED_CORRECT: 0.0}}).correct
    continued = read_response(RESPONSE, start=1)
    assert (continued.prompt_ids, continued.response_ids) == ([7], [8, 9, 1, 2, 3, 4])


def test_a_sample_is_what_openrlhf_makes_of_the_response():
    response = {**RESPONSE, "reward": 1.0, "extra_logs": {"mine": 2.0}, "rollout_log_probs": [0.0] * 7}
    stock = SamplesGenerator._process_response_into_experience(None, response, max_len=5)
    ours = vars(make_sample(read_response(response), 5))
    for name, value in vars(stock).items():
        torch.testing.assert_close(ours[name], value) if isinstance(value, torch.Tensor) else None
        assert isinstance(value, torch.Tensor) or ours[name] == value, name


def test_a_response_without_a_reward_is_an_error():
    with pytest.raises(DataError, match="gave no reward for a response"):
        read_response({**RESPONSE, "reward": None})


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf, [1.0, 0.0], [], {"score": 1}, "good"])
def test_a_reward_that_is_not_a_finite_number_is_an_error(reward):
    message = f"--reward.remote_url gave {reward!r} as the reward of a response; it has to be one finite number"
    with pytest.raises(DataError, match=re.escape(message)):
        read_response({**RESPONSE, "reward": reward})


TURNS = {
    **RESPONSE,
    "observation_tokens": [7, 8, 9, 1, 2, 50, 51, 3, 4, 60],
    "action_ranges": [(3, 5), (7, 9)],
    "rollout_log_probs": [0.0, 0.0, 0.0, -0.1, -0.2, 0.0, 0.0, -0.3, -0.4, 0.0],
}


def test_what_an_environment_wrote_is_no_action():
    rollout = read_response(TURNS)
    assert (rollout.prompt_ids, rollout.response_ids, rollout.observations) == (
        [7, 8, 9],
        [1, 2, 3, 4],
        [(2, [50, 51])],
    )
    sample = make_sample(rollout, 20)
    assert sample.sequences.tolist() == [[7, 8, 9, 1, 2, 50, 51, 3, 4]]  # what follows the last action is left out
    assert sample.action_mask.tolist() == [[0, 0, 1, 1, 0, 0, 1, 1]]
    torch.testing.assert_close(sample.rollout_log_probs, torch.tensor([[0, 0, -0.1, -0.2, 0, 0, -0.3, -0.4]]))
    with pytest.raises(DataError, match="generated nothing for a prompt"):
        read_response({**TURNS, "action_ranges": []})


@pytest.mark.parametrize("context", range(4, 11))
def test_a_response_of_several_turns_ends_with_the_context_as_openrlhf_has_it(context):
    stock = SamplesGenerator._process_response_into_experience(None, {**TURNS, "reward": 1.0}, max_len=context)
    sample = make_sample(read_response(TURNS), context)
    actions = sample.action_mask.shape[1]
    assert (
        sample.action_mask.tolist() == stock.action_mask[:, :actions].tolist()
        and not stock.action_mask[:, actions:].any()
    )
    assert sample.rollout.response_ids == sample.sequences[0, 1:][sample.action_mask[0].bool()].tolist()
    assert (sample.rollout.positions - 1).tolist() == sample.action_mask[0].nonzero().flatten().tolist()


@pytest.mark.parametrize("context", [3, 5, 7, 9])
def test_the_rollout_has_the_tokens_that_openrlhf_keeps(context):
    sample = make_sample(read_response(RESPONSE), context)
    kept = sample.sequences[0, 1:][sample.action_mask[0].bool()].tolist()
    assert sample.rollout.response_ids == kept


def test_the_index_of_a_micro_batch_finds_the_rollouts():
    rng = random.Random(0)
    samples = []
    for number in range(6):
        ids = [rng.randrange(50) for _ in range(rng.randint(4, 9))]
        response = {**RESPONSE, "observation_tokens": ids, "action_ranges": [(2, len(ids))], "prompt": str(number)}
        samples.append(pickle.loads(pickle.dumps(make_sample(read_response(response), 20))))  # as Ray carries it
        samples[-1].index = [number]
    merged = Experience.concat_experiences([samples[4], samples[1], samples[3]], pad_token_id=0)
    assert merged.index == [4, 1, 3]
    for row, index in enumerate(merged.index):
        rollout = samples[index].rollout
        assert merged.prompts[row] == rollout.prompt
        actions = merged.sequences[row, 1:][merged.action_mask[row].bool()]
        assert actions.tolist() == rollout.response_ids
        assert merged.sequences[row, rollout.start] == rollout.response_ids[0]

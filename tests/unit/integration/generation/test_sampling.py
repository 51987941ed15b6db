"""A response from the engine to the sample that is trained on, and what becomes of groups that the
filter drops.
"""

import math
import pickle
import random
import re
from types import SimpleNamespace

import pytest
import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from support.actors import make_config
from support.actors import make_sample as sample_of
from support.objectives import READER

from openrlhf_swap.errors import DataError
from openrlhf_swap.integration.generation import sampling
from openrlhf_swap.integration.generation.rollout_actor import TextsOnce
from openrlhf_swap.integration.generation.sampling import (
    SamplesGenerator,
    SwapSamplesGenerator,
    make_sample,
    read_response,
)
from openrlhf_swap.objectives.registry import OBJECTIVES, build
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
    assert (rollout.prompt, rollout.answer, rollout.response_ids, rollout.start) == (
        "2 + 2?",
        "4",
        [1, 2, 3, 4],
        3,
    )
    assert (rollout.reward, rollout.truncated, rollout.correct) == (1.0, True, True)
    assert not read_response({**RESPONSE, "extra_logs": {GRADED_CORRECT: 0.0}}).correct
    continued = read_response(RESPONSE, start=1)
    assert (continued.prompt_ids, continued.response_ids) == ([7], [8, 9, 1, 2, 3, 4])


def test_a_sample_is_what_openrlhf_makes_of_the_response():
    response = {
        **RESPONSE,
        "reward": 1.0,
        "extra_logs": {"mine": 2.0},
        "rollout_log_probs": [0.0] * 7,
    }
    stock = SamplesGenerator._process_response_into_experience(None, response, max_len=5)
    ours = vars(make_sample(read_response(response), 5))
    for name, value in vars(stock).items():
        torch.testing.assert_close(ours[name], value) if isinstance(value, torch.Tensor) else None
        assert isinstance(value, torch.Tensor) or ours[name] == value, name


def test_a_response_without_a_reward_is_an_error():
    with pytest.raises(DataError, match="gave no reward for a response"):
        read_response({**RESPONSE, "reward": None})


@pytest.mark.parametrize(
    "reward", [math.nan, math.inf, -math.inf, [1.0, 0.0], [], {"score": 1}, "good"]
)
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
    assert (rollout.prompt_ids, rollout.response_ids) == ([7, 8, 9], [1, 2, 3, 4])
    assert rollout.observations == [(2, [50, 51])]
    sample = make_sample(rollout, 20)
    assert sample.sequences.tolist() == [
        [7, 8, 9, 1, 2, 50, 51, 3, 4]
    ]  # what follows the last action is left out
    assert sample.action_mask.tolist() == [[0, 0, 1, 1, 0, 0, 1, 1]]
    torch.testing.assert_close(
        sample.rollout_log_probs, torch.tensor([[0, 0, -0.1, -0.2, 0, 0, -0.3, -0.4]])
    )
    with pytest.raises(DataError, match="generated nothing for a prompt"):
        read_response({**TURNS, "action_ranges": []})


@pytest.mark.parametrize(
    ("response", "context"),
    [*((RESPONSE, size) for size in (3, 5, 7, 9)), *((TURNS, size) for size in range(4, 11))],
)
def test_a_response_of_one_turn_or_several_ends_with_the_context_as_openrlhf_has_it(
    response, context
):
    stock = SamplesGenerator._process_response_into_experience(
        None, {**response, "reward": 1.0}, max_len=context
    )
    sample = make_sample(read_response(response), context)
    ours, theirs = sample.action_mask, stock.action_mask
    assert torch.equal(ours, theirs[:, : ours.shape[1]]) and not theirs[:, ours.shape[1] :].any()
    assert (
        sample.rollout.response_ids
        == sample.sequences[0, 1:][sample.action_mask[0].bool()].tolist()
    )
    assert (sample.rollout.positions - 1).tolist() == sample.action_mask[
        0
    ].nonzero().flatten().tolist()


def test_the_index_of_a_micro_batch_finds_the_rollouts():
    rng = random.Random(0)
    samples = []
    for number in range(6):
        ids = [rng.randrange(50) for _ in range(rng.randint(4, 9))]
        response = {
            **RESPONSE,
            "observation_tokens": ids,
            "action_ranges": [(2, len(ids))],
            "prompt": str(number),
        }
        samples.append(
            pickle.loads(pickle.dumps(make_sample(read_response(response), 20)))
        )  # as Ray carries it
        samples[-1].index = [number]
    merged = Experience.concat_experiences([samples[4], samples[1], samples[3]], pad_token_id=0)
    assert merged.index == [4, 1, 3]
    for row, index in enumerate(merged.index):
        rollout = samples[index].rollout
        assert merged.prompts[row] == rollout.prompt
        actions = merged.sequences[row, 1:][merged.action_mask[row].bool()]
        assert actions.tolist() == rollout.response_ids
        assert merged.sequences[row, rollout.start] == rollout.response_ids[0]


def experience(prompt, score, text="", truncated=False):
    """A sample of a response with one character a token."""
    ids = [ord("?"), *READER.ids(text or "4")]
    response = {
        **RESPONSE,
        "prompt": prompt,
        "observation_tokens": ids,
        "action_ranges": [(1, len(ids))],
    }
    return sample_of({**response, "reward": score, "scores": score, "truncated": truncated})


class Generator(SwapSamplesGenerator):
    """Draws two responses to a prompt, which is the mean that their scores have."""

    def _generate_groups(self, prompts, labels, **generate_kwargs):
        self.asked.append(prompts)
        return [[experience(p, float(p)) for _ in range(2)] for p in prompts]


def make_generator(objective, rows=(), low=0.0, high=1.0):
    args = SimpleNamespace(
        algo=SimpleNamespace(dynamic_filtering_enable=True, dynamic_filtering_range=(low, high)),
        rollout=SimpleNamespace(
            n_samples_per_prompt=2, batch_size=2, vllm_generate_batch_size=None
        ),
        train=SimpleNamespace(full_determinism_enable=False),
        vllm=SimpleNamespace(enable_sleep=False),
    )
    return Generator(
        SamplesGenerator(SimpleNamespace(args=args), rows, None, None, []), objective, READER
    )


@pytest.fixture
def steps():
    """What an episode of prompts becomes, in batches of two: its steps, what was asked together,
    steps of training.
    """

    def run(*prompts, low=0.0, high=1.0):
        rows = [("", [prompt], ["label"], [None]) for prompt in prompts]
        objective = build(make_config(objective="grpo"))
        generator = make_generator(objective, rows, low, high)
        generator.asked, made, exhausted = [], [], False
        while not exhausted:
            samples, rate, consumed, exhausted = generator.generate_samples()
            made.append(
                ([prompt for sample in samples for prompt in sample.prompts], rate, consumed)
            )
        return made, generator.asked, objective.step

    return run


def test_dropped_groups_are_replaced_in_the_order_of_the_prompts(steps, capsys):
    made, asked, done = steps("0", "1", ".2", ".3", "1", ".4", ".5", "0", ".6")
    assert asked == [["0", "1"], [".2", ".3"], ["1", ".4"], [".5"], ["0", ".6"], []]
    assert made == [
        ([".2", ".2", ".3", ".3"], 50.0, 4),
        ([".4", ".4", ".5", ".5"], pytest.approx(200 / 3), 3),
        ([], 0.0, 2),  # a group that is too few for a batch
    ]
    assert done == 2
    assert (
        "the last 1 prompts of this episode do not fill a batch and are left out"
        in capsys.readouterr().out
    )


def test_the_range_is_a_setting_whose_ends_are_excluded(steps):
    made, *_ = steps(".25", ".5", ".75", ".3", low=0.25, high=0.75)
    assert made[0][0] == [".5", ".5", ".3", ".3"]


def test_an_episode_without_a_batch_ends_in_an_error(steps):
    with pytest.raises(
        DataError, match="fewer than 2 prompts had a mean score between 0 and 1: take problems that"
    ):
        steps("0", "1", ".5", "1", "1")


@pytest.mark.parametrize(
    ("name", "group", "passes"),
    [
        # Both correct, one cut off, or with a thought that never closes: dler trains on 1 and 0,
        # grpo on 1 and 1.
        ("dler", [("a#4", 1, False), ("b#4", 1, True)], True),
        ("grpo", [("a#4", 1, False), ("b#4", 1, True)], False),
        ("dler", [("a#4", 1, False), ("b4", 1, False)], True),
        # Of two that it trains on as 0 nothing is learned, though the grader's have spread.
        ("dler", [("a#4", 0, False), ("b4", 1, False)], False),
        # GRPO-LEAD drops groups without a correct answer, and those in which all earn the same.
        ("grpo_lead", [("a#\\boxed{5}", 0, False), ("b4", 0, False)], False),
        ("grpo_lead", [("a#\\boxed{4}", 1, False), ("bbb#\\boxed{4}", 1, False)], False),
        ("grpo_lead", [("a#\\boxed{4}", 1, False), ("b4", 0, False)], True),
    ],
)
def test_the_filter_goes_by_the_rewards_that_training_uses(name, group, passes):
    generator = make_generator(build(make_config(objective=name)))
    samples = [experience("p", float(score), text, truncated) for text, score, truncated in group]
    assert generator._passes(samples) == passes


def test_grpo_lead_keeps_a_group_whose_lengths_differ():
    config = make_config(objective="grpo_lead", options={"least_length": "0"})
    samples = [experience("p", 1.0, text) for text in ("a#\\boxed{4}", "bbb#\\boxed{4}")]
    assert make_generator(build(config))._passes(samples)


def test_a_metric_that_some_responses_lack_is_named(monkeypatch):
    """OpenRLHF would say that sizes do not match, of a batch."""
    generator = make_generator(build(make_config(objective="grpo")))

    def groups(prompts, labels):
        group = [experience("p", 1.0) for _ in range(3)]
        for sample in group[:2]:
            sample.info["calls"] = torch.tensor([1.0])
        return [group]

    monkeypatch.setattr(generator, "_generate_groups", groups)
    rows = [("", ["p", "p"], ["4", "4"], [None, None])]
    with pytest.raises(
        DataError, match=r"^the extra_logs of 1 of 3 responses lack 'calls': return the same names"
    ):
        generator._generate_vllm(iter(rows), 2, False)
    generator._evaluating = True
    assert len(generator._generate_vllm(iter(rows), 2, False)[0]) == 3


def test_objectives_that_learn_from_every_group_are_known():
    drops = {name for name in OBJECTIVES if not build(make_config(objective=name)).needs_all_groups}
    assert drops == {"grpo", "dr_grpo", "dler", "decs", "grpo_lead", "sas"}


def test_a_tokenizer_travels_once_however_many_prompts_it_goes_with(monkeypatch, tokenizer):
    """Written to Ray's store once, and read once by a process that gets it with every prompt."""
    stored, read = [], []
    monkeypatch.setattr(sampling.ray, "put", lambda value: stored.append(value) or "its place")
    monkeypatch.setattr(sampling.ray, "get", lambda place: read.append(place) or tokenizer)
    sampling.read_once.cache_clear()
    sent = sampling.StoredTokenizer(tokenizer)
    written = [pickle.dumps(sent) for _ in range(8)]
    got = [pickle.loads(data) for data in written]
    assert stored == [tokenizer] and read == ["its place"] and max(map(len, written)) < 200
    assert all(each is tokenizer for each in got)
    assert sent("a", add_special_tokens=False) == tokenizer("a", add_special_tokens=False)
    assert sent.eos_token_id == tokenizer.eos_token_id
    sampling.read_once.cache_clear()


def test_a_text_is_tokenised_once_for_all_samples_of_a_prompt(tokenizer):
    asked = []

    def counting(text, **options):
        asked.append(text)
        return tokenizer(text=text, **options)

    once = TextsOnce(counting, "1 + 1", None)
    options = {"add_special_tokens": False, "return_tensors": "pt"}
    expected = tokenizer("1 + 1", **options)["input_ids"]
    assert all(torch.equal(once(text="1 + 1", **options)["input_ids"], expected) for _ in range(16))
    assert asked == ["1 + 1"]
    known = TextsOnce(counting, "1 + 1", [5, 6])
    assert known(text="1 + 1", **options)["input_ids"].tolist() == [[5, 6]] and asked == ["1 + 1"]
    assert (
        known(text="2", **options)["input_ids"].tolist()
        == tokenizer("2", **options)["input_ids"].tolist()
    )

"""The real actors: Ray, DeepSpeed, vLLM and OpenRLHF's own classes, on the quickstart's policy."""

import math

import pytest
import torch
from support.actors import (
    CLOSE,
    GROUP_SIZE,
    GROUPS,
    MEMBERS,
    learn,
    learn_from,
    make_config,
    make_policy,
    response_to,
    rollouts_of,
    stock_rows,
)
from support.paths import POLICY
from support.slow_advantages import slow_advantages
from transformers import AutoModelForCausalLM

from openrlhf_swap.files import write_rows
from openrlhf_swap.integration.driver.sampler import Drawn, Part, Sampler
from openrlhf_swap.objectives.base import SamplingRequest
from openrlhf_swap.objectives.registry import build
from openrlhf_swap.rollouts.reader import StepReader
from openrlhf_swap.rollouts.rollout import prompt_key
from openrlhf_swap.scoring.answer import answer_branch, read_per_prefix

pytestmark = pytest.mark.slow


def assert_equal_up_to_bfloat16(logprobs, expected):
    """The same quantity by two routes in bfloat16.

    Against float32, this policy's bfloat16 log-probabilities are off by up to 0.16 at improbable
    tokens and by 0.007 on average, depending on the attention kernel; another policy's would be off
    by whole nats.
    """
    difference = (torch.as_tensor(logprobs) - torch.as_tensor(expected)).abs()
    assert difference.max() < 0.3
    assert difference.mean() < 0.02


SPLITS = {
    "groups_in_one_batch": (16, False),
    "groups_scattered": (3, False),
    "batches_balanced_by_length": (16, True),
}


@pytest.fixture(params=SPLITS.values(), ids=SPLITS)
def split(request, arguments, monkeypatch):
    monkeypatch.setattr(arguments.rollout, "micro_batch_size", request.param[0])
    monkeypatch.setattr(arguments.train, "dynamic_batch_enable", request.param[1])
    monkeypatch.setattr(arguments.rollout, "max_tokens_per_gpu", 500)


def test_the_advantages_are_stock_grpo_and_the_process_term(
    split, actor_group, tokenizer, responses
):
    """With theta = 0 bit for bit, log-probabilities too; else as the equations say."""
    stock = stock_rows(actor_group, tokenizer, responses)
    zero = learn_from(actor_group, tokenizer, responses, make_config(process_weight=0.0))
    for (expected, logprobs), (advantages, ours) in zip(stock, zero.rows, strict=True):
        assert torch.equal(advantages, expected)
        assert torch.equal(ours, logprobs)
    learned = learn_from(actor_group, tokenizer, responses, make_config())
    ours = learned.rows
    for members in MEMBERS:
        group = [learned.rollouts[i].trace() for i in members]
        for i, trace, values in zip(members, group, slow_advantages(group), strict=True):
            advantages, _ = ours[i]
            torch.testing.assert_close(advantages, torch.tensor(values), rtol=0, atol=1e-5)
            assert trace.correct == (responses[i]["reward"] > 0)
            assert torch.equal(advantages, stock[i][0]) is not trace.correct
    assert learned.metrics["swap/adv_process_absmean"] > 0


def test_adaptthink_trains_on_its_forced_tokens(actor_group, tokenizer, responses, tmp_path):
    """The first half of each group follows a forced `</think>`, the second a forced word."""
    reference = tmp_path / "reference.jsonl"
    keys = {prompt_key(response["prompt"]) for response in responses}
    write_rows(reference, ({"key": key, "accuracy": 0.5} for key in keys))
    options = {"reference": str(reference), "thinking_start": "ones"}
    objective = build(make_config(objective="adaptthink", options=options))
    reader = StepReader(tokenizer, objective.config.end_of_thought, *objective.config.segmentation)
    sampler = Sampler(actor_group[1].args, None, None, [], objective, reader)
    finished = []
    for number, response in enumerate(responses):
        part = number % GROUP_SIZE // 2
        word = ("</think>", "ones")[part]
        rest = ("\\boxed{1}", ": 1")[part]
        prompt = response["prompt"]
        made = response_to(tokenizer, prompt + word, response["label"], rest, False)
        (rollout,) = rollouts_of([{**made, "prompt": prompt}])
        request = SamplingRequest(prompt, 2, 320, word, 0.5)
        finished.append(sampler.finish(Drawn(Part(part, request), rollout)))

    policy = make_policy(actor_group, tokenizer, objective.config)
    learned = learn(policy, objective, reader, finished)
    pairs = zip(learned.rollouts, learned.rows, strict=True)
    for number, (rollout, (advantages, logprobs)) in enumerate(pairs):
        skipped = number % GROUP_SIZE < 2
        text = tokenizer.decode(rollout.response_ids)
        assert text == ("</think>\\boxed{1}" if skipped else "ones: 1")
        assert len(advantages) == len(rollout.response_ids)
        # A wrong answer gets 0 - 0.5, and a skipped thought its bonus.
        expected = torch.full_like(advantages, -0.45 if skipped else -0.5)
        torch.testing.assert_close(advantages, expected)
        assert logprobs[0].item() == pytest.approx(math.log(0.5))
        assert (logprobs[1:] < 0).all()


def test_markers_come_from_the_policys_own_weights(actor_group, tokenizer, responses):
    """Compare each l_k with a plain forward of the same checkpoint on that prefix alone.

    Two groups are compared, because the plain forwards take most of the time.
    """
    learned = learn_from(actor_group, tokenizer, responses, make_config())
    stock = stock_rows(actor_group, tokenizer, responses)
    model = AutoModelForCausalLM.from_pretrained(POLICY, dtype=torch.bfloat16).eval()
    scored = 0
    for number in range(2 * GROUP_SIZE):
        rollout = learned.rollouts[number]
        response = responses[number]
        # Asking for markers does not change the log-probabilities that the update uses.
        assert_equal_up_to_bfloat16(learned.rows[number][1], stock[number][1])
        if not rollout.answer_logprobs:
            assert response["reward"] == 0
            continue
        ids = torch.tensor(response["observation_tokens"])
        lengths = [rollout.start, *(rollout.start + end + 1 for end in rollout.step_ends)]
        branch = answer_branch(tokenizer, CLOSE, rollout.answer)
        expected = read_per_prefix(model, ids, lengths, branch)
        found = torch.tensor(rollout.answer_logprobs)
        torch.testing.assert_close(found, expected, rtol=0.05, atol=0.1)
        scored += 1
    assert scored >= GROUPS


def test_turns_earn_what_a_forward_for_each_prefix_says(
    actor_group, arguments, monkeypatch, tokenizer, responses
):
    """Rows of two turns, padded, are scored in the policy's own forward.

    With theta = 0 the advantages are stock GRPO's, bit for bit.
    """
    monkeypatch.setattr(arguments.rollout, "micro_batch_size", 3)
    seen = tokenizer("13\n08\n", add_special_tokens=False)["input_ids"]
    agents = []
    cuts = []
    for response in responses:
        ids = response["observation_tokens"]
        ((start, end),) = response["action_ranges"]
        cut = (start + end) // 2
        cuts.append(cut - start)
        ranges = [(start, cut), (cut + len(seen), end + len(seen))]
        tokens = ids[:cut] + seen + ids[cut:]
        agents.append({**response, "observation_tokens": tokens, "action_ranges": ranges})
    stock = stock_rows(actor_group, tokenizer, agents)
    zero = learn_from(actor_group, tokenizer, agents, make_config(process_weight=0.0)).rows
    for (ours, _), (expected, _) in zip(zero, stock, strict=True):
        assert torch.equal(ours, expected)

    learned = learn_from(actor_group, tokenizer, agents, make_config())
    rollouts = learned.rollouts
    model = AutoModelForCausalLM.from_pretrained(POLICY, dtype=torch.bfloat16).eval()
    off = []
    for members in MEMBERS:
        expected = slow_advantages([rollouts[i].trace() for i in members])
        for i, values in zip(members, expected, strict=True):
            rollout = rollouts[i]
            cut = cuts[i]
            tokens = agents[i]["observation_tokens"]
            advantages, _ = learned.rows[i]
            torch.testing.assert_close(advantages, torch.tensor(values), rtol=0, atol=1e-5)
            assert len(values) == len(rollout.response_ids) == len(tokens) - rollout.start - 6
            if not rollout.correct or members not in MEMBERS[:2]:
                continue
            assert cut - 1 in rollout.step_ends
            lengths = [rollout.start]
            for end in rollout.step_ends:
                observed = len(seen) if end >= cut - 1 else 0
                lengths.append(rollout.start + end + 1 + observed)
            branch = answer_branch(tokenizer, CLOSE, rollout.answer)
            scores = read_per_prefix(model, torch.tensor(tokens), lengths, branch)
            off += (torch.tensor(rollout.answer_logprobs) - scores).abs().tolist()
    assert len(off) > 25
    # This is what bfloat16 rounds. A prefix of other tokens would be off by whole nats.
    assert max(off) < 0.1

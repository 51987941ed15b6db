"""Sampling and outcome-only updates in plain PyTorch, against one row at a time without padding."""

import random

import outcome_only
import pytest
import torch
import words
from decoding import Decoder
from make_policy import build_model, build_tokenizer
from outcome_only import descend
from pretrain import batches, rate, tensors
from words import problems

PROMPTS = ["From 3 by A1B2", "Flip", "From 1 by F1F2F3, not 2"]


@pytest.fixture
def decoder():
    tokenizer = build_tokenizer(words)
    return Decoder(
        build_model(tokenizer, 0).float().eval(), tokenizer, torch.Generator().manual_seed(0)
    )


def scores(decoder, ids):
    with torch.no_grad():
        return decoder.model(torch.tensor([ids])).logits[0].log_softmax(-1)


def test_what_is_forced_stands_there_and_what_is_free_is_the_policy_s(decoder):
    choice = decoder.encode("4567")
    template = [decoder.encode("so")[:1], choice, decoder.encode("\n")[:1]]
    many = 150
    filled = decoder.fill(
        [prompt for prompt in PROMPTS for _ in range(many)], [template] * many * len(PROMPTS)
    )
    assert all(
        len(row) == 3 and row[0] == template[0][0] and row[2] == template[2][0] for row in filled
    )
    for place, prompt in enumerate(PROMPTS):
        rows = filled[place * many : (place + 1) * many]
        expected = scores(decoder, decoder.encode(prompt) + template[0])[-1, choice].softmax(-1)
        seen = torch.tensor([sum(row[1] == token for row in rows) / many for token in choice])
        assert (seen - expected).abs().max() < 5 * (0.25 / many) ** 0.5


def test_a_response_ends_with_its_end_token_or_the_limit(decoder):
    with torch.no_grad():
        decoder.model.model.norm.weight.mul_(0)  # all tokens alike
    rows = decoder.respond(["a"] * 100, max_tokens=20)
    end = decoder.tokenizer.eos_token_id
    assert all(row.index(end) == len(row) - 1 if end in row else len(row) == 20 for row in rows)
    assert 0 < sum(end in row for row in rows) < 50  # 1 in 350 tokens


def test_the_gradient_is_that_of_each_response_by_itself(decoder):
    prompts = [decoder.encode(prompt) for prompt in PROMPTS]
    responses = [decoder.encode(text) for text in ("A1 3>4\n", "so 4\n", "hmm\n")]
    advantages = torch.tensor([1.5, -0.5, 2.0], dtype=torch.float64)
    descend(decoder, prompts, responses, advantages)
    batched = {name: value.grad.clone() for name, value in decoder.model.named_parameters()}
    decoder.model.zero_grad()
    tokens = sum(map(len, responses))
    for prompt, response, advantage in zip(prompts, responses, advantages, strict=True):
        logits = decoder.model(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]
        picked = logits.log_softmax(-1).gather(-1, torch.tensor(response)[:, None])
        (-float(advantage) * picked.sum() / tokens).backward()
    for name, value in decoder.model.named_parameters():
        assert torch.allclose(batched[name], value.grad, atol=1e-6), name


def test_reward_teaches_what_it_pays_for_and_nothing_where_all_is_paid_for(decoder, monkeypatch):
    monkeypatch.setattr(outcome_only, "PROMPTS", 4)

    def paid():
        return float(
            scores(decoder, decoder.encode(words.prompt(next(problems(0)))))[-1, :64].exp().sum()
        )

    before = paid()
    everything = outcome_only.train(
        decoder, problems(0), lambda problem, response: True, 1, max_tokens=1
    )
    assert list(everything) == [1.0] and paid() == before
    some = outcome_only.train(
        decoder, problems(0), lambda problem, response: response[0] < 64, 4, max_tokens=1
    )
    assert all(0 < share < 1 for share in some) and paid() > 1.05 * before


def test_rows_are_padded_and_the_answer_counts_more():
    ids, weights = tensors([([5, 6], [7, 8, 9, 10, 11, 12]), ([5], [6, 7])], pad=0)
    assert ids.tolist() == [[5, 6, 7, 8, 9, 10, 11, 12], [5, 6, 7, 0, 0, 0, 0, 0]]
    assert weights.tolist() == [[0, 0, 1, 1, 5, 5, 5, 5], [0, 5, 5, 0, 0, 0, 0, 0]]


def test_every_row_comes_once_with_rows_of_like_length():
    rows = [([1] * (i % 7), [2] * (i % 5 + 1)) for i in range(130)]
    found = list(batches(rows, 8, random.Random(0)))
    assert sorted(map(str, (row for batch in found for row in batch))) == sorted(map(str, rows))
    spans = [
        max(len(a) + len(b) for a, b in batch) - min(len(a) + len(b) for a, b in batch)
        for batch in found
    ]
    assert max(spans) <= 3
    assert [round(rate(update, 1000), 3) for update in (0, 29, 500, 1000)] == [
        0.017,
        0.499,
        0.525,
        0.05,
    ]

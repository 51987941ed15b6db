"""GRPO by the outcome alone in plain PyTorch: what reward can teach a world's policy.

A world that asks for thought must go on asking when a policy is rewarded for answering at once. The
gates of a world (gates.py) train so, and look at what the policy then answers without a thought.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import torch
from torch import Tensor

from openrlhf_swap.algorithm.advantages import outcome_advantages
from openrlhf_swap.algorithm.coefficients import Coefficients
from openrlhf_swap.quickstart.world import Problem, rendered
from studies.toy_tasks import repeated
from studies.toy_tasks.decoding import Decoder

PROMPTS = 16  # an update
RESPONSES = 8  # a prompt
LEARNING_RATE = 3e-4
PART = 32  # responses a backward pass

Judge = Callable[[Problem, list[int]], bool]


def train(
    decoder: Decoder,
    problems: Iterator[Problem],
    judge: Judge,
    updates: int,
    opening: str = "",
    max_tokens: int = 320,
) -> Iterator[float]:
    """Train the decoder's policy in place, one update at a time.

    Gives the share of correct responses of each. `opening` follows the prompt and is not trained
    on: with the end of a thought the policy answers at once.
    """
    optimizer = torch.optim.AdamW(
        decoder.model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.0
    )
    for _ in range(updates):
        asked = repeated(islice(problems, PROMPTS), RESPONSES)
        prompts = [rendered(problem.question) + opening for problem in asked]
        responses = decoder.respond(prompts, max_tokens)
        correct = torch.tensor(
            [judge(*pair) for pair in zip(asked, responses, strict=True)], dtype=torch.float64
        )
        advantages = outcome_advantages(
            correct.view(PROMPTS, RESPONSES), Coefficients().eps
        ).flatten()
        optimizer.zero_grad()
        descend(decoder, [decoder.encode(prompt) for prompt in prompts], responses, advantages)
        torch.nn.utils.clip_grad_norm_(decoder.model.parameters(), 1.0)
        optimizer.step()
        yield float(correct.mean())


def descend(
    decoder: Decoder,
    prompts: Sequence[list[int]],
    responses: Sequence[list[int]],
    advantages: Tensor,
) -> None:
    """Add the gradient of the policy loss, a mean over the tokens of all responses."""
    tokens = sum(map(len, responses))
    order = sorted(range(len(responses)), key=lambda i: len(prompts[i]) + len(responses[i]))
    for start in range(0, len(order), PART):
        part = order[start : start + PART]
        longest = max(len(prompts[i]) + len(responses[i]) for i in part)
        ids = torch.full((len(part), longest), decoder.tokenizer.pad_token_id)
        weights = torch.zeros(len(part), longest)
        for row, i in enumerate(part):
            end = len(prompts[i]) + len(responses[i])
            ids[row, :end] = torch.tensor(prompts[i] + responses[i])
            weights[row, len(prompts[i]) : end] = advantages[i]
        logits = decoder.model(ids[:, :-1]).logits.float()
        log_probs = logits.log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
        loss = -(log_probs * weights[:, 1:]).sum() / tokens
        loss.backward()

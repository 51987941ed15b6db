"""What objectives look for in the text of a response: its format, a thought in its place, and repetition."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import groupby, pairwise

import torch
from torch import Tensor

from openrlhf_swap.config import SwapConfig
from openrlhf_swap.rewards.statements import last_boxed
from openrlhf_swap.rollouts.families import opens_thought
from openrlhf_swap.rollouts.reader import is_formatted
from openrlhf_swap.rollouts.rollout import Batch

CORRECT, WRONG, UNFORMATTED = 1.0, -0.5, -1.0
LONGEST_PHRASE, LEAST_TIMES, LONGEST_WORD = 30, 10, 120  # words, times in a row, characters


def base_scores(batch: Batch) -> Tensor:
    """(G, N) 1 for a correct answer, -0.5 for a wrong one, -1 for a response without the format (or cut off)."""
    formatted = batch.each(lambda rollout: is_formatted(rollout.response_ids, batch.reader)).bool()
    return torch.where(formatted, torch.where(batch.correct, CORRECT, WRONG).double(), UNFORMATTED)


def boxed(batch: Batch) -> Tensor:
    """(G, N) float64, 1 for a response with a box, in its thought or after it."""
    return batch.each(lambda rollout: last_boxed(batch.reader.text(rollout.response_ids)) is not None)


def is_right(correct: bool, prompt: str, text: str, config: SwapConfig) -> bool:
    """Whether a response counts as correct: graded so, with a thought that is closed once and not opened again.

    After a prompt that does not open the thought, the response may begin with its mark.
    """
    start = config.start_of_thought
    if not opens_thought(prompt, start):
        text = text.lstrip().removeprefix(start.rstrip())
    return correct and start not in text and text.count(config.end_of_thought) == 1


def is_degenerate(text: str) -> bool:
    """Whether a text says one phrase ten times in a row, or has a word of 120 characters.

    The rule that the releases of GRPO-LEAD and AutoThink share. A phrase has at most 30 words; the text is cut into
    phrases of each length from its beginning, so a repetition is seen where it fits that grid. Words are what white
    space separates.
    """
    words = text.split()
    for size in range(1, LONGEST_PHRASE + 1):
        phrases = [words[start : start + size] for start in range(0, len(words) - size + 1, size)]
        if any(len(list(run)) >= LEAST_TIMES for _, run in groupby(phrases)):
            return True
    return any(len(word) >= LONGEST_WORD for word in words)


def is_repetitive(ids: Sequence[int]) -> bool:
    """Whether a pattern of tokens comes back, by the rule of LASER-DE's released code as it is written.

    n is 2 below 30 tokens, 3 below 100, else 4. A pattern comes back when an n-gram (for n > 2 not of one token alone)
    is there twice, from 200 tokens on three times, with two neighbours closer than a third of the length; or when 2n
    tokens are there twice at any distance.
    """
    length = len(ids)
    if length <= 8:
        return False
    n = 2 if length < 30 else 3 if length < 100 else 4
    least = 2 if length < 200 else 3
    places = defaultdict(list)
    for start in range(length - n + 1):
        gram = tuple(ids[start : start + n])
        if n == 2 or len(set(gram)) > 1:
            places[gram].append(start)
    for starts in places.values():
        if len(starts) >= least and any(after - before < length // 3 for before, after in pairwise(starts)):
            return True
    longer = [tuple(ids[start : start + 2 * n]) for start in range(length - 2 * n + 1)]
    return length >= 4 * n and len(set(longer)) < len(longer)

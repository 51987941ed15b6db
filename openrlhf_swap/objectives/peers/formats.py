"""Rules about the text of a response that several objectives share."""

from itertools import groupby

import torch
from torch import Tensor

from openrlhf_swap.config import SwapConfig
from openrlhf_swap.rewards.graded_text import NO_MARK
from openrlhf_swap.rewards.statements import last_boxed
from openrlhf_swap.rollouts.families import opens_thought
from openrlhf_swap.rollouts.reader import is_formatted
from openrlhf_swap.rollouts.rollout import Batch, Rollout

CORRECT = 1.0
WRONG = -0.5
UNFORMATTED = -1.0
LONGEST_PHRASE = 30  # words
LEAST_TIMES = 10  # in a row
LONGEST_WORD = 120  # characters


def base_scores(batch: Batch) -> Tensor:
    """(G, N) 1 for a correct answer, -0.5 for a wrong one, -1 for a response without the format.

    The format is one closed thought, and a box after it; without marks a box.
    """
    scores = torch.full(batch.correct.shape, WRONG, dtype=torch.float64)
    scores[batch.correct] = CORRECT
    formatted = batch.each(lambda rollout: is_formatted(rollout.response_ids, batch.reader))
    scores[~formatted.bool()] = UNFORMATTED
    return scores


def boxed(batch: Batch) -> Tensor:
    """(G, N) bool, whether a response has a box, in its thought or after it."""
    return batch.each_text(lambda text: last_boxed(text) is not None).bool()


def without_opening(text: str, prompt: str, start_of_thought: str) -> str:
    """A response without the mark that opens its thought, where the prompt leaves that to it."""
    if opens_thought(prompt, start_of_thought):
        return text
    return text.lstrip().removeprefix(start_of_thought.rstrip())


def is_right(correct: bool, prompt: str, text: str, config: SwapConfig) -> bool:
    """Whether a response is correct, and its thought is opened once and closed once.

    The prompt opens the thought, or the response does. Without marks a correct response is right.
    """
    if config.end_of_thought == NO_MARK:
        return correct
    text = without_opening(text, prompt, config.start_of_thought)
    opens_again = config.start_of_thought in text
    return correct and not opens_again and text.count(config.end_of_thought) == 1


def right_answers(batch: Batch, config: SwapConfig) -> Tensor:
    """(G, N) bool, the responses for which `is_right`."""

    def counts(rollout: Rollout) -> bool:
        text = batch.reader.text(rollout.response_ids)
        return is_right(rollout.correct, rollout.prompt, text, config)

    return batch.each(counts).bool()


def is_degenerate(text: str) -> bool:
    """Whether a text says one phrase ten times in a row, or has a word of 120 characters.

    The rule of the releases of GRPO-LEAD and AutoThink. They cut the text into phrases of each
    length up to 30 words, from its beginning: a repetition is seen where it fits that grid.
    What metrics call a loop is `runs.diagnostics.is_looping`.
    """
    words = text.split()
    if any(len(word) >= LONGEST_WORD for word in words):
        return True
    return any(_repeats(words, size) for size in range(1, LONGEST_PHRASE + 1))


def _repeats(words: list[str], size: int) -> bool:
    """Whether one phrase of so many words comes ten times in a row."""
    starts = range(0, len(words) - size + 1, size)
    phrases = [words[start : start + size] for start in starts]
    return any(len(list(run)) >= LEAST_TIMES for _, run in groupby(phrases))

"""Groups of made-up responses for the objectives' tests."""

import json

import torch

from openrlhf_swap import SwapConfig
from openrlhf_swap.algorithm.coefficients import Coefficients
from openrlhf_swap.objectives.registry import build
from openrlhf_swap.rollouts.rollout import Batch, Rollout


class CharacterReader:
    """Stands in for a reader with a tokenizer: a character is a token.

    `#` stands for `</think>` and `¶` for a blank line, which are one token in real models, too.
    """

    end_of_thought = "</think>"

    def text(self, ids):
        characters = "".join(map(chr, ids))
        return characters.replace("#", "</think>").replace("¶", "\n\n")

    def ids(self, text):
        return [ord(character) for character in text.replace("</think>", "#")]

    def without_end(self, response_ids):
        ids = list(response_ids)
        return ids[:-1] if ids[-1:] == [ord("$")] else ids

    def is_closed(self, response_ids):
        return self.thought_length(response_ids) is not None

    def reasoning_length(self, response_ids):
        length = self.thought_length(response_ids)
        return len(response_ids) if length is None else length

    def thought_length(self, response_ids):
        ids = list(response_ids)
        return ids.index(ord("#")) if ord("#") in ids else None


READER = CharacterReader()
MARKS = SwapConfig(start_of_thought="<think>", end_of_thought="</think>")
RIGHT = "thought#\\boxed{42}"  # 18 tokens
UNBOXED = "thought#42"  # 10 tokens


def objective(name, **options):
    """The objective of this name, with these values of its own flags."""
    words = {key: str(value) for key, value in options.items()}
    return build(MARKS.replaced(objective=name, options=words))


def rollout(
    text="", length=None, correct=True, prompt="p", answer="42", truncated=False, **metadata
):
    """A response with this text, filled up with distinct tokens in its thought to `length`."""
    ids = [ord(character) for character in text]
    if length is not None:
        ids = [*range(0x1000, 0x1000 + length - len(ids)), *ids]
    return Rollout(prompt, answer, ids, range(5), float(correct), truncated, metadata=metadata)


def batch(*groups):
    """The groups as an objective gets them."""
    return Batch(groups, Coefficients(process_weight=0.0), READER)


def assert_rows(values, expected, tolerance=1e-9):
    expected = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(values, expected, rtol=0, atol=tolerance)


LENGTHS = (500, 1000, 1500, 2000)
CORRECT = (True, True, False, True)


def group(lengths=LENGTHS, correct=CORRECT, text=RIGHT, **more):
    """Responses of these lengths, some of them correct, that end with the same text."""
    pairs = zip(lengths, correct, strict=True)
    return [rollout(text, length, is_correct, **more) for length, is_correct in pairs]


def rewards(name, *groups, **options):
    """What an objective pays for each response, of one usual group unless others are given."""
    method = objective(name, **options)
    return method.rewards(batch(*(groups or [group()])))


def restored(method):
    """The objective from its checkpoint, which holds plain values."""
    again = build(method.config)
    again.resume(0, json.loads(json.dumps(method.state_dict())))
    return again

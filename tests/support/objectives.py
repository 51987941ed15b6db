"""Groups of made-up responses for the objectives' tests."""

import json

import torch

from openrlhf_swap import SwapConfig
from openrlhf_swap.algorithm.coefficients import Coefficients
from openrlhf_swap.objectives.registry import build
from openrlhf_swap.rollouts.rollout import Batch, Rollout


class CharacterReader:
    """One character a token; `#` stands for `</think>` and `¶` for a blank line, each one token as
    in real models.
    """

    end_of_thought = "</think>"
    end_token = ord("$")

    def text(self, ids):
        return "".join(chr(i) for i in ids).replace("#", "</think>").replace("¶", "\n\n")

    def ids(self, text):
        return [ord(c) for c in text.replace("</think>", "#")]

    def reasoning_length(self, response_ids):
        ids = list(response_ids)
        return ids.index(ord("#")) if ord("#") in ids else len(ids)

    def thought_length(self, response_ids):
        ids = list(response_ids)
        return ids.index(ord("#")) if ord("#") in ids else None


READER = CharacterReader()
MARKS = SwapConfig(start_of_thought="<think>", end_of_thought="</think>")
RIGHT = "thought#\\boxed{42}"  # 18 tokens
UNBOXED = "thought#42"  # 10 tokens


def objective(name, **options):
    return build(
        MARKS.replaced(objective=name, options={key: str(value) for key, value in options.items()})
    )


def rollout(
    text="", length=None, correct=True, prompt="p", answer="42", truncated=False, **metadata
):
    """A response with this text, filled up with distinct tokens in its thought to `length`."""
    ids = [ord(c) for c in text]
    if length is not None:
        ids = [0x1000 + i for i in range(length - len(ids))] + ids
    return Rollout(prompt, answer, ids, range(5), float(correct), truncated, metadata=metadata)


def batch(*groups):
    return Batch(groups, Coefficients(process_weight=0.0), READER)


def assert_rows(values, expected, tolerance=1e-9):
    torch.testing.assert_close(
        values, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=tolerance
    )


LENGTHS, CORRECT = (500, 1000, 1500, 2000), (True, True, False, True)


def group(lengths=LENGTHS, correct=CORRECT, text=RIGHT, **more):
    return [
        rollout(text, length, right, **more) for length, right in zip(lengths, correct, strict=True)
    ]


def rewards(name, *groups, **options):
    return objective(name, **options).rewards(batch(*(groups or [group()])))


def restored(method):
    """The objective from its checkpoint, which holds plain values."""
    again = build(method.config)
    again.resume(0, json.loads(json.dumps(method.state_dict())))
    return again

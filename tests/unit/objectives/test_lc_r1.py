"""LC-R1 and DECS by hand, and an extractor of one's own that errs."""

import sys
from types import ModuleType

import numpy as np
import pytest
import torch
from support.objectives import READER, assert_rows, batch, objective, rollout

from openrlhf_swap.errors import ConfigError, ObjectiveError
from openrlhf_swap.objectives.peers.lc_r1 import first_right_answer

RESPONSE = rollout("so it is 42. Or not?#\\boxed{42}")  # a thought of 20 tokens

OBJECTIVES = ("lc_r1", "decs")


@pytest.fixture
def with_extractor(monkeypatch):
    """A function that makes an objective whose extractor is this one."""
    module = ModuleType("mine")
    monkeypatch.setitem(sys.modules, "mine", module)

    def make(name, extractor):
        module.cut = extractor
        return objective(name, extractor="mine:cut")

    return make


def use(method, response=RESPONSE):
    """Each calls its extractor where the batch passes first."""
    if method.name == "lc_r1":
        return method.edit(response, READER)
    return method.token_advantages(batch([response] * 2))


@pytest.mark.parametrize("found", [21, -1, None])
def test_what_it_may_not_return(with_extractor, found):
    message = f"'mine:cut', which returned {found}; expected tokens from 0 to 20"
    for name in OBJECTIVES:
        with pytest.raises(ObjectiveError, match=f"--swap.{name}.extractor is {message}"):
            use(with_extractor(name, lambda *_: found))


def test_what_is_no_function_is_refused_before_the_start(with_extractor):
    with pytest.raises(ConfigError, match="'mine:cut', which is not a function; use module:f"):
        with_extractor("decs", 7)


@pytest.mark.parametrize("kept", [0, 12, np.int64(12)])
def test_what_it_may_return(with_extractor, kept):
    cut = with_extractor("lc_r1", lambda *_: kept).edit(RESPONSE, READER)
    text = "so it is 42. Or not?"
    assert READER.text(cut.response_ids) == text[: kept or None] + "</think>\\boxed{42}"
    assert cut.metadata["lc_r1_kept"] == kept
    assert type(cut.metadata["lc_r1_kept"]) is float


def test_it_is_asked_about_correct_responses_only(with_extractor):
    wrong = rollout("so it is 7. Or not?#\\boxed{7}", correct=False)
    for name in OBJECTIVES:
        use(with_extractor(name, lambda *_: pytest.fail("asked")), wrong)


def test_lc_r1_cuts_a_right_thought_after_the_answer():
    method = objective("lc_r1")
    # The first sentence with 42 ends after 12 characters; the thought has 32.
    cut = method.edit(rollout("so it is 42. Let me check again.#\\boxed{42}"), READER)
    assert READER.text(cut.response_ids) == "so it is 42.</think>\\boxed{42}"
    without_number = rollout("no number here.#\\boxed{42}")
    silent = method.edit(without_number, READER)
    assert silent.response_ids == without_number.response_ids
    assert without_number.metadata == {}  # the sampled response stays as it is
    incorrect = rollout("so it is 42. Or not.#\\boxed{7}", correct=False)
    wrong = method.edit(incorrect, READER)
    assert wrong.response_ids == incorrect.response_ids
    # At `</think>`: 1 - 12/32.0001 for the cut one, index 12; -1 for the silent one, index 15;
    # nothing if wrong.
    term = method.token_advantages(batch([cut, silent, wrong]))
    expected = torch.zeros_like(term)
    expected[0, 0, 12] = 1 - 12 / 32.0001
    expected[0, 1, 15] = -1
    torch.testing.assert_close(term, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("thought", "kept"),
    [
        ("x = 42\nmore", "x = 42\n"),
        ("142 and 42.5 are not it", ""),
        ("Is 42 it? Yes.", "Is 42 it?"),
    ],
)
def test_the_first_right_answer(thought, kept):
    ids = [ord(c) for c in thought]
    assert first_right_answer(ids, "$42$", READER) == len(kept)


def test_decs():
    # L_max 10. 6 tokens, 3 and 4 redundant: 1 + .1 (1 - 6/10) = 1.04 there, else 1.1; 3 tokens: 1.1
    # everywhere. Mean 1.07, sd .0424 at these tokens: -.7071 and .7071, 0 elsewhere.
    method = objective("decs", max_length=10)
    long = rollout(" 4\nxy#", answer="4")  # the thought's first sentence ends behind 3 tokens
    short = rollout("4.#", answer="4")
    (term,) = method.token_advantages(batch([long, short]))
    assert_rows(term, [[0, 0, 0, -0.7071, -0.7071, 0], [0, 0, 0, 0.7071, 0.7071, 0]], 1e-4)
    # Nothing names the answer: nothing is redundant.
    (term,) = method.token_advantages(batch([rollout(" 5\nxy#", answer="4"), short]))
    assert not term.any()

"""An extractor of one's own that errs: one line names the flag, the function, what it returned and what it may."""

import sys
from types import ModuleType

import numpy as np
import pytest
from support.objectives import READER, batch, objective, rollout

from openrlhf_swap.errors import ConfigError, ObjectiveError

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
    return method.edit(response, READER) if method.name == "lc_r1" else method.token_advantages(batch([response] * 2))


WRONG = {
    "too many": (lambda ids, *_: len(ids) + 1, "returned 21"),
    "negative": (lambda *_: -1, "returned -1"),
    "nothing": (lambda *_: None, "returned None"),
    "not a number": (lambda *_: float("nan"), "returned nan"),
    "the tokens": (lambda ids, *_: list(ids[:2]), "returned [115, 111]"),
    "the text": (lambda ids, answer, reader: reader.text(ids[:2]), "returned 'so'"),
}


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("case", WRONG)
def test_what_it_may_not_return(with_extractor, name, case):
    function, found = WRONG[case]
    with pytest.raises(ObjectiveError) as error:
        use(with_extractor(name, function))
    assert str(error.value) == (
        f"--swap.{name}.extractor is 'mine:cut', which {found}; expected tokens from 0 to 20: fix the function"
    )


@pytest.mark.parametrize("name", OBJECTIVES)
def test_what_is_no_function_is_refused_before_the_start(with_extractor, name):
    with pytest.raises(ConfigError) as error:
        with_extractor(name, 7)
    assert str(error.value) == f"--swap.{name}.extractor is 'mine:cut', which is not a function; use module:function"


@pytest.mark.parametrize("kept", [0, 12, 20, np.int64(12)])
def test_what_it_may_return(with_extractor, kept):
    cut = with_extractor("lc_r1", lambda *_: kept).edit(RESPONSE, READER)
    text = "so it is 42. Or not?"
    assert READER.text(cut.response_ids) == text[: kept or None] + "</think>\\boxed{42}"
    assert cut.metadata["lc_r1_kept"] == kept and type(cut.metadata["lc_r1_kept"]) is float


def test_it_is_asked_about_correct_responses_only(with_extractor):
    wrong = rollout("so it is 7. Or not?#\\boxed{7}", correct=False)
    for name in OBJECTIVES:
        use(with_extractor(name, lambda *_: pytest.fail("asked")), wrong)

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_swap import segment_steps
from openrlhf_swap.algorithm.steps import segment_at_newlines


def reference(is_newline, step_tokens, max_steps, patience=2):
    """Token by token, as the rule is worded."""
    total = len(is_newline)
    size = max(step_tokens, math.ceil(total / max_steps))
    ends = []
    taken = 0
    for token in range(total):
        taken += 1
        last = token == total - 1
        if last or (taken >= size and is_newline[token]) or taken == patience * size:
            ends.append(token)
            taken = 0
    return ends


@given(st.lists(st.booleans(), max_size=300), st.integers(1, 40), st.integers(1, 30))
def test_agrees_with_a_token_by_token_reference(is_newline, step_tokens, max_steps):
    given = (is_newline, step_tokens, max_steps)
    ends = segment_steps(*given)
    assert ends == reference(*given)
    assert len(ends) <= max_steps


@given(st.lists(st.booleans(), max_size=300), st.integers(1, 40), st.integers(1, 30))
def test_only_a_step_without_a_newline_is_cut_elsewhere(is_newline, step_tokens, max_steps):
    newlines = [place for place, flag in enumerate(is_newline) if flag]
    total = len(is_newline)
    ends = segment_at_newlines(newlines, total, step_tokens, max_steps, cut=min)
    assert len(ends) <= max_steps
    size = max(step_tokens, math.ceil(total / max_steps))
    start = 0
    for end in ends:
        left = is_newline[start:]
        known = segment_steps(left, size, max_steps)[0] + start
        has_newline = any(is_newline[start + size - 1 : start + 2 * size])
        is_last = total - start <= 2 * size
        assert end == (known if has_newline or is_last else start + size - 1)
        start = end + 1
    assert start == total


N = True
CASES = [
    # The first boundary would be token 2; the next newline is token 4. Then token 7 is one itself.
    ([0, N, 0, 0, N, 0, 0, N, 0], 3, 25, [4, 7, 8]),
    ([0] * 10, 3, 25, [5, 9]),  # without a newline, twice M
    ([N] * 100, 10, 4, [24, 49, 74, 99]),  # K would be exceeded: M becomes 25
    ([], 350, 25, []),
]


@pytest.mark.parametrize(("flags", "step_tokens", "max_steps", "ends"), CASES)
def test_by_hand(flags, step_tokens, max_steps, ends):
    assert segment_steps(flags, step_tokens, max_steps) == ends


def test_flags_of_any_kind_are_cut_alike():
    flags = [False, False, True, False, True, False, False, True]
    known = segment_steps(flags, 3, 5)
    assert segment_steps(tuple(flags), 3, 5) == known
    assert segment_steps(list(map(int, flags)), 3, 5) == known
    assert segment_steps(np.array(flags), 3, 5) == known
    assert segment_steps(torch.tensor(flags), 3, 5) == known
    assert segment_steps(torch.tensor(flags), torch.tensor(3), np.int64(5)) == known


@pytest.mark.parametrize("flags", ["abc", [0.5], torch.tensor([[True]]), [7], None])
def test_other_flags_and_sizes_below_one_are_refused(flags):
    with pytest.raises(ValueError, match="is_newline"):
        segment_steps(flags, 3, 5)
    with pytest.raises(ValueError, match="must be at least 1"):
        segment_steps([True], 0, 25)
    with pytest.raises(ValueError, match="must be at least 1"):
        segment_steps([True], 350, 0)

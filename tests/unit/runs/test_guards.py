"""What is watched during a run."""

import pytest

from openrlhf_swap.errors import NonFiniteError
from openrlhf_swap.runs.guards import CollapseWatch, SkippedSteps


def test_only_skipped_steps_in_a_row_end_a_run():
    skipped = SkippedSteps(limit=3)
    for reason in ("nan", "nan", None, "nan", "nan"):
        skipped.observe(reason)
    assert skipped.total == 4
    with pytest.raises(
        NonFiniteError, match=r"3 steps in a row were skipped, the last one because inf: .*--actor.adam.lr"
    ):
        skipped.observe("inf")


def test_accuracy_that_falls_in_is_told_once_until_it_recovers():
    watch = CollapseWatch(window=2)
    told = [watch.observe(accuracy, 100.0) for accuracy in (0.8, 0.6, 0.7, 0.5, 0.1, 0.2, 0.1, 0.9, 0.9, 0.0, 0.1)]
    # The measure is (0.8 + 0.6) / 2 = 0.7. Means of two: 0.6, 0.3 (below 0.35), 0.15, 0.15, 0.5, 0.9, 0.45, 0.05.
    assert [bool(warnings) for warnings in told] == [False] * 4 + [True] + [False] * 5 + [True]
    assert told[4] == [
        "accuracy fell from 70.0% in the first 2 steps to 30.0% in the last 2: look at rollouts/ and consider a lower "
        "--swap.process_weight"
    ]


def test_a_resumed_run_compares_with_the_same_start():
    whole, first, second = CollapseWatch(window=2), CollapseWatch(window=2), CollapseWatch(window=2)
    accuracies = (0.8, 0.8, 0.7, 0.1, 0.1)
    for accuracy in accuracies[:3]:
        first.observe(accuracy, 100.0)
    second.load_state_dict(first.state_dict())
    told = [whole.observe(accuracy, 100.0) for accuracy in accuracies][3:]
    assert [second.observe(accuracy, 100.0) for accuracy in accuracies[3:]] == told
    assert any(told)


def test_shortening_is_no_collapse_but_vanishing_is():
    watch = CollapseWatch(window=1)
    assert watch.observe(1.0, 1000.0) == []
    assert watch.observe(1.0, 150.0) == []
    (warning,) = watch.observe(1.0, 99.0)
    assert warning.startswith("response length fell from 1000 tokens in the first 1 steps to 99 tokens")


def test_a_run_that_ends_with_a_skipped_step_delivers_nothing():
    guard = SkippedSteps(5)
    guard.observe("a loss was not finite")
    guard.observe(None)
    guard.end()
    guard.observe("a loss was not finite")
    with pytest.raises(NonFiniteError, match=r"ended with 1 skipped steps, and its policy was not exported: .*--a"):
        guard.end()

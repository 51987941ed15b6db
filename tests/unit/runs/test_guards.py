"""What is monitored during a run."""

import pytest

from openrlhf_swap.errors import NonFiniteError
from openrlhf_swap.runs.guards import CollapseGuard, SkippedSteps


def test_only_skipped_steps_in_a_row_end_a_run():
    skipped = SkippedSteps(limit=3)
    for reason in ("nan", "nan", None, "nan", "nan"):
        skipped.observe(reason)
    assert skipped.total == 4
    with pytest.raises(
        NonFiniteError, match=r"3 steps in a row were skipped, the last one because inf: .*--actor.adam.lr"
    ):
        skipped.observe("inf")


def below_the_start(watch, accuracy):
    """The warnings of a step that compare it with the start of the run."""
    return [warning for warning in watch.observe(accuracy, 100.0) if "look at rollouts/" in warning]


def sudden(watch, accuracy):
    """Those that compare it with the steps before it."""
    return [warning for warning in watch.observe(accuracy, 100.0) if "if it does not come back" in warning]


def test_accuracy_that_falls_in_is_reported_once_until_it_recovers():
    watch = CollapseGuard(window=2)
    reported = [
        below_the_start(watch, accuracy) for accuracy in (0.8, 0.6, 0.7, 0.5, 0.1, 0.2, 0.1, 0.9, 0.9, 0.0, 0.1)
    ]
    # The measure is (0.8 + 0.6) / 2 = 0.7. Means of two: 0.6, 0.3 (below 0.35), 0.15, 0.15, 0.5, 0.9, 0.45, 0.05.
    assert [bool(warnings) for warnings in reported] == [False] * 4 + [True] + [False] * 5 + [True]
    assert reported[4] == [
        "accuracy fell from 70.0% in the first 2 steps to 30.0% in the last 2: look at rollouts/ and consider a lower "
        "--swap.process_weight"
    ]


def test_a_resumed_run_compares_with_the_same_start():
    whole, first, second = CollapseGuard(window=2), CollapseGuard(window=2), CollapseGuard(window=2)
    accuracies = (0.8, 0.8, 0.7, 0.1, 0.1)
    for accuracy in accuracies[:3]:
        first.observe(accuracy, 100.0)
    second.load_state_dict(first.state_dict())
    reported = [whole.observe(accuracy, 100.0) for accuracy in accuracies][3:]
    assert [second.observe(accuracy, 100.0) for accuracy in accuracies[3:]] == reported
    assert any(reported)


def test_shortening_is_no_collapse_but_vanishing_is():
    watch = CollapseGuard(window=1)
    assert watch.observe(1.0, 1000.0) == []
    assert watch.observe(1.0, 150.0) == []
    (warning,) = watch.observe(1.0, 99.0)
    assert warning.startswith("response length fell from 1000 tokens in the first 1 steps to 99 tokens")


# Share of correct responses in three trainings on the embedded task: one fell at its 24th step, one only at its 18th
# and by little more than its batches differ, one not at all.
FELL = [0.898, 0.797, 0.852, 0.852, 0.875, 0.891, 0.805, 0.875, 0.766, 0.945, 0.93, 0.914, 0.938, 0.883, 0.906, 0.844]
FELL += [0.906, 0.938, 0.875, 0.93, 0.961, 0.953, 0.938, 0.789, 0.578, 0.453, 0.672, 0.906, 0.781, 0.922]
FELL_FOR_A_STEP = [0.945, 0.93, 0.906, 0.945, 0.969, 0.938, 0.969, 0.867, 0.961, 0.852, 0.969, 0.977, 0.984, 0.969]
FELL_FOR_A_STEP += [0.93, 0.961, 0.961, 0.672, 0.891, 0.984, 0.984, 0.953]
CALM = [0.828, 0.867, 0.891, 0.883, 0.945, 0.883, 0.914, 0.883, 0.867, 0.898, 0.914, 0.961, 0.891, 0.922, 0.875, 0.938]
CALM += [0.938, 0.93, 0.961, 0.992, 0.953, 0.898, 0.984, 0.953, 0.969, 0.977, 0.977, 0.953, 0.992, 0.891, 0.961, 0.953]


@pytest.mark.parametrize(("accuracies", "reported_at"), [(FELL, [25]), (FELL_FOR_A_STEP, []), (CALM, [])])
def test_a_fall_is_reported_once_within_three_steps(accuracies, reported_at):
    watch = CollapseGuard()
    assert [step for step, accuracy in enumerate(accuracies, 1) if sudden(watch, accuracy)] == reported_at


def test_what_a_fall_is():
    # Worked by hand: before it mean 0.8, deviation 0.1, so four standard errors of three steps are 0.231.
    noisy, steady = (0.7, 0.9, 0.7, 0.9, 0.8), (0.8,) * 5
    for before, recent, fell in (
        (noisy, (0.6, 0.6, 0.55), False),  # down by 0.217
        (noisy, (0.6, 0.6, 0.5), True),  # down by 0.233
        (steady, (0.7, 0.71, 0.7), False),  # down by 0.097: too little to matter
        (steady, (0.69, 0.69, 0.7), True),
        (steady[1:], (0.1, 0.1, 0.1), False),  # four steps are too few to compare with
    ):
        watch = CollapseGuard()
        reported = [sudden(watch, accuracy) for accuracy in (*before, *recent)]
        assert not any(reported[:-1]) and bool(reported[-1]) == fell


def test_a_resumed_run_remembers_the_fall():
    whole, first, second = CollapseGuard(), CollapseGuard(), CollapseGuard()
    for accuracy in FELL[:26]:
        first.observe(accuracy, 100.0)
        whole.observe(accuracy, 100.0)
    second.load_state_dict(first.state_dict())
    rest = FELL[26:] + [0.9] * 10 + [0.2]
    reported = [sudden(whole, accuracy) for accuracy in rest]
    assert [sudden(second, accuracy) for accuracy in rest] == reported
    assert reported[-1] == [
        "accuracy fell from 89.0% to 66.7% within 3 steps: if it does not come back, stop, go back to a checkpoint "
        "and lower --actor.adam.lr"
    ]


@pytest.mark.parametrize("killed_after", [3, 12, 20, 26, 34])
def test_a_resumed_run_warns_as_a_calm_one(killed_after):
    accuracies = FELL + [0.3] * 12 + [0.9] * 12
    whole, first, second = CollapseGuard(), CollapseGuard(), CollapseGuard()
    reported = [whole.observe(accuracy, 100.0) for accuracy in accuracies]
    for accuracy in accuracies[:killed_after]:
        first.observe(accuracy, 100.0)
    second.load_state_dict(first.state_dict())
    assert [second.observe(accuracy, 100.0) for accuracy in accuracies[killed_after:]] == reported[killed_after:]
    assert sum(map(len, reported)) == 3  # it fell twice at once, and once far below the start


def test_a_run_that_ends_with_a_skipped_step_delivers_nothing():
    guard = SkippedSteps(5)
    guard.observe("a loss was not finite")
    guard.observe(None)
    guard.end()
    guard.observe("a loss was not finite")
    with pytest.raises(NonFiniteError, match=r"ended with 1 skipped steps, and its policy was not exported: .*--a"):
        guard.end()

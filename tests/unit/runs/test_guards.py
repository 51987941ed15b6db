"""What is monitored during a run."""

import math

import pytest

from openrlhf_swap.config import SwapConfig
from openrlhf_swap.errors import NonFiniteError, RunError
from openrlhf_swap.objectives.registry import penalty_temperature
from openrlhf_swap.runs.guards import (
    Guards,
    SkippedSteps,
    check_process_term,
    find_falls,
    find_uniform_weights,
    first_step_warnings,
)


def test_only_skipped_steps_in_a_row_end_a_run():
    skipped = SkippedSteps(limit=3)
    for reason in ("nan", "nan", None, "nan", "nan"):
        skipped.observe(reason)
    assert skipped.total == 4
    with pytest.raises(
        NonFiniteError, match=r"3 steps in a row were skipped, the last one because inf: .*--actor.adam.lr"
    ):
        skipped.observe("inf")


def test_a_run_that_ends_with_a_skipped_step_delivers_nothing():
    guard = SkippedSteps(5)
    guard.observe("a loss was not finite")
    guard.observe(None)
    guard.end()
    guard.observe("a loss was not finite")
    with pytest.raises(NonFiniteError, match=r"ended with 1 skipped steps, and its policy was not exported: .*--a"):
        guard.end()


def falls(accuracies, words, lengths=None, **options):
    """Of each step, the warnings that have these words."""
    rows = zip(accuracies, lengths or [100.0] * len(accuracies), strict=True)
    history = [{"swap/accuracy": accuracy, "length/mean": length} for accuracy, length in rows]
    steps = [find_falls(history[: step + 1], **options) for step in range(len(history))]
    return [[warning for warning in warnings if words in warning] for warnings in steps]


BELOW_THE_START, SUDDEN = "look at rollouts/", "if it does not come back"


def test_accuracy_that_falls_in_is_reported_once_until_it_recovers():
    accuracies = (0.8, 0.6, 0.7, 0.5, 0.1, 0.2, 0.1, 0.9, 0.9, 0.0, 0.1)
    reported = falls(accuracies, BELOW_THE_START, window=2)
    # The measure is (0.8 + 0.6) / 2 = 0.7. Means of two: 0.6, 0.3 (below 0.35), 0.15, 0.15, 0.5, 0.9, 0.45, 0.05.
    assert [bool(warnings) for warnings in reported] == [False] * 4 + [True] + [False] * 5 + [True]
    assert reported[4] == [
        "accuracy fell from 70.0% in the first 2 steps to 30.0% in the last 2: look at rollouts/ and consider a lower "
        "--swap.process_weight"
    ]


def test_shortening_is_no_collapse_but_vanishing_is():
    first, second, (warning,) = falls([1.0] * 3, "", lengths=[1000.0, 150.0, 99.0], window=1)
    assert first == second == []
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
    assert [step for step, warnings in enumerate(falls(accuracies, SUDDEN), 1) if warnings] == reported_at


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
        reported = falls((*before, *recent), SUDDEN)
        assert not any(reported[:-1]) and bool(reported[-1]) == fell


def test_a_second_fall_is_reported_again():
    assert falls(FELL + [0.9] * 10 + [0.2], SUDDEN)[-1] == [
        "accuracy fell from 89.0% to 66.7% within 3 steps: if it does not come back, stop, go back to a checkpoint "
        "and lower --actor.adam.lr"
    ]


@pytest.mark.parametrize("killed_after", [3, 12, 20, 26, 34])
def test_a_resumed_run_warns_as_a_calm_one(killed_after):
    accuracies = FELL + [0.3] * 12 + [0.9] * 12
    rows = [
        {"swap/accuracy": accuracy, "length/mean": 100.0, "swap/adv_process_absmean": 1.0, "other": 1.0}
        for accuracy in accuracies
    ]
    whole, first, second = (Guards(tau=None, self_test_steps=0) for _ in range(3))
    reported = [whole.observe(step, row) for step, row in enumerate(rows, 1)]
    for step, row in enumerate(rows[:killed_after], 1):
        first.observe(step, row)
    second.history = first.history
    resumed = [second.observe(step, row) for step, row in enumerate(rows[killed_after:], killed_after + 1)]
    assert resumed == reported[killed_after:]
    assert sum(map(len, reported)) == 3  # it fell twice at once, and once far below the start
    assert reported[24][0].startswith("warning at step 25: accuracy fell from ")


@pytest.mark.parametrize(
    ("metrics", "reason"),
    [
        ({"swap/accuracy": 0.0}, "no rollout was graded correct"),
        ({"swap/accuracy": 0.5}, "have no reasoning; check the chat template"),
        ({"swap/accuracy": 0.5, "swap/steps_per_rollout": 1.0}, "has the same gain"),
    ],
)
def test_an_inert_run_is_stopped_with_the_reason(metrics, reason):
    check_process_term([metrics], 2)
    with pytest.raises(RunError, match=rf"in the first 2 steps: .*{reason}"):
        check_process_term([metrics] * 2, 2)


def test_a_run_that_works_passes_the_self_test():
    guards, scores = Guards(None, 2), {"swap/answer_logprob_first": -3.3, "swap/answer_logprob_last": -1.2}
    for step, process in enumerate((0.0, 0.1, 0.0, 0.0), start=2):
        metrics = {"swap/accuracy": 0.5, "length/mean": 9.0, "swap/adv_process_absmean": process}
        assert guards.observe(step, {**metrics, **(scores if process else {})}) == []
    check_process_term([], 0)


@pytest.mark.parametrize(
    ("first", "last", "means_something"),
    [
        (-1.76, -0.001, True),  # the embedded policy after its own template
        (-3.33, -1.24, True),  # SmolLM2-135M after R1's
        (-0.2, -0.3, True),  # a model that knows the answers beforehand
        (-8.60, -9.09, False),  # the embedded policy after "foo"
        (-5.64, -5.27, False),  # SmolLM2-135M after "foo"
        (-1.1, -1.2, False),
    ],
)
def test_a_close_template_without_a_meaning_ends_the_run(first, last, means_something):
    metrics = {"swap/adv_process_absmean": 0.1, "swap/answer_logprob_first": first, "swap/answer_logprob_last": last}
    history = [{"swap/accuracy": 0.0}, metrics]  # in the first step nothing was scored
    if means_something:
        check_process_term(history, 2)
        return
    with pytest.raises(RunError, match=r"--swap.close_template means nothing to the model: .*self_test_steps 0"):
        check_process_term(history, 2)


def test_what_most_responses_lack_is_reported_at_the_first_step():
    assert first_step_warnings({"rollout/truncated_rate": 0.5, "swap/grader_no_answer": 0.2}) == []
    shares = {"rollout/truncated_rate": 0.9, "swap/grader_no_answer": 0.6, "swap/thought_unclosed_frac": 1.0}
    cut_off, silent, unclosed = first_step_warnings(shares)
    assert cut_off.startswith("90% of the responses were cut off at --rollout.max_new_tokens: raise it")
    assert silent.startswith("60% of the responses state no answer")
    assert unclosed.startswith("100% of the responses do not close their thought")


def test_a_grader_that_fails_is_reported_at_the_first_step():
    (some,) = first_step_warnings({"swap/grader_error": 0.7})
    assert some.startswith("70% of the responses could not be graded")
    with pytest.raises(RunError, match=r"failed on every response of the first step.*correct --swap.grader"):
        first_step_warnings({"swap/grader_error": 1.0})


def test_one_step_a_response_is_reported_at_the_first_step():
    metrics = {"swap/answer_logprob_first": -1.0, "length/mean": 96.0, "swap/steps_per_rollout": 4.0}
    assert first_step_warnings(metrics) == []
    (text,) = first_step_warnings({**metrics, "swap/steps_per_rollout": 1.0})
    assert "have 1.0 steps each" in text and "use --swap.steps tokens and --swap.step_tokens 10 at most" in text


def test_scores_between_0_and_1_are_reported_at_the_first_step():
    assert first_step_warnings({"score": 0.5, "swap/graded_correct": 0.5}) == []
    (text,) = first_step_warnings({"score": 0.6, "swap/graded_correct": 0.5})
    assert text.startswith("the grader's scores are not all 0 or 1")


def test_a_run_with_uniform_weights_says_so_once():
    even = {"swap/weights_from_uniform": 0.01, "swap/local_gain_std": 0.034}

    def notes_of(steps):
        return [note for number in range(len(steps)) for note in find_uniform_weights(steps[: number + 1], 1.0)]

    notes = notes_of([{}, *[even] * 9, {}])
    assert notes == [
        "the penalty's weights are nearly uniform: only 1.0% of the penalty falls on other steps than uniform weights "
        "would choose. Local gains have a standard deviation of 0.034 nats, and --swap.tau is 1.0; with 0.5sd "
        "the weights would follow the gains"
    ]
    selective = {**even, "swap/weights_from_uniform": 0.3}
    assert notes_of([selective] * 9 + [even] * 9) == []  # the first steps decide


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, 1.0),
        ({"tau": "0.5sd"}, "0.5sd"),
        ({"objective": "step_only"}, 1.0),
        ({"tau": math.inf}, None),
        ({"objective": "uniform_penalty"}, None),
        ({"objective": "no_penalty"}, None),
        ({"objective": "grpo"}, None),
        ({"process_weight": 0.0}, None),
        ({"objective": "kimi"}, None),
    ],
)
def test_only_a_penalty_that_could_choose_is_looked_at(settings, expected):
    assert penalty_temperature(SwapConfig(**settings)) == expected
    history = [{"swap/weights_from_uniform": 0.0, "swap/local_gain_std": 0.0}] * 5
    assert bool(find_uniform_weights(history, expected)) == (expected is not None)

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
    find_uniform_weights,
    first_step_warnings,
)


def test_only_skipped_steps_in_a_row_end_a_run():
    skipped = SkippedSteps(limit=3)
    for reason in ("nan", "nan", None, "nan", "nan"):
        skipped.observe(reason)
    assert skipped.total == 4
    with pytest.raises(
        NonFiniteError,
        match=r"3 steps in a row were skipped, the last one because inf: .*--actor.adam.lr",
    ):
        skipped.observe("inf")


def test_a_run_that_ends_with_a_skipped_step_delivers_nothing():
    guard = SkippedSteps(5)
    guard.observe("a loss was not finite")
    guard.observe(None)
    guard.end()
    guard.observe("a loss was not finite")
    with pytest.raises(
        NonFiniteError, match=r"ended with 1 skipped steps, and its policy was not exported: .*--a"
    ):
        guard.end()


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
    guards, scores = (
        Guards(None, 2),
        {"swap/answer_logprob_first": -3.3, "swap/answer_logprob_last": -1.2},
    )
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
    metrics = {
        "swap/adv_process_absmean": 0.1,
        "swap/answer_logprob_first": first,
        "swap/answer_logprob_last": last,
    }
    history = [{"swap/accuracy": 0.0}, metrics]  # in the first step nothing was scored
    if means_something:
        check_process_term(history, 2)
        return
    with pytest.raises(
        RunError, match=r"--swap.close_template means nothing to the model: .*self_test_steps 0"
    ):
        check_process_term(history, 2)


STEPS = {"swap/answer_logprob_first": -1.0, "length/mean": 96.0}


@pytest.mark.parametrize(
    ("good", "bad", "warnings"),
    [
        (
            {"rollout/truncated_rate": 0.5, "swap/grader_no_answer": 0.2},
            {
                "rollout/truncated_rate": 0.9,
                "swap/grader_no_answer": 0.6,
                "swap/thought_unclosed_frac": 1.0,
            },
            [
                "90% of the responses were cut off at --rollout.max_new_tokens: raise it",
                "60% of the responses state no answer",
                "100% of the responses do not close their thought",
            ],
        ),
        ({"swap/accuracy": 0.01}, {"swap/accuracy": 0.0}, ["no response is correct"]),
        ({}, {"swap/grader_error": 0.7}, ["70% of the responses could not be graded"]),
        (
            {**STEPS, "swap/steps_per_rollout": 4.0},
            {**STEPS, "swap/steps_per_rollout": 1.0},
            [
                "the correct responses have 1.0 steps each, too few to choose from; with 96 tokens a response use "
                "--swap.steps tokens and --swap.step_tokens 10 at most"
            ],
        ),
        (
            {"score": 0.5, "swap/graded_correct": 0.5},
            {"score": 0.6, "swap/graded_correct": 0.5},
            ["the grader's scores are not all 0 or 1"],
        ),
    ],
)
def test_what_the_first_step_lacks_is_reported(good, bad, warnings):
    assert first_step_warnings(good) == []
    for found, start in zip(first_step_warnings(bad), warnings, strict=True):
        assert found.startswith(start)


def test_a_grader_that_fails_on_every_response_ends_the_run():
    with pytest.raises(
        RunError, match=r"failed on every response of the first step.*correct --swap.grader"
    ):
        first_step_warnings({"swap/grader_error": 1.0})


def test_a_run_with_uniform_weights_says_so_once():
    even = {"swap/weights_from_uniform": 0.01, "swap/local_gain_std": 0.034}

    def notes_of(steps):
        return [
            note
            for number in range(len(steps))
            for note in find_uniform_weights(steps[: number + 1], 1.0)
        ]

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

"""What is monitored during a run."""

import math

import pytest

from openrlhf_swap.algorithm.coefficients import Tau
from openrlhf_swap.config import SwapConfig
from openrlhf_swap.errors import NonFiniteError, RunError
from openrlhf_swap.objectives.registry import penalty_temperature
from openrlhf_swap.runs.guards import (
    Guards,
    SkippedSteps,
    check_process_term,
    find_lost_accuracy,
    find_uniform_weights,
)
from openrlhf_swap.runs.metrics import step_line


def test_only_skipped_steps_in_a_row_end_a_run():
    """And one that ends with a skipped step delivers nothing."""
    skipped = SkippedSteps(limit=3)
    for reason in ("nan", "nan", None, "nan"):
        skipped.observe(reason)
    assert skipped.total == 3
    with pytest.raises(NonFiniteError, match=r"ended with 1 skipped steps, .* not exported: .*--a"):
        skipped.end()
    skipped.observe("nan")
    with pytest.raises(NonFiniteError, match=r"3 steps in a row were skipped, .* because inf: .*"):
        skipped.observe("inf")
    skipped.observe(None)
    skipped.end()


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


@pytest.mark.parametrize(
    ("settings", "reasoning", "steps", "single", "advice"),
    [
        (
            {"step_tokens": 350},
            230.0,
            1.0,
            0.974,
            "warning at step 1: responses reason for 230 tokens, so --swap.step_tokens 350 leaves "
            "1 step (97% of them have only one, so that SWAP cannot choose between steps); "
            "--swap.step_tokens 30 makes about 8",
        ),
        ({"step_tokens": 50}, 90.0, 3.0, 0.0, "--swap.step_tokens 11 makes about 8"),
        ({"step_tokens": 30}, 230.0, 5.7, 0.0, None),
        ({"step_tokens": 50}, 230.0, 5.7, 0.5, None),
        # A few long responses have many steps, and most have one.
        ({"step_tokens": 50}, 230.0, 5.7, 0.6, "--swap.step_tokens 30 makes about 8"),
        ({"step_tokens": 8}, 60.0, 5.0, 0.0, None),
        ({"steps": "turns"}, 230.0, 1.0, 1.0, "use --swap.steps tokens and --swap.step_tokens 30"),
        ({"steps": "turns"}, 230.0, 2.0, 0.0, None),
        ({"step_tokens": 350}, None, 0.0, None, None),  # an objective without steps
    ],
)
def test_the_first_step_says_which_step_length_fits(settings, reasoning, steps, single, advice):
    metrics = {"swap/accuracy": 0.5, "score": 0.5, "swap/steps_per_rollout": steps}
    if reasoning is not None:
        metrics |= {"length/reasoning": reasoning, "swap/one_step_frac": single}
    lines = Guards(SwapConfig(**settings), None, 0).observe(1, metrics)
    assert len(lines) == (advice is not None)
    assert "".join(lines).endswith(advice or "")


def test_where_nothing_is_graded_no_response_needs_to_be_correct():
    metrics = {"swap/accuracy": 0.0, "swap/graded_correct": 0.0, "score": 0.0}
    (line,) = Guards(SwapConfig(), None, 0).observe(1, metrics)
    assert "no response is correct" in line
    metrics["swap/ungraded"] = 1.0
    assert Guards(SwapConfig(), None, 0).observe(1, metrics) == []
    assert step_line(1, 3, metrics).startswith("step 1/3: accuracy -, ")


def test_a_loss_of_half_of_the_accuracy_is_said_once():
    guards = Guards(SwapConfig(), None, 0)
    said = []
    for step, accuracy in enumerate((0.38, 0.1, 0.3, 0.02, 0.0, 0.01), start=1):
        lines = guards.observe(step, {"swap/accuracy": accuracy, "score": accuracy})
        said.append(len(lines))
    assert said == [0, 0, 0, 0, 1, 0]
    assert find_lost_accuracy([{"swap/accuracy": 0.05}, *[{"swap/accuracy": 0.0}] * 2]) == []


def test_loops_in_two_steps_in_a_row_are_said_once():
    guards = Guards(SwapConfig(), None, 0)
    said = []
    for step, rate in enumerate((0.2, 0.0, 0.3, 0.2, 0.5), start=1):
        lines = guards.observe(step, {"rollout/looping_rate": rate, "score": 0.5})
        said.append([line for line in lines if "responses loop" in line])
    assert [len(lines) for lines in said] == [0, 0, 0, 1, 0]
    assert said[3][0].startswith("warning at step 4: 20% of the responses loop, ")


def test_shortening_that_costs_accuracy_is_said_once():
    guards = Guards(SwapConfig(), None, 0)
    said = []
    for step in range(1, 25):
        correlation = -0.5 if step <= 10 else 0.5
        lines = guards.observe(step, {"length/correctness_correlation": correlation, "score": 0.5})
        said += [step for line in lines if "so shortening further costs accuracy" in line]
    # In steps 9 to 18 the mean is .3 with an error of .13; in steps 8 to 17 it was .2 with .15.
    assert said == [18]


def test_correlations_of_a_few_wrong_responses_are_no_cost_of_shortening():
    """Of a run that ended well: in the ninth step one group alone had a wrong response."""
    seen = [-0.04, 0.21, 0.09, -0.06, 0.35, -0.06, -0.26, 0.18, 1.0, 0.0]  # mean .14, error .11
    guards = Guards(SwapConfig(), None, 0)
    for step, correlation in enumerate(seen, start=1):
        metrics = {"length/correctness_correlation": correlation, "score": 0.5}
        assert guards.observe(step, metrics) == []


def test_a_run_that_works_passes_the_self_test():
    guards = Guards(SwapConfig(), None, 2)
    scores = {"swap/answer_logprob_first": -3.3, "swap/answer_logprob_last": -1.2}
    for step, process in enumerate((0.0, 0.1, 0.0, 0.0), start=2):
        metrics = {"swap/accuracy": 0.5, "length/mean": 9.0, "swap/adv_process_absmean": process}
        if process:
            metrics |= scores
        assert guards.observe(step, metrics) == []
    check_process_term([], 0)


@pytest.mark.parametrize(
    ("first", "last", "means_something"),
    [
        (-1.76, -0.001, True),  # the quickstart's policy after its own template
        (-3.33, -1.24, True),  # SmolLM2-135M after R1's
        (-0.2, -0.3, True),  # a model that knows the answers beforehand
        (-8.60, -9.09, False),  # the quickstart's policy after "foo"
        (-1.1, -1.2, False),
    ],
)
def test_a_close_template_without_a_meaning_ends_the_run(first, last, means_something):
    metrics = {"swap/answer_logprob_first": first, "swap/answer_logprob_last": last}
    metrics["swap/adv_process_absmean"] = 0.1
    history = [{"swap/accuracy": 0.0}, metrics]  # in the first step nothing was scored
    if means_something:
        check_process_term(history, 2)
        return
    with pytest.raises(RunError, match=r"--swap\.close_template means nothing to the model: "):
        check_process_term(history, 2)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, Tau(1.0)),
        ({"tau": "0.5sd"}, Tau(0.5, in_deviations=True)),
        ({"tau": math.inf}, None),
        ({"objective": "uniform_penalty"}, None),
        ({"process_weight": 0.0}, None),
        ({"objective": "no_penalty"}, None),
        ({"objective": "no_penalty", "step_price": "weights"}, Tau(1.0)),
        ({"objective": "kimi"}, None),
    ],
)
def test_only_a_penalty_that_could_choose_is_looked_at(settings, expected):
    assert penalty_temperature(SwapConfig(**settings)) == expected
    history = [{"swap/weights_from_uniform": 0.0, "swap/local_gain_std": 0.0}] * 5
    assert bool(find_uniform_weights(history, expected)) == (expected is not None)

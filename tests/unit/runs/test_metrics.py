"""Metrics of a run: their values by hand, their files, and their names."""

import inspect
import math
import re
import statistics
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from support.loops import READER
from support.metric_names import meaning

from openrlhf_swap.algorithm.advantages import AdvantageTerms
from openrlhf_swap.algorithm.batch import StepTrace
from openrlhf_swap.algorithm.coefficients import Coefficients
from openrlhf_swap.algorithm.known import Known, known_in
from openrlhf_swap.files import read_rows
from openrlhf_swap.objectives.registry import OBJECTIVES, objective_class
from openrlhf_swap.rollouts.rollout import Batch, Rollout
from openrlhf_swap.runs.metrics import (
    StepClock,
    append_metrics,
    drop_metrics_after,
    first_step_lines,
    rollout_rows,
    set_aside_rollouts_after,
    step_metrics,
    write_rollouts,
)


def metrics_of(*groups, **settings):
    """The metrics of groups of traces, with made-up advantages of four tokens."""
    rollouts = [[rollout_of(trace) for trace in group] for group in groups]
    batch = Batch(rollouts, Coefficients(**settings), READER)
    flat = torch.tensor([1.0, -1.0, 0.0, 0.0])
    return step_metrics(batch, AdvantageTerms(flat, flat, 2 * flat), 0.3)


def rollout_of(trace):
    """A rollout of which the trace is made."""
    rollout = Rollout(
        prompt="?",
        answer="4",
        response_ids=range(trace.length),
        prompt_ids=[7],
        reward=float(trace.correct),
        step_ends=trace.step_ends,
    )
    if trace.answer_logprobs:
        rollout = rollout.with_signals(answer_logprobs=trace.answer_logprobs)
    return rollout.with_signals(**trace.signals)


def test_metrics_by_hand():
    group = [
        StepTrace(30, True, [-4.0, -3.0, -3.5], [9, 19]),  # Delta 1, 0; g 1, -.5
        StepTrace(10, True, [-4.0, -2.0], [5]),  # Delta 2; g 2
        StepTrace(50, False, [], []),
    ]
    metrics = metrics_of(group)
    assert metrics["swap/accuracy"] == pytest.approx(2 / 3)
    assert metrics["length/mean"] == 30
    assert metrics["length/correct"] == 20
    assert metrics["length/wrong"] == 50
    assert metrics["length/target"] == 20
    assert metrics["length/over_target_frac"] == 0.5
    assert metrics["length/correctness_correlation"] == pytest.approx(-math.sqrt(3) / 2)
    assert metrics["swap/penalty_mass"] == pytest.approx(0.25)  # (30-20)/20 and 0
    assert metrics["swap/steps_per_rollout"] == 1.5
    assert metrics["swap/one_step_frac"] == 0.5
    assert metrics["length/reasoning"] == 13  # of 20 and 6
    assert metrics["swap/gain_mean"] == pytest.approx(1.0)
    assert metrics["swap/gain_zero_frac"] == pytest.approx(1 / 3)
    assert metrics["swap/gain_high_frac"] == pytest.approx(2 / 3)
    assert metrics["swap/local_gain_mean"] == pytest.approx(2.5 / 3)
    assert metrics["swap/answer_logprob_first"] == -4
    assert metrics["swap/answer_logprob_last"] == pytest.approx((-3.5 - 2) / 2)
    assert metrics["swap/adv_process_absmean"] == 1.0
    assert metrics["swap/adv_negative_frac"] == 0.25
    # Of 10, 30 and 50 tokens, interpolated.
    quantiles = {"p10": 14, "p50": 30, "p90": 46, "max": 50, "std": 20}
    for name, value in quantiles.items():
        assert metrics[f"length/{name}"] == pytest.approx(value)


def test_weights_that_share_a_price_are_looked_at_without_a_penalty():
    trace = StepTrace(30, True, [-4.0, -3.0, -3.0 - math.log(3)], [9, 19])  # g 1 and -ln 3
    wrong = StepTrace(50, False, [], [])
    metrics = metrics_of([trace, wrong], length_coef=0.0)
    assert "swap/weights_from_uniform" not in metrics
    metrics = metrics_of([trace, wrong], length_coef=0.0, step_price="weights")
    # w_1/w_2 = exp(-1 - ln 3)
    assert metrics["swap/weights_from_uniform"] == pytest.approx(0.5 - 1 / (1 + 3 * math.e))


def test_what_is_needed_and_known_by_hand():
    half = math.log(0.5)
    needs = [2, 0, math.nan, 1]
    traces = [
        # Known after step 1, not after step 2, and again after step 3: 5 of 20 tokens follow.
        StepTrace(30, True, [-4, -0.1, -2, -0.1, -0.2], [4, 9, 14, 19], {"need": needs}),
        StepTrace(10, True, [-0.1, -0.1], [5], {"need": [-0.5]}),  # before the thought
        StepTrace(10, True, [-4, half], [5], {"need": [0.5]}),  # never
        StepTrace(50, False, [], []),
    ]
    alone = [known_in(trace.answer_logprobs, trace.step_ends) for trace in traces]
    assert alone == [
        Known(3, 5 / 20),
        Known(0, 1.0),
        Known(None, 0.0),
        None,
    ]
    assert known_in([math.nan, -0.1], [5]) is None
    metrics = metrics_of(traces)
    assert metrics["swap/known_after_frac"] == pytest.approx((5 / 20 + 1 + 0) / 3)
    assert metrics["swap/need_mean"] == pytest.approx(3 / 5)  # of the needs that were read
    assert metrics["swap/need_zero_frac"] == 2 / 5


def test_the_table_of_rollouts_has_the_signals_of_steps():
    plain = Rollout("?", "4", range(6), [7], 1.0, step_ends=(1, 3))
    scored = plain.with_signals(answer_logprobs=[-4.0, -0.1, -0.2], need=[1.5, math.nan])
    wrong = Rollout("?", "4", range(6), [7], 0.0, step_ends=(1, 3))
    batch = Batch([[scored, wrong]], Coefficients(step_reward="need"), READER)
    first, second = rollout_rows(batch, 1, READER)
    assert [step["need"] for step in first["steps"]] == [1.5, None]
    assert [step["gain"] for step in first["steps"]] == pytest.approx([3.9, 0])
    assert first["known_after_steps"] == 1
    assert second["steps"] == []
    measured = replace(wrong, signals={"entropy": torch.tensor([0.5, 0.25])})
    alone = Batch([[measured]], Coefficients(), READER)
    (row,) = rollout_rows(alone, 1, READER)
    assert row["steps"] == [
        {"text": "", "end": 1, "entropy": 0.5},
        {"text": "", "end": 3, "entropy": 0.25},
    ]


def test_what_a_step_costs_by_hand():
    group = [
        StepTrace(30, True, [-4.0, -3.0, -3.5], [9, 19]),
        StepTrace(10, True, [-4.0, -2.0], [5]),
        StepTrace(50, False, [], []),
        StepTrace(50, False, [], []),
    ]
    # P of the first is .5, its weights exp(-1) and exp(.5) over their sum: .182426 and .817574.
    rewards = [1 - 0.5 * 0.182426, -0.5 * 0.817574, 2]
    price = statistics.fmean(rewards) / statistics.stdev(rewards)
    quiet = [
        StepTrace(9, True, [-1.0, -0.99], [3]),
        StepTrace(9, True, [-1.0, -1.0], [3]),
        *group[2:],
    ]
    metrics = metrics_of(group, quiet, [group[2]] * 4, [group[3]] * 4)
    noise_price = 0.005 / (statistics.stdev([0.01, 0]) + 1e-6)
    assert metrics["swap/step_price"] == pytest.approx((price + noise_price) / 2, rel=1e-5)
    # Four responses: an incorrect one among correct ones is sqrt(4) deviations away from them.
    assert metrics["swap/step_break_even"] == pytest.approx(0.3 * metrics["swap/step_price"] / 2)
    assert metrics["swap/groups_of_noise_frac"] == 0.5  # of the two with correct responses
    assert metrics["swap/groups_without_excess_frac"] == 0.5


def test_a_batch_without_a_correct_response_has_finite_metrics():
    metrics = metrics_of([StepTrace(5, False, [], [])] * 2)
    assert metrics["swap/groups_no_correct_frac"] == 1
    assert "swap/gain_mean" not in metrics
    assert all(math.isfinite(value) for value in metrics.values())


def test_a_resumed_run_has_each_step_once(tmp_path, capsys):
    for step in (1, 2, 3):
        append_metrics(tmp_path, step, {"a": step})
    (tmp_path / "metrics.jsonl").open("a").write('{"a": 1}\n{"step": "text"}\n[1]\n7\n')
    drop_metrics_after(tmp_path, 1)  # the last checkpoint was the first step's
    assert "4 rows of" in capsys.readouterr().out
    append_metrics(tmp_path, 2, {"a": 20, "bad": math.nan, "text": "x"})
    assert list(read_rows(tmp_path / "metrics.jsonl")) == [
        {"step": 1, "a": 1.0},
        {"step": 2, "a": 20.0, "bad": None},
    ]
    drop_metrics_after(tmp_path, 0)
    assert not (tmp_path / "metrics.jsonl").exists()
    append_metrics(tmp_path, 1, {"a": 30})
    drop_metrics_after(tmp_path, 0)  # a third start
    before = read_rows(tmp_path / "metrics.before.jsonl")
    assert [row["a"] for row in before] == [1, 20, 30]


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objectives_metrics_are_declared(name):
    for kind in objective_class(name).__mro__[:-1]:
        for found in re.findall(r'"(swap/[^"]+)"', inspect.getsource(kind)):
            metric = re.sub(r"{(self\.)?name}", name, found).replace("{band}", "high")
            assert meaning(metric)


def test_tables_of_rollouts_of_an_earlier_start_are_set_aside(tmp_path):
    def write_and_resume(step):
        for number in (2, 9):
            write_rollouts(tmp_path, number, [{"step": number}])
        set_aside_rollouts_after(tmp_path, step)
        return sorted(table.name for table in (tmp_path / "rollouts").iterdir())

    for _ in range(2):
        assert write_and_resume(2) == ["step_000002.jsonl"]
        assert list(read_rows(tmp_path / "rollouts.repeated" / "step_000009.jsonl")) == [
            {"step": 9}
        ]
    for name in ("rollouts.before", "rollouts.before_2"):
        assert write_and_resume(0) == []
        assert (tmp_path / name / "step_000002.jsonl").exists()
    set_aside_rollouts_after(tmp_path, 0)
    assert not (tmp_path / "rollouts.before_3").exists()


def test_the_first_step_has_a_line_as_each_phase_begins(capsys):
    args = SimpleNamespace(
        rollout=SimpleNamespace(batch_size=8, n_samples_per_prompt=4),
        vllm=SimpleNamespace(num_engines=2),
        swap_run=SimpleNamespace(reuse_logprobs=False),
    )
    lines = first_step_lines(args)
    assert "make_experience" in lines
    args.swap_run.reuse_logprobs = True
    assert "make_experience" not in first_step_lines(args)
    said = []
    for _ in range(2):
        clock = StepClock(lines)
        with clock.phase("generation"):
            said.append(capsys.readouterr().out)
    assert said == ["[swap] first step: generating 32 responses to 8 prompts\n", ""]
    with clock.phase("broadcast"):
        assert capsys.readouterr().out.startswith(
            "[swap] first step: sending the weights to 2 vLLM"
        )
    assert {"timing/generation", "timing/broadcast", "timing/other"} < clock.metrics().keys()

"""What is checked about a training, from numbers made by hand and, of the scoring, on this machine's CPU."""

from itertools import pairwise

import pytest
import torch
from support.paths import POLICY

from openrlhf_swap.command import run_command
from openrlhf_swap.flags.swap import parse_swap_arguments
from openrlhf_swap.gpu_check.__main__ import main
from openrlhf_swap.gpu_check.findings import Findings
from openrlhf_swap.gpu_check.memory import GIB, check_memory, polled
from openrlhf_swap.gpu_check.scoring import check_scoring
from openrlhf_swap.gpu_check.training import CLOSE_TEMPLATE, STEPS, check_training, training_flags


def step(number, kl=1e-4, **seconds):
    return {"step": number, "policy/vllm_kl": kl, **{f"timing/{name}": value for name, value in seconds.items()}}


def test_a_resumed_training_with_equal_weights_passes(capsys):
    findings = Findings()
    check_training(findings, [step(1, score=9.0), step(2, -2e-4, score=1.0), step(3, score=2.0)])
    assert findings.report() == 0
    assert findings.rows == [
        ("steps, resumed after a kill", "[1, 2, 3]", "[1, 2, 3]"),
        ("vllm_kl", "2.0e-04", "< 1e-02"),
        ("seconds a step: score", "1.50", ""),  # the first step warms up
    ]
    assert capsys.readouterr().out.splitlines()[-1] == "[gpu_check] all is as it should be"


@pytest.mark.parametrize(
    ("metrics", "wrong"),
    [
        ([step(1), step(3)], "steps, resumed after a kill: [1, 3]; docs/use/faults.md"),
        ([step(1), step(2, -0.02), step(3)], "vllm_kl: 2.0e-02; vLLM has other weights"),
        ([step(1), step(2), {"step": 3}], "vllm_kl: inf; "),
    ],
)
def test_a_lost_step_and_other_weights_are_wrong(metrics, wrong, capsys):
    findings = Findings()
    check_training(findings, metrics)
    assert len(findings.wrong) == 1 and findings.wrong[0].startswith(wrong)
    assert findings.report() == 1
    assert f"wrong: {wrong}" in capsys.readouterr().out


@pytest.mark.parametrize(("asleep", "passes"), [(20, True), (60, False)])
def test_memory_that_sleep_does_not_free_is_wrong(asleep, passes):
    findings = Findings()
    check_memory(findings, [n * GIB for n in (10, 80, asleep, 70)], {"generate": 60 * GIB, "update": 30 * GIB})
    assert findings.rows[0] == ("GiB at most", "70.0", "planned, without contexts: generate 60.0, update 30.0")
    assert findings.rows[1][1] == f"{asleep - 10}.0" and (not findings.wrong) == passes


def test_memory_is_read_until_the_end():
    values = iter(range(10**6))
    with polled(lambda: next(values)) as used:
        assert used == [0]
        while len(used) < 3:
            pass
    assert used == list(range(len(used)))


@pytest.mark.filterwarnings("ignore")
def test_the_scoring_backends_agree_on_the_policys_own_responses():
    findings = Findings()
    check_scoring(findings, str(POLICY), torch.device("cpu"))
    assert not findings.wrong
    assert 0 < float(findings.rows[0][1].split()[0]) < 0.1  # bfloat16 rounds differently in either


def test_the_flags_are_read_as_they_were_meant(tmp_path):
    config, run, rest = parse_swap_arguments(training_flags("model", tmp_path))
    assert (config.step_tokens, config.close_template, run.output_dir) == (8, CLOSE_TEMPLATE, str(tmp_path))
    rows = (tmp_path / "prompts.jsonl").read_text().splitlines()
    assert len(set(rows)) == STEPS * int(dict(pairwise(rest))["--rollout.batch_size"])


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_without_a_gpu_nothing_is_started(tmp_path, capsys):
    assert run_command(main, ["--output", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err.startswith("error: torch is a CPU build; install the other one: PROFILE=gpu")
    assert not (tmp_path / "run").exists()


def test_a_model_that_is_not_there_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert run_command(main, ["--output", str(tmp_path / "run"), "--model", str(tmp_path / "none")]) == 2
    assert f"error: --model is {tmp_path / 'none'}, which cannot be read (no such folder)" in capsys.readouterr().err

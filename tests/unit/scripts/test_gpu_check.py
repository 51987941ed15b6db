"""What is checked about a training, from numbers made by hand."""

import json
import sys
from contextlib import nullcontext
from itertools import pairwise

import pytest
import torch
from support.paths import POLICY, ROOT
from support.scripts import make_tool

from benchmarks import gpu_check
from benchmarks.gpu_check import (
    Findings,
    Gpu,
    WrongError,
    check_memory,
    check_steps,
    training_flags,
)
from openrlhf_swap.command import run_command
from openrlhf_swap.flags.configuration import configure
from openrlhf_swap.sizing.models import GIB


def step(number, kl=1e-4, **seconds):
    return {
        "step": number,
        "vllm_kl": kl,
        **{f"timing/{name}": value for name, value in seconds.items()},
    }


def readings(*sizes):
    """One reading a second, in GiB."""
    return [(float(second), size * GIB) for second, size in enumerate(sizes)]


def test_a_resumed_training_passes(capsys):
    findings = Findings()
    check_steps(findings, [step(1, score=9.0), step(2, score=1.0), step(3, score=2.0)], resumed=1)
    assert findings.print_table() == 0
    assert [(line["name"], line["found"]) for line in findings.lines] == [
        ("steps, resumed after a kill", "[1, 2, 3], 1 after the kill"),
        ("seconds a step: score", "1.50"),  # the first step warms up
    ]
    assert capsys.readouterr().out.splitlines()[-1] == "[gpu_check] all is as it should be"


@pytest.mark.parametrize(("steps", "resumed"), [([1, 3], 1), ([1, 2, 3], 0)])
def test_a_lost_step_is_wrong_and_so_is_a_run_that_was_not_resumed(steps, resumed, capsys):
    findings = Findings()
    with pytest.raises(WrongError):
        check_steps(findings, [step(number) for number in steps], resumed)
    expected = f"steps, resumed after a kill: {steps}, {resumed} after the kill; docs/use/faults.md"
    assert findings.wrong.startswith(expected)
    assert findings.print_table() == 1
    assert f"wrong: {findings.wrong}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("row", "shown"),
    [
        (step(2, -0.02), "2.0e-02 in step 2"),
        ({"step": 2}, "inf in step 2"),
        (step(2, None), "inf in step 2"),
    ],
)
def test_other_weights_end_the_check(row, shown):
    findings = Findings()
    with pytest.raises(WrongError):
        gpu_check.check_weights(findings, [(0.0, step(1, -2e-4)), (1.0, row)])
    assert [line["remedy"] is None for line in findings.lines] == [True, False]
    assert findings.wrong.startswith(f"vllm_kl: {shown}; vLLM has other weights")


FIRST, LAST = (2.0, step(1)), (5.0, step(2))  # the end of a process's first and last step


def named(findings, name):
    (line,) = [line for line in findings.lines if line["name"] == name]
    return line


def test_sleep_that_frees_memory_between_two_steps_passes():
    findings = Findings()
    check_memory(findings, readings(10, 60, 70, 80, 20, 70, 12), [FIRST, LAST], 80 * GIB)
    line = named(findings, "GiB while vLLM sleeps")
    assert (line["found"], line["wanted"]) == ("10.0", "< 70% of 70.0") and not findings.wrong


@pytest.mark.parametrize(
    "sizes",
    [
        (10, 60, 80, 80, 80, 80, 10, 10),  # nothing is freed until the process ends
        (10, 10, 80, 80, 80, 80, 80, 80),  # nor was it used before the engine started
        (10, 80, 80, 60, 80, 80, 10, 10),  # a little is
        (10, 10, 10, 10, 10, 10, 10, 10),  # another GPU is looked at
        (30, 30, 10, 10, 10, 10, 10, 10),  # another process has ended meanwhile
    ],
)
def test_sleep_that_frees_nothing_ends_the_check(sizes):
    findings = Findings()
    with pytest.raises(WrongError):
        check_memory(findings, readings(*sizes), [FIRST, LAST], 80 * GIB)
    assert findings.wrong.startswith("GiB while vLLM sleeps: ")
    assert "; sleep frees no memory: leave out" in findings.wrong


@pytest.mark.parametrize(("most", "passes"), [(74, True), (75, False)])
def test_more_memory_than_planned_is_wrong(most, passes):
    findings = Findings()
    with nullcontext() if passes else pytest.raises(WrongError):
        check_memory(findings, readings(10, 20, most, 20, 20, 20), [FIRST, LAST], 64 * GIB)
    line = named(findings, "GiB at most")
    assert line["found"] == f"{most - 10}.0"
    assert line["wanted"] == "<= 64.0, as planned"
    assert (not findings.wrong) == passes


def test_the_plan_of_a_run_is_read_from_its_own_record(tmp_path):
    """Half of a GPU of 8 GiB is vLLM's, or what an optimizer that stays leaves to it; 4 GiB are
    kept free.
    """
    run = configure(training_flags(str(POLICY), tmp_path), on_cpu=False)
    (tmp_path / "run.yaml").write_text(json.dumps({"flags": run.dump()}))
    planned = gpu_check.planned_bytes(tmp_path, 8 * GIB)
    assert list(planned) == ["generate", "score", "update", "adam", "transfer"]
    assert 7.9 * GIB < planned["generate"] <= 8 * GIB and 4 * GIB < planned["update"] < 5 * GIB


def test_memory_is_read_until_the_end():
    values = iter(range(10**6))
    with gpu_check.polled(lambda: next(values)) as used:
        assert [size for _, size in used] == [0]
        while len(used) < 3:
            pass
    assert [size for _, size in used] == list(range(len(used)))
    assert all(earlier < later for (earlier, _), (later, _) in pairwise(used))


def test_a_gpu_on_which_nothing_runs_ends_the_check_with_the_remedy(monkeypatch):
    error = "CUDA error: no kernel image is available for execution on the device"

    def broken(name, device):
        raise RuntimeError(error + "\nCompile with ...")

    monkeypatch.setattr(gpu_check, "largest_difference", broken)
    findings = Findings()
    with pytest.raises(WrongError):
        gpu_check.check_scoring(findings, str(POLICY), torch.device("cpu"))
    assert findings.wrong == f"scoring on the GPU: {error}; fix what the error names"


def test_the_flags_are_read_as_they_were_meant(tmp_path):
    run = configure(training_flags("model", tmp_path), on_cpu=False)
    assert (run.method.step_tokens, run.method.close_template) == (8, gpu_check.CLOSE_TEMPLATE)
    assert run.run.output_dir == str(tmp_path)
    rows = (tmp_path / "prompts.jsonl").read_text().splitlines()
    assert len(set(rows)) == gpu_check.STEPS * run.args.rollout.batch_size


def test_it_trains_as_the_script_for_one_gpu_does(tmp_path):
    """Every flag of the script is there, and hardly another.

    The temperature, which scales logits in vLLM and in the trainer, has its value, and so has how
    the GPU is shared.
    """
    file = ["--config", str(ROOT / "scripts" / "train_swap_1gpu.yaml")]
    script, check = (
        configure(words, on_cpu=False) for words in (file, training_flags("model", tmp_path))
    )
    theirs, ours = ({name: run.values[name] for name in run.named} for run in (script, check))
    assert set(theirs) - set(ours) == {"train.num_episodes"}
    alike = ("vllm.", "ds.", "train.colocate", "actor.num", "rollout.temperature")
    sharing = {name for name in theirs if name.startswith(alike)} - {"vllm.gpu_memory_utilization"}
    assert len(sharing) >= 9
    assert {name: ours[name] for name in sharing} == {name: theirs[name] for name in sharing}


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_without_a_gpu_or_a_model_nothing_is_started(tmp_path, monkeypatch, capsys):
    words = ["--output", str(tmp_path / "run")]
    assert run_command(gpu_check.main, words) == 2
    assert capsys.readouterr().err.startswith(
        "error: torch is a CPU build; install the other one: PROFILE=gpu"
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert run_command(gpu_check.main, [*words, "--model", str(tmp_path / "none")]) == 2
    assert (
        f"error: --model is {tmp_path / 'none'}, which cannot be read (" in capsys.readouterr().err
    )
    assert not (tmp_path / "run").exists()


def training(tmp_path, monkeypatch, script):
    """A `python` that runs a shell script in the output folder instead of a training."""
    tool = make_tool(tmp_path / "python", f"cd {tmp_path / 'run'}\n{script}")
    monkeypatch.setattr(sys, "executable", str(tool))


def test_a_training_is_ended_when_it_has_done_enough(tmp_path, monkeypatch):
    training(
        tmp_path, monkeypatch, "echo '{\"step\": 1}' > metrics.jsonl; touch saved; exec sleep 600"
    )
    (tmp_path / "run").mkdir()
    steps = gpu_check.watch(Findings(), [], tmp_path / "run", (tmp_path / "run" / "saved").exists)
    assert [row for _, row in steps] in ([], [{"step": 1}])


def test_the_report_of_a_failed_check_is_complete(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(gpu_check, "check_scoring", lambda *_: None)
    training(tmp_path, monkeypatch, "echo error: an engine died >&2; exit 2")
    gpu = Gpu(torch.device("cpu"), lambda: 5, 10)
    assert gpu_check.check("policy", tmp_path / "run", gpu).print_table() == 1
    shown = capfd.readouterr()
    assert (
        "error: an engine died" in shown.err
        and "wrong: training: an error (status 2); see the error" in shown.out
    )
    report = json.loads((tmp_path / "run" / "gpu_check.json").read_text())
    assert set(report) == set(example()) and not report["passed"]
    assert report["machine"]["os"] and report["machine"]["python_version"].startswith("3.")
    assert report["seconds"].keys() == {"scoring", "training"}
    assert report["findings"][-1]["name"] == "training"


def example():
    return json.loads(
        (ROOT / "docs" / "use" / "gpu_check_example.json").read_text(encoding="utf-8")
    )


def test_the_example_is_a_complete_report():
    report = example()
    assert report["passed"] and report["memory"]["planned"]["update"]
    names = {line["name"] for line in report["findings"]}
    assert {
        "vllm_kl",
        "GiB while vLLM sleeps",
        "GiB at most",
        "steps, resumed after a kill",
    } <= names

"""The command that evaluates."""

import shlex
import shutil

import pytest
import ray
import torch
from support.paths import POLICY

from evaluation import run
from evaluation.generate import Task
from evaluation.samples import read_settings
from openrlhf_swap.command import run_command
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.files import write_rows
from openrlhf_swap.runs.provenance import made_of


def test_settings_of_a_folder_do_not_change(tmp_path, capsys):
    flags = ["--model", str(POLICY), "--output", str(tmp_path / "out"), "--samples", "1"]
    problems = tmp_path / "own.jsonl"
    write_rows(problems, [{"problem": "1", "answer": "1"}])
    (tmp_path / "out").mkdir()
    args = run.parse([*flags, "--benchmarks", str(problems)])
    run.write_settings(args, made_of("evaluation.run", []), {}, [])
    assert run_command(run.main, [*flags, "--benchmarks", str(problems), "--temperature", "1"]) == 2
    assert capsys.readouterr().err.startswith("error: --temperature is 1.0, but the samples in")


def test_what_an_evaluation_was_made_of_is_written_and_compared(tmp_path, capsys):
    policy = shutil.copytree(POLICY, tmp_path / "policy")
    problems = tmp_path / "own.jsonl"
    write_rows(problems, [{"problem": "1", "answer": "1"}])
    flags = ["--model", str(policy), "--output", str(tmp_path / "out"), "--benchmarks", str(problems)]

    def start(*more):
        """As far as the engine, which is not started."""
        argv = [*flags, *more]
        args = run.parse(argv)
        origin = made_of("evaluation.run", argv, weights=args.model)
        before = run.compare_settings(args, origin)
        (tmp_path / "out").mkdir(exist_ok=True)
        run.write_settings(args, origin, before, ["own"])
        return read_settings(tmp_path / "out")

    first = start()
    assert shlex.split(first["command"])[3:] == flags
    assert first["inputs"]["weights"][0]["files"].keys() >= {"model.safetensors", "config.json"}
    again = start("--samples", "2")
    assert (shlex.split(again["command"])[-2:], again["earlier_commands"]) == (["--samples", "2"], [first["command"]])
    weights = policy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    assert run_command(run.main, flags) == 2
    assert "whose model.safetensors has changed since the samples in" in capsys.readouterr().err


def test_the_end_of_the_thought_is_the_folders_or_the_models(tmp_path, capsys):
    flags = ["--model", str(POLICY), "--output", str(tmp_path)]
    args = run.parse(flags)
    args.end_of_thought = run.end_of_thought(args)
    assert args.end_of_thought == "</think>"
    assert "thought: '<think>' to '</think>' (r1, opened by the chat template)" in capsys.readouterr().out
    args.end_of_thought = run.end_of_thought(run.parse([*flags, "--end-of-thought", "[/THINK]"]))
    run.write_settings(args, made_of("evaluation.run", []), {}, [])
    assert run.end_of_thought(run.parse(flags)) == "[/THINK]"
    # A folder from before there was such a setting.
    path = tmp_path / "run.json"
    path.write_text(path.read_text().replace("end_of_thought", "another"))
    assert run.end_of_thought(run.parse(flags)) == "</think>"


@pytest.mark.parametrize(
    ("flags", "context"),
    [
        ([], {"longest": 57}),  # seven tokens of the prompt: <|user|>, 1, +, 1, <|assistant|>, <think> and a newline
        (["--max-model-len", "70"], {"max_model_len": 70}),
    ],
)
def test_an_engine_gets_the_context_that_the_samples_need(tmp_path, monkeypatch, flags, context):
    opened = []

    class Sampler:
        def __init__(self, model, **options):
            opened.append(options)

        def generate(self, *_):
            return iter(())

    monkeypatch.setattr(run, "Sampler", Sampler)
    words = ["--model", str(POLICY), "--output", str(tmp_path), "--max-tokens", "50", "--suffix", "", *flags]
    run.sample(run.parse(words), [Task("own", "p", 0, "1+1")], 1)
    assert opened == [{"tensor_parallel_size": 1, "trust_remote_code": False, **context}]


class RayStartedError(Exception):
    """Ray would start now."""


@pytest.mark.parametrize(
    ("there", "cpu", "cluster", "message"),
    [
        (5, False, False, "--engines 3 x --tensor-parallel-size 2 takes 6 GPUs, but 5 are here; use fewer"),
        (6, False, False, None),
        (0, True, False, None),
        (0, False, True, None),
    ],
)
def test_gpus_that_are_not_there_are_said_before_ray_waits_for_them(
    tmp_path, monkeypatch, there, cpu, cluster, message
):
    def start(**_):
        raise RayStartedError

    monkeypatch.setattr(ray, "init", start)
    monkeypatch.setattr(run, "is_cpu_build", lambda: cpu)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: there)
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if cluster:
        monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    flags = ["--model", "m", "--output", str(tmp_path), "--engines", "3", "--tensor-parallel-size", "2"]
    flags += ["--max-model-len", "400"]
    with pytest.raises(ConfigError if message else RayStartedError, match=f"^{message}" if message else None):
        run.sample(run.parse(flags), [], 0)

"""The one entry of all benchmarks, and the one that compares with TRL."""

import argparse
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.paths import POLICY, ROOT
from support.scripts import python

from benchmarks import beside_trl, trl_trial
from openrlhf_swap.flags.configuration import configure
from openrlhf_swap.flags.rules import check_flags


def test_the_ratios_become_a_table():
    result = python("-m", "benchmarks", "advantages")
    _, _, row = result.stdout.splitlines()
    assert re.fullmatch(
        r"\| advantages +\| [\d.]+ +\| advantages by a loop over steps, to ours \| \d+ +\|", row
    )
    assert "largest difference" in result.stderr


def test_every_benchmark_is_known():
    parts = {"__init__", "__main__", "gpu_check", "trl_trial"}
    files = {path.stem for path in (ROOT / "benchmarks").glob("*.py")} - parts
    result = python("-m", "benchmarks", "no_such")
    assert result.returncode == 2
    assert result.stderr.rpartition("use any of ")[2].strip().split(", ") == sorted(files)


@pytest.mark.parametrize("on_gpu", [False, True])
@pytest.mark.parametrize("objective", ["swap", "grpo"])
def test_our_side_beside_trl_is_what_the_scripts_train(on_gpu, objective):
    own = argparse.Namespace(
        on_gpu=on_gpu, prompts=8, responses=4, tokens=2048, flags=["--train.seed", "3"]
    )
    words = beside_trl.flags_of(objective, POLICY, Path("prompts.jsonl"), "out", 3048, own)
    run = configure(words, on_cpu=not on_gpu)
    check_flags(run)
    args = run.args
    assert (run.method.objective, args.data.max_len, args.train.seed) == (objective, 3048, 3)
    assert (
        args.train.batch_size == args.rollout.batch_size * args.rollout.n_samples_per_prompt == 32
    )
    assert (
        args.train.dynamic_batch_enable
        == args.ds.packing_samples
        == args.train.colocate_all
        == on_gpu
    )


def test_what_the_loss_calls_is_a_part_of_the_update(monkeypatch):
    now = [0]
    monkeypatch.setattr(trl_trial.time, "perf_counter", lambda: now[0])

    def wait(*inner):
        def method():
            now[0] += 1
            for other in inner:
                getattr(trainer, other)()

        return method

    trainer = SimpleNamespace(_generate=wait(), _score=wait())
    trainer._prepare, trainer._compute_loss = wait("_generate", "_score"), wait("_score")
    clock = trl_trial.Clock(lambda: None)
    for name in ("_generate", "_score", "_prepare", "_compute_loss"):
        clock.wrap(trainer, name)
    trainer._prepare()
    trainer._compute_loss()
    trainer._prepare()
    assert clock.seconds == {"_generate": 2, "_score": 2, "_prepare": 6, "_compute_loss": 2}

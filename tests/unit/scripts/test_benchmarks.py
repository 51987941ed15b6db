"""The one entry of all benchmarks, and the flags of the one that compares with TRL."""

import re

import pytest
from support.paths import ROOT
from support.scripts import python

from benchmarks import beside_trl
from openrlhf_swap.flags.configuration import configure
from openrlhf_swap.flags.rules import check_flags


def test_the_ratios_become_a_table_and_every_benchmark_is_known():
    _, _, row = python("-m", "benchmarks", "advantages").stdout.splitlines()
    meaning = "advantages by a loop over steps, to ours"
    assert re.fullmatch(rf"\| advantages +\| [\d.]+ +\| {meaning} \| \d+ +\|", row)
    parts = {"__init__", "__main__", "gpu_check", "trl_trial", "stages"}
    files = {path.stem for path in (ROOT / "benchmarks").glob("*.py")} - parts
    result = python("-m", "benchmarks", "no_such")
    assert result.stderr.rpartition("use any of ")[2].strip().split(", ") == sorted(files)


@pytest.mark.parametrize("on_gpu", [False, True])
@pytest.mark.parametrize("objective", ["swap", "grpo"])
def test_our_side_beside_trl_is_what_the_scripts_train(tmp_path, on_gpu, objective):
    words = f"--output {tmp_path / 'new'} --tokenizer t --train.seed 3 --responses 4"
    own = beside_trl.parse(words.split(), on_gpu)
    own.model = beside_trl.POLICY
    run = configure(beside_trl.flags_of(objective, own), on_cpu=not on_gpu)
    check_flags(run)
    args = run.args
    assert (run.method.objective, args.data.max_len) == (objective, own.context)
    assert (args.train.seed, args.rollout.n_samples_per_prompt) == (3, 4)
    assert args.train.batch_size == args.rollout.batch_size * 4
    assert args.ds.packing_samples == args.train.colocate_all == on_gpu

"""The files of the launch scripts carry the paper's settings, and fit where they say."""

import shlex

import pytest
from support.paths import ROOT
from support.scripts import bash

from openrlhf_swap import plan
from openrlhf_swap.evaluation.run import parse_flags
from openrlhf_swap.flags.configuration import configure
from openrlhf_swap.flags.rules import check_flags, check_objective
from openrlhf_swap.recipes import expand_config
from openrlhf_swap.rewards.answers import SUFFIX

EVALUATION = "evaluation/eval_benchmarks.sh"


def preset(name):
    return ["--config", str(ROOT / "scripts" / f"train_swap_{name}.yaml")]


def run_of(name, *flags, on_cpu=False):
    run = configure([*preset(name), *flags], on_cpu)
    check_flags(run)
    check_objective(run)
    return run


@pytest.mark.parametrize(("size", "zero"), [("1.5b", 2), ("7b", 3)])
def test_presets_carry_the_papers_settings_and_share_every_gpu(size, zero):
    run = run_of(size, "--train.seed", "3")
    method = run.method
    assert method.step_tokens == 350
    assert method.max_steps == 25
    assert method.length_coef == 1.0
    assert method.outcome_weight == 1.0
    assert method.process_weight == 0.3
    args = run.args
    assert args.rollout.batch_size == 128
    assert args.rollout.n_samples_per_prompt == 16
    assert args.train.batch_size == 128 * 16  # one on-policy update a step
    assert args.rollout.max_new_tokens == 12000
    assert args.rollout.temperature == 0.6
    assert args.algo.kl.init_coef == 0
    assert args.actor.lr_scheduler == "constant"
    assert args.actor.adam.lr == 1e-6
    assert args.train.num_episodes == 2
    assert args.train.seed == 3
    assert args.vllm.num_engines * args.vllm.tensor_parallel_size == 8
    assert args.train.colocate_all
    assert args.vllm.enable_sleep
    assert args.ds.enable_sleep
    assert args.ds.zero_stage == zero
    assert run.run.output_dir == f"outputs/swap_{size}"


def test_presets_of_a_laptop_and_files_beside_them():
    args = run_of("laptop", on_cpu=True).args
    assert args.vllm.num_engines == 1
    assert args.vllm.sync_backend == "gloo"
    assert (ROOT / args.actor.model_name_or_path / "config.json").is_file()
    run = run_of("laptop", "--config", str(ROOT / "scripts" / "instruct.yaml"), on_cpu=True)
    assert run.method.step_tokens == 30
    assert run.args.ds.lora.rank == 32
    assert run.args.actor.adam.lr == 2e-4
    args = run_of("1.5b", "--config", str(ROOT / "scripts" / "async.yaml")).args
    assert args.train.async_enable
    assert not (args.train.colocate_all or args.vllm.enable_sleep)
    assert args.actor.num_gpus_per_node == 4
    assert args.vllm.num_engines == 4
    assert args.algo.advantage.is_correction_level == "token"


@pytest.mark.parametrize(
    ("gpu", "name", "flags"),
    [
        ("rtx4090", "1gpu", "--ds.adam_offload --vllm.gpu_memory_utilization 0.6"),
        ("l40s", "1gpu", "--ds.lora.rank 32 --actor.adam.lr 1e-4"),
        ("h100", "1gpu", ""),
        ("h100", "1.5b", ""),
        ("h100", "7b", ""),
        ("h200", "7b", "--no-ds.packing_samples --no-train.dynamic_batch_enable"),
    ],
)
def test_presets_fit_by_plan(capsys, gpu, name, flags):
    words = ["--gpu", gpu, *preset(name), *flags.split()]
    assert plan.main(words) == 0, capsys.readouterr().out


def test_an_empty_value_of_a_flag_reaches_the_command():
    line = """source scripts/common.sh; read_flags "" --a '' b; printf '[%s]' "${FLAGS[@]}\""""
    assert bash("-c", line).stdout == "[--a][][b]"


def evaluation(*flags, **variables):
    """What the script would run."""
    words = shlex.split(
        bash(EVALUATION, "--dry-run", *flags, MODEL="some/model", **variables).stdout
    )
    assert words[:5] == ["python", "-m", "openrlhf_swap", "eval", "run"]
    return parse_flags(expand_config(words[5:]))


def test_the_evaluation_script_carries_the_papers_settings(monkeypatch):
    monkeypatch.chdir(ROOT)
    args = evaluation("--limit", "3", ENGINES="2")
    assert args.benchmarks == ["math500", "amc23", "aime24", "aime25", "olympiadbench"]
    assert args.samples == 16
    assert args.temperature == 0.6
    assert args.top_p == 0.95
    assert args.max_tokens == 32768
    assert args.engines == 2
    assert args.limit == 3
    assert str(args.output) == "outputs/eval/model"
    assert args.suffix == SUFFIX  # as `prepare` puts it behind each problem of the training
    args = evaluation(SUFFIX="", BENCHMARKS="math500 aime24")
    assert args.suffix == ""
    assert args.benchmarks == ["math500", "aime24"]

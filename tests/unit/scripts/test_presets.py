"""The files of the launch scripts carry the paper's settings, and fit where they say."""

import re
import shlex

import pytest
from support.paths import ROOT
from support.scripts import bash, make_smi, make_tool

from openrlhf_swap import plan
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.evaluation.run import parse
from openrlhf_swap.flags.configuration import configure
from openrlhf_swap.flags.rules import check_flags, check_objective
from openrlhf_swap.recipes import expand_config
from openrlhf_swap.rewards.answers import SUFFIX

PAPER = {
    "step_tokens": 350,
    "max_steps": 25,
    "length_coef": 1.0,
    "outcome_weight": 1.0,
    "process_weight": 0.3,
}
LORA = ["--ds.lora.rank", "32", "--actor.adam.lr", "1e-5"]
SMALL = ["--ds.adam_offload", "--vllm.gpu_memory_utilization", "0.6"]


def run_of(name, *flags, on_cpu=False):
    run = configure(["--config", str(ROOT / "scripts" / f"train_swap_{name}.yaml"), *flags], on_cpu)
    check_flags(run)
    check_objective(run)
    return run


@pytest.mark.parametrize("size", ["1.5b", "7b"])
def test_presets_carry_the_papers_settings_and_share_every_gpu(size):
    run = run_of(size, "--train.seed", "3")
    args = run.args
    assert {name: getattr(run.method, name) for name in PAPER} == PAPER
    assert args.actor.model_name_or_path.lower().endswith(size)
    assert (args.rollout.batch_size, args.rollout.n_samples_per_prompt) == (128, 16)
    assert args.train.batch_size == 128 * 16  # one on-policy update a step
    assert (args.rollout.max_new_tokens, args.rollout.temperature, args.train.num_episodes) == (
        12000,
        0.6,
        2,
    )
    assert (args.algo.kl.init_coef, args.actor.lr_scheduler, args.actor.adam.lr) == (
        0,
        "constant",
        1e-6,
    )
    assert args.ckpt.load_enable and args.ckpt.save_steps == 20 and args.train.seed == 3
    assert (
        args.vllm.num_engines * args.vllm.tensor_parallel_size == 8 == args.actor.num_gpus_per_node
    )
    assert args.train.colocate_all and args.vllm.enable_sleep and args.ds.enable_sleep
    assert args.ds.zero_stage == {"1.5b": 2, "7b": 3}[size]
    written = [run.run.output_dir, args.ckpt.path, args.logger.tensorboard_dir]
    assert written == [
        f"outputs/swap_{size}{part}" for part in ("", "/checkpoints", "/tensorboard")
    ]


def test_the_laptops_preset_needs_no_gpu_and_trains_on_the_quickstarts_data():
    args = run_of("laptop", on_cpu=True).args
    assert (
        args.actor.num_gpus_per_node == args.vllm.num_engines == 1
        and args.vllm.sync_backend == "gloo"
    )
    assert (
        ROOT / args.actor.model_name_or_path / "config.json"
    ).is_file() and args.ckpt.load_enable
    assert args.rollout.batch_size * args.rollout.n_samples_per_prompt == 2 * args.train.batch_size
    assert args.data.prompt_dataset == "outputs/quickstart/data/train.jsonl"


def test_the_engines_follow_the_gpus():
    args = run_of("1.5b", "--actor.num_nodes", "2", "--vllm.tensor_parallel_size", "2").args
    assert args.vllm.num_engines == 8
    with pytest.raises(ConfigError, match="24 actors cannot share the "):
        run_of("7b", "--actor.num_nodes", "3")


def test_presets_generate_while_they_train():
    file = ["--config", str(ROOT / "scripts" / "async.yaml")]
    args = run_of("1.5b", *file).args
    assert args.train.async_enable and not (
        args.train.colocate_all or args.vllm.enable_sleep or args.ds.enable_sleep
    )
    assert (
        args.actor.num_gpus_per_node,
        args.vllm.num_engines,
        args.vllm.gpu_memory_utilization,
    ) == (4, 4, 0.9)
    assert args.algo.advantage.is_correction_level == "token"
    args = run_of("1.5b", *file, "--actor.num_gpus_per_node", "2", "--vllm.num_engines", "6").args
    assert (args.actor.num_gpus_per_node, args.vllm.num_engines) == (2, 6)


@pytest.mark.parametrize("lora", [[], LORA], ids=["full", "lora"])
@pytest.mark.parametrize(("gpu", "flags"), [("rtx4090", SMALL), ("l40s", []), ("h100", [])])
@pytest.mark.parametrize(
    "model", ["Qwen/Qwen2.5-0.5B-Instruct", "Qwen/Qwen2.5-1.5B-Instruct", None]
)
def test_presets_of_one_gpu_fit_by_plan(capsys, model, gpu, flags, lora):
    given = [*flags, *lora, *(["--actor.model_name_or_path", model] if model else [])]
    assert " ".join(flags) in (ROOT / "scripts" / "train_swap_1gpu.yaml").read_text()
    args = run_of("1gpu", *given).args
    assert (
        args.train.batch_size == args.rollout.batch_size * args.rollout.n_samples_per_prompt == 256
    )
    file = str(ROOT / "scripts" / "train_swap_1gpu.yaml")
    assert plan.main(["--gpu", gpu, "--config", file, *given]) == 0, capsys.readouterr().out


@pytest.mark.parametrize(
    "packed", [[], ["--no-ds.packing_samples", "--no-train.dynamic_batch_enable"]]
)
@pytest.mark.parametrize(("gpu", "size"), [("h100", "1.5b"), ("h200", "7b")])
def test_presets_fit_by_plan(capsys, gpu, size, packed):
    file = str(ROOT / "scripts" / f"train_swap_{size}.yaml")
    assert plan.main(["--gpu", gpu, "--config", file, *packed]) == 0, capsys.readouterr().out


def test_the_script_names_its_file_and_hides_the_key(tmp_path):
    make_tool(tmp_path / "openrlhf-swap", 'printf "%s\\n" "$*"')
    (tmp_path / "bin").symlink_to(tmp_path)
    given = ["scripts/train_swap.sh", "7b", "--train.seed", "3"]
    environment = {"VENV": str(tmp_path), "WANDB_API_KEY": ""}
    plain = bash(*given, **environment)
    assert plain.stdout == "train --config scripts/train_swap_7b.yaml --train.seed 3\n"
    secret = bash(*given, **{**environment, "WANDB_API_KEY": "secret"})
    assert (
        "secret" not in secret.stdout + secret.stderr
        and "--logger.wandb.key WANDB_API_KEY " in secret.stdout
    )


def test_a_dry_run_shows_all_settings():
    shown = bash("scripts/train_swap.sh", "1.5b", "--dry-run", "--actor.adam.lr", "2e-6").stdout
    assert re.search(r"^\[swap\]   --actor.adam.lr=1e-6 \(overruled\)", shown, re.MULTILINE)
    assert re.search(r"^  actor.adam.lr: 2.0e-06$", shown, re.MULTILINE)


def test_the_evaluation_script_carries_the_papers_settings(monkeypatch):
    monkeypatch.chdir(ROOT)
    output = bash(
        "evaluation/eval_benchmarks.sh", "--dry-run", "--limit", "3", MODEL="some/model", ENGINES="2"
    ).stdout
    command, argv = shlex.split(output)[:5], shlex.split(output)[5:]
    assert command == ["python", "-m", "openrlhf_swap", "eval", "run"]
    args = parse(expand_config(argv))
    assert args.benchmarks == ["math500", "amc23", "aime24", "aime25", "olympiadbench"]
    assert (args.samples, args.temperature, args.top_p, args.max_tokens) == (16, 0.6, 0.95, 32768)
    assert (args.engines, args.limit, str(args.output)) == (2, 3, "outputs/eval/model")
    assert (
        args.suffix == SUFFIX
    )  # the one that openrlhf_swap.prepare puts behind each problem of the training
    bare = bash("evaluation/eval_benchmarks.sh", "--dry-run", MODEL="some/model", SUFFIX="").stdout
    assert parse(shlex.split(bare)[5:]).suffix == ""
    two = bash(
        "evaluation/eval_benchmarks.sh", "--dry-run", MODEL="some/model", BENCHMARKS="math500 aime24"
    ).stdout
    assert parse(expand_config(shlex.split(two)[5:])).benchmarks == ["math500", "aime24"]


@pytest.mark.parametrize(
    ("gpus", "visible", "tensor_parallel", "engines"),
    [
        (8, None, "1", 8),
        (8, None, "4", 2),
        (8, "2,5", "1", 2),
        (8, "", "1", 1),
        (8, "-1", "1", 1),
        (0, None, "2", 1),
    ],
)
def test_the_evaluation_uses_the_gpus_there_are(tmp_path, gpus, visible, tensor_parallel, engines):
    environment = {
        "PATH": make_smi(tmp_path, gpus),
        "MODEL": "m",
        "TENSOR_PARALLEL": tensor_parallel,
    }
    if visible is not None:
        environment["CUDA_VISIBLE_DEVICES"] = visible
    output = bash("evaluation/eval_benchmarks.sh", "--dry-run", **environment).stdout
    assert parse(shlex.split(output)[5:]).engines == engines

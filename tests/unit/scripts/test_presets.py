import os
import shlex

import pytest
from support.paths import ROOT
from support.scripts import COMMANDS, bash, make_smi, parse_training

from openrlhf_swap import plan
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.evaluation.run import parse
from openrlhf_swap.recipes import expand_config
from openrlhf_swap.rewards.answers import SUFFIX

PAPER = {"step_tokens": 350, "max_steps": 25, "length_coef": 1.0, "outcome_weight": 1.0, "process_weight": 0.3}


@pytest.mark.parametrize("size", ["1.5b", "7b"])
def test_presets_carry_the_papers_settings_in_flags_that_exist(size):
    output = bash(f"scripts/train_swap_{size}.sh", "--dry-run", "--train.seed", "3", WANDB_KEY="secret").stdout
    assert "secret" not in output
    config, _, args = parse_training(output)
    assert {name: getattr(config, name) for name in PAPER} == PAPER
    assert args.actor.model_name_or_path.lower().endswith(size)
    assert (args.rollout.batch_size, args.rollout.n_samples_per_prompt) == (128, 16)
    assert args.train.batch_size == 128 * 16  # one on-policy update a step
    assert (args.rollout.max_new_tokens, args.rollout.temperature, args.train.num_episodes) == (12000, 0.6, 2)
    assert (args.algo.kl.init_coef, args.actor.lr_scheduler, args.actor.adam.lr) == (0, "constant", 1e-6)
    assert args.train.seed == 3


@pytest.mark.parametrize("packed", ["0", "1"])
@pytest.mark.parametrize(
    ("size", "variables", "ranks"),
    [("1.5b", {"NUM_NODES": "3"}, 24), ("7b", {"ASYNC": "1", "GENERATION_GPUS": "5"}, 3)],
)
def test_gpus_that_do_not_divide_a_step_are_refused_by_the_training(size, variables, ranks, packed):
    output = bash(f"scripts/train_swap_{size}.sh", "--dry-run", PACKED=packed, **variables).stdout
    with pytest.raises(ConfigError, match=f"{ranks} actors cannot share the "):
        parse_training(output)


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("size", ["1.5b", "7b"])
def test_presets_resume_and_share_every_gpu(size, nodes):
    _, run, args = parse_training(bash(f"scripts/train_swap_{size}.sh", "--dry-run", NUM_NODES=str(nodes)).stdout)
    assert args.ckpt.load_enable and args.ckpt.save_steps == 20
    assert (args.actor.num_nodes, args.actor.num_gpus_per_node) == (nodes, 8)
    assert args.vllm.num_engines * args.vllm.tensor_parallel_size == 8 * nodes  # what OpenRLHF asks of colocation
    assert args.train.colocate_all and args.vllm.enable_sleep and args.ds.enable_sleep
    # Each GPU gets the same number of whole micro-batches.
    assert args.train.batch_size % (8 * nodes * args.train.micro_batch_size) == 0
    assert args.ds.zero_stage == {"1.5b": 2, "7b": 3}[size]
    folder = f"outputs/swap_{size}" if nodes == 1 else str(ROOT / "outputs" / f"swap_{size}")
    assert (run.output_dir, args.ckpt.path) == (folder, f"{folder}/checkpoints")
    prompts = "data/deepscaler.jsonl" if nodes == 1 else str(ROOT / "data" / "deepscaler.jsonl")
    assert args.data.prompt_dataset == prompts


@pytest.mark.parametrize(("variables", "training", "engines"), [({}, 4, 4), ({"GENERATION_GPUS": "6"}, 2, 6)])
@pytest.mark.parametrize("nodes", [1, 2])
def test_presets_generate_while_they_train(nodes, variables, training, engines):
    variables = {**variables, "ASYNC": "1", "QUEUE": "2", "NUM_NODES": str(nodes)}
    _, _, args = parse_training(bash("scripts/train_swap_1.5b.sh", "--dry-run", **variables).stdout)
    assert args.train.async_enable and args.train.async_queue_size == 2
    assert not (args.train.colocate_all or args.vllm.enable_sleep or args.ds.enable_sleep)
    assert (args.actor.num_nodes, args.actor.num_gpus_per_node) == (nodes, training)
    assert (args.vllm.num_engines, args.vllm.gpu_memory_utilization) == (nodes * engines, 0.9)
    assert args.algo.advantage.is_correction_level == "token"
    off = ["--algo.advantage.is_correction_level", "off"]  # what the command line says wins
    _, _, args = parse_training(bash("scripts/train_swap_1.5b.sh", "--dry-run", *off, **variables).stdout)
    assert args.algo.advantage.is_correction_level == "off"


def test_switches_of_the_preset_can_be_turned_off_and_files_are_refused():
    off = bash("scripts/train_swap_1.5b.sh", "--dry-run", "--no-data.apply_chat_template", "--actor.adam.lr", "2e-6")
    _, _, args = parse_training(off.stdout)
    assert not args.data.apply_chat_template and args.ckpt.save_hf and args.actor.adam.lr == 2e-6
    for word in ("--config", "--config=mine.yaml", "--swap.recipe"):
        refused = bash("scripts/train_swap_1.5b.sh", "--dry-run", word)
        flag = word.partition("=")[0]
        said = "what this script sets would win over its flags; give them here, or run openrlhf_swap.train"
        assert (refused.returncode, refused.stdout, refused.stderr) == (2, "", f"error: {flag}: {said}\n")


def one_gpu(*flags, **variables):
    return bash("scripts/train_swap_1gpu.sh", "--dry-run", *flags, **variables)


@pytest.mark.parametrize("lora", ["0", "32"])
@pytest.mark.parametrize(("memory", "gpu"), [("24", "rtx4090"), ("48", "l40s"), ("80", "h100")])
@pytest.mark.parametrize("model", ["qwen-0.5b", "qwen-1.5b", "r1-1.5b"])
def test_presets_of_one_gpu_fit_by_plan(capsys, model, memory, gpu, lora):
    command = one_gpu("--train.seed", "3", MODEL=model, MEMORY=memory, LORA=lora).stdout
    _, run, args = parse_training(command)
    assert (args.actor.num_gpus_per_node, args.vllm.num_engines, args.ds.zero_stage) == (1, 1, 2)
    assert args.train.colocate_all and args.vllm.enable_sleep and args.ds.enable_sleep and args.ckpt.load_enable
    assert args.train.batch_size == args.rollout.batch_size * args.rollout.n_samples_per_prompt == 256
    folder = f"outputs/swap_1gpu_{model}" + ("_lora32" if lora == "32" else "")
    assert (args.ds.lora.rank, args.train.seed, run.output_dir) == (int(lora), 3, folder)
    assert plan.main(["--gpu", gpu, "--command", command]) == 0, capsys.readouterr().out


@pytest.mark.parametrize(("mebibytes", "offloads"), [(81_559, False), (46_068, False), (24_564, True), (16_000, None)])
def test_the_preset_of_one_gpu_looks_at_its_memory(tmp_path, mebibytes, offloads):
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/bash\necho {mebibytes}\n")
    tool.chmod(0o755)
    result = one_gpu(PATH=f"{tmp_path}:{os.environ['PATH']}")
    if offloads is None:
        assert (result.returncode, result.stderr.count("\n")) == (2, 1)
        assert "no GPU of 24 GB or more was found; use 24, 48 or 80" in result.stderr
    else:
        *_, args = parse_training(result.stdout)
        assert (args.data.max_len, args.ds.adam_offload) == (14_000, offloads)


def test_presets_read_their_variables():
    variables = {"PROMPTS": "some/hub-set", "OUTPUT": "elsewhere", "MODEL": "some/model", "NUM_GPUS": "4"}
    variables |= {"MICRO_BATCH": "2", "ZERO_STAGE": "1", "SAVE_STEPS": "5", "EAGER": "1"}
    _, run, args = parse_training(bash("scripts/train_swap_1.5b.sh", "--dry-run", **variables).stdout)
    assert args.data.prompt_dataset == "some/hub-set"
    assert (run.output_dir, args.ckpt.output_dir) == ("elsewhere", "elsewhere/policy")
    assert args.actor.model_name_or_path == "some/model"
    assert (args.actor.num_gpus_per_node, args.vllm.num_engines) == (4, 4)
    assert (args.train.micro_batch_size, args.rollout.micro_batch_size, args.ds.zero_stage) == (2, 2, 1)
    assert (args.ckpt.save_steps, args.vllm.enforce_eager) == (5, True)


@pytest.mark.parametrize("name", ["WANDB_KEY", "WANDB_API_KEY"])
def test_the_key_of_weights_and_biases_is_shown_nowhere(name):
    result = bash("scripts/train_swap_1.5b.sh", "--dry-run", **{name: "secret"})
    assert "secret" not in result.stdout + result.stderr
    *_, args = parse_training(result.stdout)
    assert args.logger.wandb.key  # OpenRLHF logs there when the flag has a value, and finds the key by itself
    assert "Weights & Biases" in result.stderr


def test_presets_pack_where_flash_attn_is(tmp_path):
    """Looked for in the environment's packages; without it, packed rows would need masks of length x length."""
    *_, args = parse_training(bash("scripts/train_swap_7b.sh", "--dry-run").stdout)
    assert not args.ds.packing_samples and not args.train.dynamic_batch_enable
    (tmp_path / "flash_attn.py").touch()
    for script, tokens in (("7b", 28_000), ("1.5b", 28_000), ("1gpu", 14_000)):
        found = bash(f"scripts/train_swap_{script}.sh", "--dry-run", PYTHONPATH=str(tmp_path), MEMORY="24").stdout
        *_, args = parse_training(found)
        assert args.ds.packing_samples and args.train.dynamic_batch_enable
        assert args.train.max_tokens_per_gpu == args.rollout.max_tokens_per_gpu == tokens
        off = bash(f"scripts/train_swap_{script}.sh", "--dry-run", PYTHONPATH=str(tmp_path), MEMORY="24", PACKED="0")
        assert "pack" not in off.stdout


@pytest.mark.parametrize(("gpu", "size"), [("h100", "1.5b"), ("h200", "7b")])
def test_packed_presets_fit_by_plan(capsys, gpu, size):
    command = bash(f"scripts/train_swap_{size}.sh", "--dry-run", PACKED="1").stdout
    assert plan.main(["--gpu", gpu, "--command", command]) == 0, capsys.readouterr().out


def test_missing_prompts_name_the_command_that_makes_them(tmp_path):
    path = tmp_path / "prompts.jsonl"
    result = bash("scripts/train_swap_1.5b.sh", "--print", PROMPTS=str(path))
    assert (result.returncode, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    remedy = f"python -m openrlhf_swap.prepare --output {path}"
    assert line == f"error: PROMPTS is {path}, which does not exist; create it: {remedy}"
    assert remedy.split()[2] in COMMANDS
    path.write_text('{"problem": "1 + 1", "answer": "2"}\n')
    *_, args = parse_training(bash("scripts/train_swap_1.5b.sh", "--print", PROMPTS=str(path)).stdout)
    assert args.data.prompt_dataset == str(path)


def test_more_gpus_than_there_are_is_said_before_ray_waits_for_them(tmp_path, monkeypatch):
    for name in ("CUDA_VISIBLE_DEVICES", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    prompts = tmp_path / "prompts.jsonl"
    prompts.touch()
    environment = {"PATH": make_smi(tmp_path, 2), "PROMPTS": str(prompts), "OUTPUT": str(tmp_path / "o")}
    result = bash("scripts/train_swap_1.5b.sh", NUM_GPUS="4", **environment)
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1] == "error: NUM_GPUS is 4, but this machine has 2; set it to at most as many"
    result = bash("scripts/train_swap_1.5b.sh", NUM_GPUS="4", CUDA_VISIBLE_DEVICES="0", **environment)
    assert result.stderr.splitlines()[-1].startswith("error: NUM_GPUS is 4, but CUDA_VISIBLE_DEVICES leaves 1; set")


def test_the_evaluation_script_carries_the_papers_settings(monkeypatch):
    monkeypatch.chdir(ROOT)
    output = bash("scripts/eval_benchmarks.sh", "--dry-run", "--limit", "3", MODEL="some/model", ENGINES="2").stdout
    command, argv = shlex.split(output)[:5], shlex.split(output)[5:]
    assert command == ["python", "-m", "openrlhf_swap", "eval", "run"]
    args = parse(expand_config(argv))
    assert args.benchmarks == ["math500", "amc23", "aime24", "aime25", "olympiadbench"]
    assert (args.samples, args.temperature, args.top_p, args.max_tokens) == (16, 0.6, 0.95, 32768)
    assert (args.engines, args.limit, str(args.output)) == (2, 3, "outputs/eval/model")
    assert args.suffix == SUFFIX  # the one that openrlhf_swap.prepare puts behind each problem of the training
    bare = bash("scripts/eval_benchmarks.sh", "--dry-run", MODEL="some/model", SUFFIX="").stdout
    assert parse(shlex.split(bare)[5:]).suffix == ""
    two = bash("scripts/eval_benchmarks.sh", "--dry-run", MODEL="some/model", BENCHMARKS="math500 aime24").stdout
    assert parse(expand_config(shlex.split(two)[5:])).benchmarks == ["math500", "aime24"]


@pytest.mark.parametrize(
    ("gpus", "visible", "tensor_parallel", "engines"),
    [(8, None, "1", 8), (8, None, "4", 2), (8, "2,5", "1", 2), (8, "", "1", 1), (8, "-1", "1", 1), (0, None, "2", 1)],
)
def test_the_evaluation_uses_the_gpus_there_are(tmp_path, gpus, visible, tensor_parallel, engines):
    environment = {"PATH": make_smi(tmp_path, gpus), "MODEL": "m", "TENSOR_PARALLEL": tensor_parallel}
    if visible is not None:
        environment["CUDA_VISIBLE_DEVICES"] = visible
    output = bash("scripts/eval_benchmarks.sh", "--dry-run", **environment).stdout
    assert parse(shlex.split(output)[5:]).engines == engines

import shlex

import pytest
from support.paths import ROOT
from support.scripts import MULTINODE, bash, make_smi, make_tool

from openrlhf_swap.flags.configuration import configure
from openrlhf_swap.flags.rules import check_flags, check_objective
from openrlhf_swap.flags.stock import nested, stock_parser


@pytest.mark.parametrize(
    ("script", "variables", "message"),
    [
        (
            "train_swap_multinode.sh",
            {},
            "the subcommand is missing; use head, worker, submit, stop",
        ),
        ("train_swap_multinode.sh head", {"PORT": "here"}, "PORT is here; use a whole number"),
        (
            "train_swap_multinode.sh head",
            {"RAY_FOLDER": "ray"},
            "RAY_FOLDER is ray; use an absolute path",
        ),
        ("train_swap_multinode.sh worker", {}, "HEAD_IP is not set; use"),
        ("train_swap.sh", {}, "the first argument is missing; use laptop, 1gpu, 1.5b or 7b\n"),
        ("train_swap.sh 3b", {}, "the first argument is 3b; use laptop, 1gpu, 1.5b or 7b\n"),
        ("train_swap.sh ../x", {}, "the first argument is ../x; use laptop, 1gpu, 1.5b or 7b\n"),
        ("train_swap_multinode.sh submit 3b", {}, "the run is 3b; use 1.5b or 7b"),
        (
            "train_swap_multinode.sh stop",
            {"RAY_FOLDER": "/nowhere"},
            "/nowhere/started.pid names no running Ray",
        ),
        ("train_swap_slurm.sbatch", {}, "this is not a SLURM job; use sbatch"),
        ("train_sft_deepspeed.sh", {}, "MODEL is not set; use"),
        (
            "train_sft_deepspeed.sh",
            {"MODEL": "m", "DATA": "d", "EPOCHS": "-1"},
            "EPOCHS is -1; use",
        ),
        (
            "train_sft_deepspeed.sh",
            {"MODEL": "m", "DATA": "d", "LEARNING_RATE": "low"},
            "LEARNING_RATE is low; use",
        ),
        (
            "train_sft_deepspeed.sh",
            {"MODEL": "m", "DATA": "d", "NUM_GPUS": "3"},
            "BATCH_SIZE is 64; use a multiple",
        ),
        (
            "train_sft_deepspeed.sh",
            {"MODEL": "m", "DATA": "d"},
            "DATA is d, which does not exist; use",
        ),
        ("../evaluation/eval_benchmarks.sh", {}, "MODEL is not set; use"),
        (
            "../evaluation/eval_benchmarks.sh",
            {"MODEL": "m", "ENGINES": "many"},
            "ENGINES is many; use",
        ),
    ],
)
def test_a_bad_variable_gives_one_line(script, variables, message):
    name, *subcommand = script.split()
    result = bash(f"scripts/{name}", *subcommand, **variables)
    assert (result.returncode, result.stdout) == (2, "")
    *shown, line = result.stderr.splitlines()
    assert f"{line}\n".startswith(f"error: {message}")
    assert not any(text.startswith("error") for text in shown)


def parse_ray_start(line):
    """By Ray's own parser."""
    from ray.scripts.scripts import start

    words = shlex.split(line)
    assert words[:2] == ["ray", "start"]
    return start.make_context(start.name, words[2:]).params


def parse_submission(output):
    """What `submit --dry-run` prints: the training, and the words that Ray runs for it."""
    from ray.dashboard.modules.job.cli import submit

    training, submission = output.splitlines()
    bash_word, script, name, *flags = shlex.split(training)
    assert (bash_word, script) == ("bash", "scripts/train_swap.sh")
    run = configure(
        ["--config", str(ROOT / "scripts" / f"train_swap_{name}.yaml"), *flags], on_cpu=False
    )
    check_flags(run)
    check_objective(run)
    words = shlex.split(submission)
    assert words[:3] == ["ray", "job", "submit"]
    params = submit.make_context(submit.name, words[3:]).params
    assert params["address"] == "http://127.0.0.1:8265"
    return run.args, params["entrypoint"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Ray's command line imports all of Ray
def test_the_nodes_of_a_cluster_start_ray():
    head = parse_ray_start(
        bash(MULTINODE, "head", "--dry-run", "--num-cpus", "3", NUM_GPUS="4").stdout
    )
    assert (head["head"], head["port"], head["num_gpus"], head["num_cpus"]) == (True, 6379, 4, 3)
    assert head["dashboard_host"] == "127.0.0.1"
    worker = parse_ray_start(
        bash(MULTINODE, "worker", "--dry-run", HEAD_IP="10.1.2.3", NODE_IP="10.1.2.4").stdout
    )
    assert (worker["head"], worker["address"], worker["num_gpus"]) == (False, "10.1.2.3:6379", 8)
    assert worker["node_ip_address"] == "10.1.2.4"


def test_a_job_is_submitted_with_the_flags_for_its_nodes():
    variables = {"NUM_NODES": "4", "RAY_FOLDER": "/tmp/a folder", "WANDB_API_KEY": "secret"}
    result = bash(MULTINODE, "submit", "--dry-run", "7b", "--train.seed", "3", **variables)
    args, entrypoint = parse_submission(result.stdout)
    assert entrypoint == ("bash", "/tmp/a folder/job.sh")
    assert (args.actor.num_nodes, args.vllm.num_engines, args.train.seed) == (4, 32, 3)
    assert args.actor.model_name_or_path.endswith("7B")
    assert "secret" not in result.stdout + result.stderr


def test_a_command_is_submitted_as_an_argument_and_never_from_the_environment():
    result = bash(
        MULTINODE,
        "submit",
        "--dry-run",
        "--command",
        "echo 'it is' && true",
        COMMAND="touch elsewhere",
    )
    assert result.stdout.splitlines()[0] == "echo 'it is' && true"
    assert (
        "elsewhere" not in bash(MULTINODE, "submit", "--dry-run", COMMAND="touch elsewhere").stdout
    )
    result = bash(MULTINODE, "submit", "--dry-run", "--command", "true", "--train.seed", "3")
    assert result.stderr == "error: --command takes one shell command, and no other flags\n"


def test_slurm_starts_a_head_and_workers_and_submits():
    result = bash("scripts/train_swap_slurm.sbatch", "7b", "--train.seed", "3", DRY_RUN="1")
    head, worker, *submission = result.stdout.splitlines()
    for line, subcommand in ((head, "head"), (worker, "worker")):
        words = shlex.split(line)
        assert words[0] == "srun" and {"--nodes=1", "--ntasks=1"} < set(words)
        assert words[-4:] == ["bash", MULTINODE, subcommand, "--block"]
    args, _ = parse_submission("\n".join(submission))
    assert (args.actor.num_nodes, args.actor.num_gpus_per_node, args.train.seed) == (2, 8, 3)


@pytest.mark.parametrize("profile", ["cpu", "gpu"])
def test_supervised_training_is_launched_with_flags_that_exist(profile):
    from deepspeed.launcher.runner import parse_args

    variables = {
        "MODEL": "some/model",
        "DATA": "rows.jsonl",
        "OUTPUT": "elsewhere",
        "EPOCHS": "2",
        "PROFILE": profile,
    }
    variables |= {
        "LEARNING_RATE": "3e-6",
        "MICRO_BATCH": "2",
        "MASTER_PORT": "29501",
        "CUDA_VISIBLE_DEVICES": "",
    }
    output = bash(
        "scripts/train_sft_deepspeed.sh", "--dry-run", "--train.seed", "3", **variables
    ).stdout
    launcher, *words = shlex.split(output)
    launch = parse_args(words)
    assert (launcher, launch.module, launch.user_script) == ("deepspeed", True, "openrlhf_swap.sft")
    assert (launch.num_gpus, launch.master_port) == ({"cpu": 1, "gpu": 8}[profile], 29501)
    args = nested(vars(stock_parser("train_sft").parse_args(launch.user_args)))
    assert (args.model.model_name_or_path, args.data.dataset) == ("some/model", "rows.jsonl")
    assert (args.data.input_key, args.data.output_key, args.data.input_template) == (
        "input",
        "output",
        "{}",
    )
    assert (args.train.batch_size, args.train.micro_batch_size, args.train.max_epochs) == (64, 2, 2)
    assert (args.adam.lr, args.train.seed, args.ckpt.output_dir) == (3e-6, 3, "elsewhere")
    assert args.ckpt.load_enable


def dry_sft(**variables):
    """Supervised training on visible GPUs, as far as its command."""
    given = {"MODEL": "some/model", "DATA": "rows.jsonl", "PROFILE": "gpu", **variables}
    return bash("scripts/train_sft_deepspeed.sh", "--dry-run", **given)


@pytest.mark.parametrize(
    ("visible", "gpus", "slots"), [("4,5,6,7", "4", [4, 5, 6, 7]), ("2, 6,7", "2", [2, 6])]
)
def test_supervised_training_takes_the_visible_gpus(visible, gpus, slots):
    """DeepSpeed's launcher drops CUDA_VISIBLE_DEVICES next to --num_gpus."""
    from deepspeed.launcher.runner import parse_args, parse_inclusion_exclusion

    launch = parse_args(
        shlex.split(dry_sft(CUDA_VISIBLE_DEVICES=visible, NUM_GPUS=gpus).stdout)[1:]
    )
    assert launch.num_gpus == -1  # the launcher takes only one of the two
    assert parse_inclusion_exclusion({"localhost": 8}, launch.include, launch.exclude) == {
        "localhost": slots
    }


@pytest.mark.parametrize("name", ["GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "MIG-1f5b"])
def test_supervised_training_on_gpus_that_the_launcher_cannot_name(name):
    result = dry_sft(CUDA_VISIBLE_DEVICES=f"0,{name}", NUM_GPUS="2")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == (
        f"error: CUDA_VISIBLE_DEVICES is 0,{name}; DeepSpeed's launcher needs numbers: use those of nvidia-smi\n"
    )
    assert dry_sft(CUDA_VISIBLE_DEVICES=f"0,{name}", NUM_GPUS="1").returncode == 0  # it is not used


@pytest.mark.parametrize(
    ("visible", "message"),
    [
        ({}, "this machine has 2"),
        ({"CUDA_VISIBLE_DEVICES": "5"}, "CUDA_VISIBLE_DEVICES leaves 1"),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, "CUDA_VISIBLE_DEVICES leaves 0"),
    ],
)
def test_supervised_training_on_more_gpus_than_there_are(tmp_path, monkeypatch, visible, message):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"input": "1 + 1", "output": "2"}\n' * 64)
    (tmp_path / "bin").mkdir()
    make_tool(tmp_path / "bin" / "deepspeed", "echo started")
    variables = {
        "MODEL": "m",
        "DATA": str(rows),
        "OUTPUT": str(tmp_path / "o"),
        "PROFILE": "gpu",
        **visible,
    }
    variables |= {"PATH": make_smi(tmp_path, 2), "VENV": str(tmp_path)}
    result = bash("scripts/train_sft_deepspeed.sh", NUM_GPUS="4", **variables)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == f"error: NUM_GPUS is 4, but {message}; set it to at most as many\n"

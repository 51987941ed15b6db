import ast
import os
import runpy
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest
from conftest import ROOT

from evaluation import run
from openrlhf_swap.answers import SUFFIX
from openrlhf_swap.checks import check_settings
from openrlhf_swap.config import parse_swap_arguments
from openrlhf_swap.integration import patches
from openrlhf_swap.objectives.registry import build
from openrlhf_swap.train import CPU_DEFAULTS, DEFAULTS, REWARD_FILE

PAPER = {"step_tokens": 350, "max_steps": 25, "length_coef": 1.0, "outcome_weight": 1.0, "process_weight": 0.3}
MULTINODE = "scripts/train_swap_multinode.sh"


def names(folder, pattern):
    return sorted(path.name for path in (ROOT / folder).glob(pattern))


# test.sh hands its arguments to pytest, common.sh is sourced.
SCRIPTS = sorted({*names("scripts", "*.sh"), *names("scripts", "*.sbatch")} - {"test.sh", "common.sh"})
COMMANDS = [
    f"{package}.{name.removesuffix('.py')}"
    for package in ("openrlhf_swap", "evaluation")
    for name in names(package, "*.py")
    if '\nif __name__ == "__main__":' in (ROOT / package / name).read_text(encoding="utf-8")
]


def bash(*command, **environment):
    return subprocess.run(
        ["bash", *command], capture_output=True, text=True, cwd=ROOT, env={**os.environ, **environment}, check=False
    )


@pytest.mark.parametrize("size", ["1.5b", "7b"])
def test_presets_carry_the_papers_settings_in_flags_that_exist(size):
    output = bash(f"scripts/train_swap_{size}.sh", "--dry-run", "--train.seed", "3", WANDB_KEY="secret").stdout
    assert "secret" not in output
    python, dash_m, module, *argv = shlex.split(output)
    assert (python, dash_m, module) == ("python", "-m", "openrlhf_swap.train")
    config, rest = parse_swap_arguments(argv)
    assert {name: getattr(config, name) for name in PAPER} == PAPER
    defaults = [word for pair in DEFAULTS.items() for word in pair]
    args = patches.parse_arguments([*defaults, "--reward.remote_url", str(REWARD_FILE), *rest])
    check_settings(args, build(config))
    assert args.actor.model_name_or_path.lower().endswith(size)
    assert (args.rollout.batch_size, args.rollout.n_samples_per_prompt) == (128, 16)
    assert args.train.batch_size == 128 * 16  # one on-policy update a step
    assert (args.rollout.max_new_tokens, args.rollout.temperature, args.train.num_episodes) == (12000, 0.6, 2)
    assert (args.algo.kl.init_coef, args.actor.lr_scheduler, args.actor.adam.lr) == (0, "constant", 1e-6)
    assert args.train.seed == 3


def parse_training(line):
    """Both parsers, and the checks, on a command line of the training; its SwapConfig and OpenRLHF's arguments."""
    python, dash_m, module, *argv = shlex.split(line)
    assert (python, dash_m, module) == ("python", "-m", "openrlhf_swap.train")
    config, rest = parse_swap_arguments(argv)
    defaults = [word for pair in DEFAULTS.items() for word in pair]
    args = patches.parse_arguments([*defaults, "--reward.remote_url", str(REWARD_FILE), *rest])
    check_settings(args, build(config))
    return config, args


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("size", ["1.5b", "7b"])
def test_presets_resume_and_share_every_gpu(size, nodes):
    config, args = parse_training(bash(f"scripts/train_swap_{size}.sh", "--dry-run", NUM_NODES=str(nodes)).stdout)
    assert args.ckpt.load_enable and args.ckpt.save_steps == 20
    assert (args.actor.num_nodes, args.actor.num_gpus_per_node) == (nodes, 8)
    assert args.vllm.num_engines * args.vllm.tensor_parallel_size == 8 * nodes  # what OpenRLHF asks of colocation
    assert args.train.colocate_all and args.vllm.enable_sleep and args.ds.enable_sleep
    # Each GPU gets the same number of whole micro-batches.
    assert args.train.batch_size % (8 * nodes * args.train.micro_batch_size) == 0
    assert args.ds.zero_stage == {"1.5b": 2, "7b": 3}[size]
    folder = f"outputs/swap_{size}" if nodes == 1 else str(ROOT / "outputs" / f"swap_{size}")
    assert (config.output_dir, args.ckpt.path) == (folder, f"{folder}/checkpoints")
    prompts = "data/deepscaler.jsonl" if nodes == 1 else str(ROOT / "data" / "deepscaler.jsonl")
    assert args.data.prompt_dataset == prompts


def test_presets_read_their_variables():
    variables = {"PROMPTS": "some/hub-set", "OUTPUT": "elsewhere", "MODEL": "some/model", "NUM_GPUS": "4"}
    variables |= {"MICRO_BATCH": "2", "ZERO_STAGE": "1", "SAVE_STEPS": "5", "EAGER": "0"}
    config, args = parse_training(bash("scripts/train_swap_1.5b.sh", "--dry-run", **variables).stdout)
    assert args.data.prompt_dataset == "some/hub-set"
    assert (config.output_dir, args.ckpt.output_dir) == ("elsewhere", "elsewhere/policy")
    assert args.actor.model_name_or_path == "some/model"
    assert (args.actor.num_gpus_per_node, args.vllm.num_engines) == (4, 4)
    assert (args.train.micro_batch_size, args.rollout.micro_batch_size, args.ds.zero_stage) == (2, 2, 1)
    assert (args.ckpt.save_steps, args.vllm.enforce_eager) == (5, False)


@pytest.mark.parametrize("name", ["WANDB_KEY", "WANDB_API_KEY"])
def test_the_key_of_weights_and_biases_is_shown_nowhere(name):
    result = bash("scripts/train_swap_1.5b.sh", "--dry-run", **{name: "secret"})
    assert "secret" not in result.stdout + result.stderr
    _, args = parse_training(result.stdout)
    assert args.logger.wandb.key  # OpenRLHF logs there when the flag has a value, and finds the key by itself
    assert "Weights & Biases" in result.stderr


def test_missing_prompts_name_the_command_that_makes_them(tmp_path):
    path = tmp_path / "prompts.jsonl"
    result = bash("scripts/train_swap_1.5b.sh", "--print", PROMPTS=str(path))
    assert (result.returncode, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    remedy = f"python -m openrlhf_swap.prepare --output {path}"
    assert line == f"error: PROMPTS is {path}, which is not there; make it: {remedy}"
    assert remedy.split()[2] in COMMANDS
    path.write_text('{"problem": "1 + 1", "answer": "2"}\n')
    _, args = parse_training(bash("scripts/train_swap_1.5b.sh", "--print", PROMPTS=str(path)).stdout)
    assert args.data.prompt_dataset == str(path)


@pytest.mark.parametrize(
    ("script", "variables", "message"),
    [
        ("train_swap_r1.sh", {}, "SIZE is not set; use"),
        ("train_swap_1.5b.sh", {"NUM_GPUS": "eight"}, "NUM_GPUS is eight; use a whole number of at least 1"),
        ("train_swap_1.5b.sh", {"MICRO_BATCH": "0"}, "MICRO_BATCH is 0; use a whole number of at least 1"),
        ("train_swap_1.5b.sh", {"NUM_NODES": "3"}, "NUM_NODES x NUM_GPUS x MICRO_BATCH is 24, which does not divide"),
        ("train_swap_7b.sh", {"ZERO_STAGE": "4"}, "ZERO_STAGE is 4; use"),
        ("train_swap_7b.sh", {"EAGER": "yes"}, "EAGER is yes; use"),
        ("train_swap_7b.sh", {"PROMPTS": "a/b", "NUM_NODES": "2"}, "NUM_NODES is 2, but RAY_ADDRESS names no Ray"),
        ("train_swap_multinode.sh", {}, "the subcommand is missing; use head, worker, submit, stop"),
        ("train_swap_multinode.sh head", {"PORT": "here"}, "PORT is here; use a whole number"),
        ("train_swap_multinode.sh head", {"RAY_FOLDER": "ray"}, "RAY_FOLDER is ray; use an absolute path"),
        ("train_swap_multinode.sh worker", {}, "HEAD_IP is not set; use"),
        ("train_swap_multinode.sh submit", {"SIZE": "3B"}, "SIZE is 3B; use 1.5B or 7B"),
        ("train_swap_multinode.sh stop", {"RAY_FOLDER": "/nowhere"}, "/nowhere/started.pid names no running Ray"),
        ("train_swap_slurm.sbatch", {}, "this is no SLURM job; use sbatch"),
        ("train_sft_deepspeed.sh", {}, "MODEL is not set; use"),
        ("train_sft_deepspeed.sh", {"MODEL": "m", "DATA": "d", "EPOCHS": "-1"}, "EPOCHS is -1; use"),
        ("train_sft_deepspeed.sh", {"MODEL": "m", "DATA": "d", "LEARNING_RATE": "low"}, "LEARNING_RATE is low; use"),
        ("train_sft_deepspeed.sh", {"MODEL": "m", "DATA": "d", "NUM_GPUS": "3"}, "BATCH_SIZE is 64; use a multiple"),
        ("train_sft_deepspeed.sh", {"MODEL": "m", "DATA": "d"}, "DATA is d, which is not there; use"),
        ("eval_benchmarks.sh", {}, "MODEL is not set; use"),
        ("eval_benchmarks.sh", {"MODEL": "m", "ENGINES": "many"}, "ENGINES is many; use"),
    ],
)
def test_a_bad_variable_gives_one_line(script, variables, message):
    name, *subcommand = script.split()
    result = bash(f"scripts/{name}", *subcommand, **variables)
    assert (result.returncode, result.stdout) == (2, "")
    *shown, line = result.stderr.splitlines()
    assert line.startswith(f"error: {message}")
    assert not any(text.startswith("error") for text in shown)


def parse_click(command, words):
    """A Ray command's own parser: its parameters."""
    return command.make_context(command.name, list(words)).params


def parse_ray_start(line):
    from ray.scripts.scripts import start

    words = shlex.split(line)
    assert words[:2] == ["ray", "start"]
    return parse_click(start, words[2:])


def parse_submission(output):
    """What `submit --dry-run` prints: the training, and the words that Ray runs for it."""
    from ray.dashboard.modules.job.cli import submit

    training, submission = output.splitlines()
    words = shlex.split(submission)
    assert words[:3] == ["ray", "job", "submit"]
    params = parse_click(submit, words[3:])
    assert params["address"] == "http://127.0.0.1:8265"
    return parse_training(training), params["entrypoint"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Ray's command line imports all of Ray
def test_the_nodes_of_a_cluster_start_ray():
    head = parse_ray_start(bash(MULTINODE, "head", "--dry-run", "--num-cpus", "3", NUM_GPUS="4").stdout)
    assert (head["head"], head["port"], head["num_gpus"], head["num_cpus"]) == (True, 6379, 4, 3)
    assert head["dashboard_host"] == "127.0.0.1"
    worker = parse_ray_start(bash(MULTINODE, "worker", "--dry-run", HEAD_IP="10.1.2.3", NODE_IP="10.1.2.4").stdout)
    assert (worker["head"], worker["address"], worker["num_gpus"]) == (False, "10.1.2.3:6379", 8)
    assert worker["node_ip_address"] == "10.1.2.4"


def test_a_job_is_submitted_with_the_flags_for_its_nodes():
    variables = {"SIZE": "7B", "NUM_NODES": "4", "OUTPUT": "a folder", "WANDB_KEY": "secret"}
    result = bash(MULTINODE, "submit", "--dry-run", "--train.seed", "3", **variables)
    (config, args), entrypoint = parse_submission(result.stdout)
    assert entrypoint == ("bash", str(ROOT / "a folder" / "job.sh"))
    assert (args.actor.num_nodes, args.vllm.num_engines, args.train.seed) == (4, 32, 3)
    assert args.actor.model_name_or_path.endswith("7B")
    assert config.output_dir == str(ROOT / "a folder")
    assert "secret" not in result.stdout + result.stderr


def test_slurm_starts_a_head_and_workers_and_submits():
    result = bash("scripts/train_swap_slurm.sbatch", "--train.seed", "3", DRY_RUN="1", SIZE="7B")
    head, worker, *submission = result.stdout.splitlines()
    for line, subcommand, count in ((head, "head", 1), (worker, "worker", 1)):
        words = shlex.split(line)
        assert words[0] == "srun" and f"--nodes={count}" in words and f"--ntasks={count}" in words
        assert words[-4:] == ["bash", MULTINODE, subcommand, "--block"]
    (_, args), _ = parse_submission("\n".join(submission))
    assert (args.actor.num_nodes, args.actor.num_gpus_per_node, args.train.seed) == (2, 8, 3)


@pytest.mark.parametrize("profile", ["cpu", "gpu"])
def test_supervised_training_is_launched_with_flags_that_exist(profile, monkeypatch):
    from deepspeed.launcher.runner import parse_args

    variables = {"MODEL": "some/model", "DATA": "rows.jsonl", "OUTPUT": "elsewhere", "EPOCHS": "2", "PROFILE": profile}
    variables |= {"LEARNING_RATE": "3e-6", "MICRO_BATCH": "2", "MASTER_PORT": "29501"}
    output = bash("scripts/train_sft_deepspeed.sh", "--dry-run", "--train.seed", "3", **variables).stdout
    launcher, *words = shlex.split(output)
    launch = parse_args(words)
    assert (launcher, launch.module, launch.user_script) == ("deepspeed", True, "openrlhf_swap.sft")
    assert (launch.num_gpus, launch.master_port) == ({"cpu": 1, "gpu": 8}[profile], 29501)
    monkeypatch.setattr(patches, "CLI", "openrlhf.cli.train_sft")
    args = patches.parse_arguments(launch.user_args)
    assert (args.model.model_name_or_path, args.data.dataset) == ("some/model", "rows.jsonl")
    assert (args.data.input_key, args.data.output_key, args.data.input_template) == ("input", "output", "{}")
    assert (args.train.batch_size, args.train.micro_batch_size, args.train.max_epochs) == (64, 2, 2)
    assert (args.adam.lr, args.train.seed, args.ckpt.output_dir) == (3e-6, 3, "elsewhere")
    assert args.ckpt.load_enable


def free_ports(count):
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("", 0))
        return [str(each.getsockname()[1]) for each in sockets]


@pytest.mark.slow
@pytest.mark.skipif(
    "TEST_CLUSTER" not in os.environ,
    reason="TEST_CLUSTER=1 starts a cluster; on a busy machine Ray gives up after 30 s",
)
def test_a_cluster_starts_runs_a_job_and_stops(tmp_path):
    port, dashboard, client, agent = free_ports(4)
    command = "import os, ray; ray.init(); print('found', ray.cluster_resources()['CPU'], os.environ['WANDB_API_KEY'])"
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as folder:  # the path of a socket has to be short
        settings = {"PORT": port, "DASHBOARD_PORT": dashboard, "RAY_FOLDER": folder, "NUM_GPUS": "0", "NUM_NODES": "1"}
        settings["WAIT"] = "120"
        flags = ["--num-cpus", "3", "--ray-client-server-port", client, "--dashboard-agent-listen-port", agent]
        for _ in range(3):  # Ray gives its processes 30 s to find each other, too little on a busy machine
            head = bash(MULTINODE, "head", *flags, WANDB_KEY="secret", **settings)
            if head.returncode == 0:
                break
        assert head.returncode == 0, head.stderr
        ray_pid = int(Path(folder, "started.pid").read_text())
        try:
            again = bash(MULTINODE, "head", **settings)
            assert again.returncode == 2 and f"already runs here, as process {ray_pid}" in again.stderr
            # Quotes and angle brackets have to reach the job as they are.
            line = f"{sys.executable} -c {shlex.quote(command)} && printf '%s\\n' '<it\"s done>'"
            job = bash(MULTINODE, "submit", COMMAND=line, OUTPUT=str(tmp_path), **settings)
            assert job.returncode == 0, job.stdout + job.stderr
            assert "found 3.0 secret" in job.stdout and '<it"s done>' in job.stdout
        finally:
            stopped = bash(MULTINODE, "stop", **settings)
        assert stopped.returncode == 0, stopped.stderr
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", int(dashboard)), timeout=5)


@pytest.mark.parametrize("script", SCRIPTS)
def test_help(script):
    result = bash(f"scripts/{script}", "--help", VENV=os.environ.get("VENV", str(ROOT / ".venv")))
    assert result.returncode == 0, result.stderr
    assert len(result.stdout.strip().splitlines()) >= 3
    assert "set -euo" not in result.stdout


@pytest.mark.filterwarnings("ignore:.*found in sys.modules")
@pytest.mark.parametrize("module", COMMANDS)
def test_every_command_explains_itself(module, monkeypatch, capsys):
    """In this process, where the heavy imports are paid once."""
    monkeypatch.setattr(sys, "argv", [module, "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert "usage: " in text and "--" in text.split("usage: ")[1]
    if module == "openrlhf_swap.sft":
        assert "--model.model_name_or_path" in text  # OpenRLHF's own help
    else:
        source = (ROOT / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")
        assert ast.get_docstring(ast.parse(source)).splitlines()[0] in text


def test_the_settings_reference_is_up_to_date():
    from openrlhf_swap.settings_reference import REASONS, changed_defaults, settings_reference

    written = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    assert written == settings_reference(), "python -m openrlhf_swap.settings_reference > docs/settings.md"
    stock = patches.parse_arguments([])
    changed = changed_defaults({**DEFAULTS, **CPU_DEFAULTS}, stock)
    assert {flag for flag, _, _ in changed} == set(REASONS)
    assert ("--ckpt.max_num", 2, 3) in changed and "--actor.adam.lr" not in REASONS  # 1e-6 is OpenRLHF's too


def test_setup_is_idempotent():
    assert bash("scripts/setup.sh").returncode == 0
    again = bash("scripts/setup.sh")
    assert again.returncode == 0
    (line,) = again.stdout.strip().splitlines()
    assert " is up to date (" in line


def test_setup_refuses_an_unknown_profile():
    result = bash("scripts/setup.sh", PROFILE="tpu")
    assert (result.returncode, result.stderr.strip()) == (1, "error: PROFILE is tpu; use cpu or gpu")


def test_setup_keeps_the_profiles_apart(tmp_path):
    (tmp_path / ".installed").write_text("gpu 0123\n")
    result = bash("scripts/setup.sh", PROFILE="cpu", VENV=str(tmp_path))
    assert result.returncode == 1
    assert result.stderr == (
        f"error: {tmp_path} holds the gpu profile; for cpu remove it, or set VENV to another place\n"
    )


@pytest.mark.parametrize(
    ("version", "found"), [("release 12.4, V12.4.1", "12.4"), ("release 11.8", "11.8"), (None, "missing")]
)
def test_setup_wants_the_cuda_that_torch_was_built_for(tmp_path, version, found):
    compiler = tmp_path / "bin" / "nvcc"
    compiler.parent.mkdir()
    compiler.write_text(
        f"#!/bin/bash\necho 'Cuda compilation tools, {version}'\n" if version else "#!/bin/bash\nexit 1\n"
    )
    compiler.chmod(0o755)
    result = bash("scripts/setup.sh", PROFILE="gpu", VENV=str(tmp_path / "venv"), CUDA_HOME=str(tmp_path))
    assert result.returncode == 1
    assert result.stderr.startswith(f"error: the CUDA compiler (nvcc) is {found}; torch is built for CUDA 13")
    assert not (tmp_path / "venv").exists()


def test_setup_names_the_python_it_needs(tmp_path):
    for tool in ("dirname", "sed", "cat", "sha256sum", "cut", "grep", "awk", "df"):
        (tmp_path / tool).symlink_to(shutil.which(tool))
    result = subprocess.run(
        ["/bin/bash", "scripts/setup.sh"], env={"PATH": str(tmp_path)}, capture_output=True, text=True, cwd=ROOT
    )
    assert result.returncode == 1
    assert result.stderr.startswith("error: Python 3.11 was not found; install it, or name it: PYTHON=")


def test_the_evaluation_script_carries_the_papers_settings():
    output = bash("scripts/eval_benchmarks.sh", "--dry-run", "--limit", "3", MODEL="some/model", ENGINES="2").stdout
    python, dash_m, module, *argv = shlex.split(output)
    assert (python, dash_m, module) == ("python", "-m", "evaluation.run")
    args = run.parse(argv)
    assert args.benchmarks == ["math500", "amc23", "aime24", "aime25", "olympiadbench"]
    assert (args.samples, args.temperature, args.top_p, args.max_tokens) == (16, 0.6, 0.95, 32768)
    assert (args.engines, args.limit, str(args.output)) == (2, 3, "outputs/eval/model")
    assert args.suffix == SUFFIX  # the one that openrlhf_swap.prepare puts behind each problem of the training
    bare = bash("scripts/eval_benchmarks.sh", "--dry-run", MODEL="some/model", SUFFIX="").stdout
    assert run.parse(shlex.split(bare)[3:]).suffix == ""


@pytest.mark.parametrize(
    ("gpus", "visible", "tensor_parallel", "engines"),
    [(8, None, "1", 8), (8, None, "4", 2), (8, "2,5", "1", 2), (8, "", "1", 1), (8, "-1", "1", 1), (0, None, "2", 1)],
)
def test_the_evaluation_uses_the_gpus_there_are(tmp_path, gpus, visible, tensor_parallel, engines):
    make_smi(tmp_path, gpus)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "MODEL": "m", "TENSOR_PARALLEL": tensor_parallel}
    if visible is not None:
        environment["CUDA_VISIBLE_DEVICES"] = visible
    output = bash("scripts/eval_benchmarks.sh", "--dry-run", **environment).stdout
    assert run.parse(shlex.split(output)[3:]).engines == engines


def make_smi(folder, gpus):
    """An nvidia-smi that lists so many GPUs."""
    tool = folder / "nvidia-smi"
    lines = "".join(f"echo 'GPU {n}: NVIDIA (UUID: GPU-{n})'\n" for n in range(gpus))
    tool.write_text(f"#!/bin/bash\n{lines}")
    tool.chmod(0o755)


@pytest.mark.parametrize(("gpus", "folder"), [(0, ".venv"), (1, ".venv-cpu")])
def test_quickstart_and_tests_run_without_gpus_beside_the_environment_for_them(tmp_path, gpus, folder):
    make_smi(tmp_path, gpus)
    path = f"{tmp_path}:{os.environ['PATH']}"
    script = 'source scripts/common.sh; unset VENV PROFILE; use_cpu_environment; echo "$PROFILE $VENV"'
    assert bash("-c", script, PATH=path).stdout.strip() == f"cpu {ROOT / folder}"


def test_more_gpus_than_there_are_is_said_before_ray_waits_for_them(tmp_path):
    make_smi(tmp_path, 2)
    prompts = tmp_path / "prompts.jsonl"
    prompts.touch()
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PROMPTS": str(prompts), "OUTPUT": str(tmp_path / "o")}
    result = bash("scripts/train_swap_1.5b.sh", NUM_GPUS="4", **environment)
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1] == "error: NUM_GPUS is 4, but 2 are here; set it to what there is"


def test_asking_submit_for_help_submits_nothing():
    result = bash(MULTINODE, "submit", "--help")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == bash(MULTINODE, "--help").stdout

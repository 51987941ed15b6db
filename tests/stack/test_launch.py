import os
import shlex
import signal
import socket
import time

import pytest
from support.paths import ROOT
from support.scripts import MULTINODE, bash, make_tool

from openrlhf_swap.flags.configuration import configure
from openrlhf_swap.flags.rules import check_flags, check_objective
from openrlhf_swap.process.sessions import end_session, start_session


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("train_swap_multinode.sh", "the subcommand is missing; use head, worker, submit, stop"),
        ("train_swap_multinode.sh RAY_FOLDER=ray head", "RAY_FOLDER is ray; use an absolute path"),
        ("train_swap_multinode.sh submit 3b", "the run is 3b; use 1.5b or 7b"),
        ("train_swap_multinode.sh RAY_FOLDER=/no stop", "/no/started.pid names no running Ray"),
        ("train_swap.sh", "the first argument is missing; use laptop, 1gpu, 1.5b or 7b"),
        ("train_swap_slurm.sbatch", "this is not a SLURM job; use sbatch"),
        ("../evaluation/eval_benchmarks.sh MODEL=m ENGINES=many", "ENGINES is many; use"),
    ],
)
def test_a_bad_variable_gives_one_line(script, message):
    name, *more = script.split()
    variables = dict(word.split("=") for word in more if "=" in word)
    result = bash(f"scripts/{name}", *(word for word in more if "=" not in word), **variables)
    assert result.returncode == 2
    assert result.stdout == ""
    *shown, line = result.stderr.splitlines()
    assert line.startswith(f"error: {message}")
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
    exec_word, bash_word, script, name, *flags = shlex.split(training)
    assert (exec_word, bash_word) == ("exec", "bash")
    assert script == "scripts/train_swap.sh"
    preset = ROOT / "scripts" / f"train_swap_{name}.yaml"
    run = configure(["--config", str(preset), *flags], on_cpu=False)
    check_flags(run)
    check_objective(run)
    words = shlex.split(submission)
    assert words[:3] == ["ray", "job", "submit"]
    params = submit.make_context(submit.name, words[3:]).params
    assert params["address"] == "http://127.0.0.1:8265"
    return run.args, params["entrypoint"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Ray's command line imports all of Ray
def test_the_nodes_of_a_cluster_start_ray():
    started = bash(MULTINODE, "head", "--dry-run", "--num-cpus", "3", NUM_GPUS="4")
    head = parse_ray_start(started.stdout)
    assert head["head"] is True
    assert head["port"] == 6379
    assert head["num_gpus"] == 4
    assert head["num_cpus"] == 3
    assert head["dashboard_host"] == "127.0.0.1"
    started = bash(MULTINODE, "worker", "--dry-run", HEAD_IP="10.1.2.3", NODE_IP="10.1.2.4")
    worker = parse_ray_start(started.stdout)
    assert worker["head"] is False
    assert worker["address"] == "10.1.2.3:6379"
    assert worker["num_gpus"] == 8
    assert worker["node_ip_address"] == "10.1.2.4"


def test_a_job_is_submitted_with_the_flags_for_its_nodes():
    variables = {"NUM_NODES": "4", "RAY_FOLDER": "/tmp/a folder", "WANDB_API_KEY": "secret"}
    result = bash(MULTINODE, "submit", "--dry-run", "7b", "--train.seed", "3", **variables)
    args, entrypoint = parse_submission(result.stdout)
    assert entrypoint == ("bash", "/tmp/a folder/job.sh")
    assert args.actor.num_nodes == 4
    assert args.vllm.num_engines == 32
    assert args.train.seed == 3
    assert args.actor.model_name_or_path.endswith("7B")
    assert "secret" not in result.stdout + result.stderr


def test_a_command_is_submitted_as_an_argument_and_never_from_the_environment():
    submit = (MULTINODE, "submit", "--dry-run")
    given = bash(*submit, "--command", "echo 'it is' && true", COMMAND="touch elsewhere")
    assert given.stdout.splitlines()[0] == "echo 'it is' && true"
    assert "elsewhere" not in bash(*submit, COMMAND="touch elsewhere").stdout
    result = bash(*submit, "--command", "true", "--train.seed", "3")
    assert result.stderr == "error: --command takes one shell command, and no other flags\n"


def test_slurm_starts_a_head_and_workers_and_submits():
    result = bash("scripts/train_swap_slurm.sbatch", "7b", "--train.seed", "3", DRY_RUN="1")
    head, worker, *submission = result.stdout.splitlines()
    for line, subcommand in ((head, "head"), (worker, "worker")):
        words = shlex.split(line)
        assert words[0] == "srun"
        assert {"--nodes=1", "--ntasks=1"} < set(words)
        assert words[-4:] == ["bash", MULTINODE, subcommand, "--block"]
    args, _ = parse_submission("\n".join(submission))
    assert args.actor.num_nodes == 2
    assert args.actor.num_gpus_per_node == 8
    assert args.train.seed == 3


def test_slurms_warning_reaches_the_training_and_the_job_waits_for_its_end(tmp_path):
    """Tools stand for the commands of SLURM and Ray, and for a training that saves slowly."""
    tools = tmp_path / "bin"
    (tmp_path / "ray").mkdir()
    tools.mkdir()
    started = tmp_path / "started"
    saved = tmp_path / "saved"
    make_tool(tools / "scontrol", "echo node1")
    make_tool(tools / "srun", "exec sleep 600")
    make_tool(tools / "ray", 'exec "${@: -2}"')  # the words of a job come last
    training = f"trap 'sleep 1; touch {saved}; exit 138' USR1; touch {started}; sleep 600 & wait"
    make_tool(tools / "openrlhf-swap", training)
    with socket.create_server(("127.0.0.1", 0)) as dashboard:
        settings = {
            "PATH": f"{tools}:{os.environ['PATH']}",
            "VENV": str(tmp_path),
            "RAY_FOLDER": str(tmp_path / "ray"),
            "RAY_AUTH_TOKEN": "0" * 64,
            "DASHBOARD_PORT": str(dashboard.getsockname()[1]),
            "SLURM_JOB_NODELIST": "node1",
            "SLURM_CPUS_ON_NODE": "2",
        }
        command = ["bash", "scripts/train_swap_slurm.sbatch", "laptop"]
        job = start_session(command, cwd=ROOT, env=os.environ | settings)
        try:
            while not started.exists():
                assert job.poll() is None
                time.sleep(0.1)
            job.send_signal(signal.SIGUSR1)
            assert job.wait(timeout=60) == 138
        finally:
            end_session(job)
    assert saved.exists()


NOWHERE = {"HEAD_IP": "127.0.0.1", "PORT": "1", "WAIT": "1"}


@pytest.mark.parametrize("name", ["HEAD_IP", "PORT"])
def test_a_worker_does_not_run_the_address_of_its_head(tmp_path, name):
    marker = tmp_path / "was_run"
    settings = {**NOWHERE, "RAY_FOLDER": str(tmp_path / "ray"), name: f"x;touch {marker};"}
    result = bash(MULTINODE, "worker", **settings, RAY_AUTH_TOKEN="0" * 64)
    assert result.returncode == 2
    assert result.stderr.startswith(f"error: {name} is x;touch {marker};; use ")
    assert not marker.exists()


def test_no_node_starts_without_a_token(tmp_path, monkeypatch):
    """Unless the user has said so."""
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    settings = {"HOME": str(tmp_path), "RAY_FOLDER": str(tmp_path / "ray"), **NOWHERE}
    missing = f"error: {tmp_path}/.ray/auth_token is missing, Ray's token; copy it from"
    assert bash(MULTINODE, "worker", **settings).stderr.startswith(missing)
    for more in ({"RAY_AUTH_TOKEN": "0" * 64}, {"RAY_AUTH_MODE": "disabled"}):
        refused = bash(MULTINODE, "worker", **settings, **more)
        assert refused.stderr.startswith("error: nothing answers at 127.0.0.1:1")

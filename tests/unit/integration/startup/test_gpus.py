"""What is refused before Ray starts, from plain facts; and where the facts come from."""

import copy
import re
from types import SimpleNamespace

import pytest
import torch
from support.paths import POLICY
from support.sizing import R1

from openrlhf_swap.config import RunConfig, SwapConfig
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.flags.configuration import configure
from openrlhf_swap.integration.startup import gpus

GIB = 2**30
H100 = gpus.Gpu("NVIDIA H100", 79 * GIB, 80 * GIB)
PINNED = {"weights of sleeping vLLM": 214 * GIB, "sleeping optimizer": 112 * GIB}


def test_a_machine_that_has_everything_is_left_alone():
    gpus.check_gpus([H100] * 8, 0.7)
    gpus.check_shared_memory(16 * GIB)
    gpus.check_main_memory(PINNED, 326 * GIB)
    gpus.check_main_memory({}, 0)


@pytest.mark.parametrize(
    ("check", "arguments", "message"),
    [
        (
            gpus.check_gpus,
            ([H100, gpus.Gpu("NVIDIA H100", 55 * GIB, 80 * GIB)], 0.7),
            "GPU 1 (NVIDIA H100) has 55.0 of 80.0 GiB free, but vLLM takes 70% (--vllm.gpu_memory_utilization): end "
            "the processes that nvidia-smi shows on it, or choose others with CUDA_VISIBLE_DEVICES",
        ),
        (
            gpus.check_shared_memory,
            (64 * 2**20,),
            "/dev/shm has 0.1 GiB free, but Ray and NCCL need at least 1.0 for several GPUs: enlarge it (docker run "
            "--shm-size=16g)",
        ),
        (
            gpus.check_main_memory,
            (PINNED, 325 * GIB),
            "325.0 GiB of main memory are available, but the run keeps 326.0 there (weights of sleeping vLLM 214.0, "
            "sleeping optimizer 112.0); openrlhf-swap plan --node-memory 325 with these flags "
            "names some that fit",
        ),
    ],
)
def test_what_cannot_work_is_one_line(check, arguments, message):
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        check(*arguments)


def test_the_memory_that_a_run_pins_is_the_plans(arguments):
    args = copy.deepcopy(arguments)
    args.actor.model_name_or_path, args.actor.num_gpus_per_node, args.vllm.num_engines = R1 + "1.5B", 8, 8
    args.train.colocate_all = args.vllm.enable_sleep = args.ds.enable_sleep = True
    args.data.max_len = 14_000
    run = SimpleNamespace(args=args, method=SwapConfig(), run=RunConfig())
    # By hand in tests/unit/sizing/test_host_memory.py.
    expected = {"weights of sleeping vLLM": 8 * 4192 * 2**20, "sleeping optimizer": 24 * GIB}
    assert gpus.pinned_memory(run) == expected
    args.actor.model_name_or_path = "no/such-model"
    assert gpus.pinned_memory(run) == {}


@pytest.mark.parametrize(
    ("colocate_all", "colocate_actor_ref", "kl", "needed"),
    [(True, False, 0.0, 2), (False, False, 0.0, 4), (False, False, 0.1, 6), (False, True, 0.1, 4)],
)
def test_gpus_that_are_not_there_are_said_before_ray_waits_for_them(
    monkeypatch, colocate_all, colocate_actor_ref, kl, needed
):
    part = SimpleNamespace(num_nodes=1, num_gpus_per_node=2)
    args = SimpleNamespace(
        actor=part,
        ref=part,
        vllm=SimpleNamespace(num_engines=2, tensor_parallel_size=1),
        train=SimpleNamespace(colocate_all=colocate_all, colocate_actor_ref=colocate_actor_ref),
        algo=SimpleNamespace(kl=SimpleNamespace(init_coef=kl)),
    )
    monkeypatch.setattr(torch.cuda, "device_count", lambda: needed - 1)
    with pytest.raises(ConfigError, match=f"^the run takes {needed} GPUs .* but {needed - 1} are here"):
        gpus.read_gpus(args)


def test_cudas_own_reason_reaches_the_line_from_the_process_that_asks_it(monkeypatch):
    run = configure(["--actor.model_name_or_path", str(POLICY), "--actor.num_gpus_per_node", "1"], on_cpu=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(ConfigError, match=r"^the GPUs cannot be used \(.+\); see nvidia-smi"):
        gpus.check(run)
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    gpus.check(run)


SHARED = ["--actor.model_name_or_path", R1 + "1.5B", "--train.colocate_all", "--vllm.enable_sleep"]
SHARED += ["--vllm.gpu_memory_utilization", "0.7", "--data.max_len", "14000", "--rollout.max_new_tokens", "12000"]
LEAVES = "the optimizer leaves the GPU while vLLM generates:"


@pytest.mark.parametrize(
    ("flags", "gpu", "sleeps", "says"),
    [
        (["--ds.enable_sleep"], 80, False, "the optimizer stays on the GPU, which holds it beside vLLM with"),
        (["--ds.enable_sleep"], 24, True, LEAVES + " both do not fit into 24.0"),
        (["--ds.enable_sleep", "--actor.model_name_or_path", "no/model"], 80, True, LEAVES + " --actor.model_name"),
        ([], 24, False, ""),
    ],
)
def test_the_optimizer_stays_where_both_fit(flags, gpu, sleeps, says, capsys):
    placed = gpus.place_optimizer(configure([*SHARED, *flags], on_cpu=False), gpu * GIB)
    assert placed.args.ds.enable_sleep == sleeps
    assert placed.args.vllm.gpu_memory_utilization <= 0.7
    assert capsys.readouterr().out.startswith(f"[swap] {says}" if says else "")

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
from openrlhf_swap.integration.startup import preflight

GIB = 2**30
PINNED = {"weights of sleeping vLLM": 214 * GIB, "sleeping optimizer": 112 * GIB}


def test_main_memory_that_does_not_hold_what_is_pinned_is_one_line():
    preflight.check_main_memory(PINNED, 326 * GIB)
    preflight.check_main_memory({}, 0)
    message = (
        "325.0 GiB of main memory are available, but the run keeps 326.0 there (weights of sleeping vLLM 214.0, "
        "sleeping optimizer 112.0); openrlhf-swap plan --node-memory 325 with these flags names some that fit"
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        preflight.check_main_memory(PINNED, 325 * GIB)


def test_the_memory_that_a_run_pins_is_the_plans(arguments):
    args = copy.deepcopy(arguments)
    args.actor.model_name_or_path, args.actor.num_gpus_per_node, args.vllm.num_engines = R1 + "1.5B", 8, 8
    args.train.colocate_all = args.vllm.enable_sleep = args.ds.enable_sleep = True
    args.data.max_len = 14_000
    run = SimpleNamespace(args=args, method=SwapConfig(), run=RunConfig())
    # By hand in tests/unit/sizing/test_host_memory.py.
    expected = {"weights of sleeping vLLM": 8 * 4192 * 2**20, "sleeping optimizer": 24 * GIB}
    assert preflight.pinned_memory(run) == expected
    args.actor.model_name_or_path = "no/such-model"
    assert preflight.pinned_memory(run) == {}


@pytest.mark.parametrize(("colocate_all", "needed"), [(True, 2), (False, 4)])
def test_gpus_that_are_not_there_are_said_before_ray_waits_for_them(monkeypatch, colocate_all, needed):
    flags = ["--actor.model_name_or_path", str(POLICY), "--actor.num_gpus_per_node", "2", "--vllm.num_engines", "2"]
    run = configure([*flags, *["--train.colocate_all"] * colocate_all], on_cpu=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: needed - 1)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(ConfigError, match=f"^the run takes {needed} GPUs .* but {needed - 1} are here"):
        preflight.check_gpus(run)
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    assert preflight.check_gpus(run) is run


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
    placed = preflight.place_optimizer(configure([*SHARED, *flags], on_cpu=False), gpu * GIB)
    assert placed.args.ds.enable_sleep == sleeps
    assert placed.args.vllm.gpu_memory_utilization <= 0.7
    assert capsys.readouterr().out.startswith(f"[swap] {says}" if says else "")

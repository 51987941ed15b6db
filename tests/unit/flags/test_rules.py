"""Flags that need a package, and flags that cannot share GPUs: found out before a GPU is taken."""

import sys

import pytest
import torch
from transformers import get_scheduler

from openrlhf_swap.config import RunConfig, SwapConfig
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.flags.rules import checked_arguments
from openrlhf_swap.flags.values import SCHEDULERS

GOOD = ["--actor.model_name_or_path", "m", "--data.prompt_dataset", "d", "--data.label_key", "a"]
GOOD += ["--actor.num_gpus_per_node", "2", "--vllm.num_engines", "2", "--rollout.micro_batch_size", "2"]
KL = ["--algo.kl.init_coef", "0.1"]
TOGETHER = ["--train.colocate_all"]


def accepted(*flags, on_cpu=False):
    return checked_arguments([*GOOD, *flags], SwapConfig(), RunConfig(), on_cpu)


def refusal(*flags):
    with pytest.raises(ConfigError) as refused:
        accepted(*flags)
    return str(refused.value)


@pytest.mark.parametrize(
    ("flags", "places"),
    [
        ([], (1, 2)),
        (["--actor.num_nodes", "2"], (2, 2)),
        (["--actor.num_gpus_per_node=4"], (1, 4)),
        (["--ref.num_gpus_per_node", "1"], (1, 1)),
        (["--ref.num_nodes", "4"], (4, 2)),
    ],
)
def test_the_reference_model_takes_as_many_gpus_as_the_actor_unless_told(flags, places):
    ref = accepted(*KL, *flags).ref
    assert (ref.num_nodes, ref.num_gpus_per_node) == places


@pytest.mark.parametrize("flag", ["--train.colocate_all", "--train.colocate_actor_ref"])
def test_a_reference_model_on_the_actors_gpus_takes_as_many(flag):
    accepted(flag, *KL)
    assert refusal(flag, *KL, "--ref.num_gpus_per_node", "1") == (
        f"--ref.num_nodes is 1 and --ref.num_gpus_per_node is 1; with {flag} the reference model has the actor's 1 "
        "and 2: leave them out"
    )
    accepted(flag, "--ref.num_gpus_per_node", "1")  # there is none


def test_engines_on_the_actors_gpus_take_as_many():
    accepted(*TOGETHER, "--vllm.num_engines", "1", "--vllm.tensor_parallel_size", "2")
    assert refusal(*TOGETHER, "--vllm.num_engines", "1") == (
        "--actor.num_nodes x --actor.num_gpus_per_node is 2 and --vllm.num_engines x --vllm.tensor_parallel_size is "
        "1; with --train.colocate_all both must be equal"
    )
    accepted("--vllm.num_engines", "1")


def test_weights_do_not_travel_over_gloo_within_a_gpu():
    gloo = ["--vllm.sync_backend", "gloo"]
    assert refusal(*TOGETHER, *gloo).startswith("--vllm.sync_backend is gloo with --train.colocate_all; ")
    accepted(*TOGETHER)
    accepted(*gloo)
    accepted(*TOGETHER, on_cpu=True)  # where it is the default


@pytest.mark.parametrize("flag", [["--algo.kl.use_loss"], ["--algo.kl.target", "0.1"]])
def test_a_penalty_without_a_coefficient_is_refused(flag):
    assert refusal(*flag) == (
        f"{flag[0]} does nothing where --algo.kl.init_coef is 0, as by default here: give a coefficient such as 1e-3 "
        "as well, or leave it out"
    )
    accepted(*flag, *KL)


def test_an_evaluation_that_would_never_take_place_is_refused():
    assert refusal("--eval.dataset", "d") == (
        "--eval.dataset is d, which nothing would be evaluated on: give --eval.steps, the number of training steps "
        "between evaluations, as well"
    )
    accepted("--eval.dataset", "d", "--eval.steps", "5")


def test_names_of_adapted_modules_are_names():
    lora = ["--ds.lora.rank", "8", "--ds.lora.target_modules"]
    assert refusal(*lora, "all-linear") == (
        "--ds.lora.target_modules is all-linear, which PEFT takes for a module's name in a list: leave it out"
    )
    accepted(*lora, "q_proj", "v_proj")
    accepted(*lora[:2])


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_that_is_accepted_can_be_made(name):
    # As OpenRLHF 0.11.2 makes it.
    more = {"min_lr_rate": 0.1} if name in ("cosine_with_min_lr", "cosine_warmup_with_min_lr") else {}
    accepted("--actor.lr_scheduler", name)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])
    get_scheduler(name, optimizer, num_warmup_steps=1, num_training_steps=9, scheduler_specific_kwargs=more)


@pytest.mark.parametrize(
    ("flag", "module", "package"),
    [
        ("--vllm.sync_with_ray", "cupy", "cupy-cuda13x"),
        ("--ds.use_liger_kernel", "liger_kernel", "liger-kernel"),
    ],
)
def test_a_package_that_is_not_installed_is_named(monkeypatch, tmp_path, flag, module, package):
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, module, None)  # as if it were not there
        refused = refusal(flag)
    assert refused == f"{flag} needs {module}, which is not installed: pip install {package}, or leave it out"
    (tmp_path / f"{module}.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    accepted(flag)

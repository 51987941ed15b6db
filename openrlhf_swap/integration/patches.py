"""The seams: what is replaced in OpenRLHF, where, and for which version.

| seam | replaced by | why there |
|---|---|---|
| `openrlhf.trainer.ppo_trainer.PPOTrainer` | `SwapTrainer` | the CLI imports it inside `train()` |
| `openrlhf.trainer.ppo_trainer_async.PPOTrainerAsync` | `SwapTrainerAsync` | the same |
| `GenerateSamplesActor`, `TrainingActor` there | `SwapGenerateActor`, `SwapTrainingActor` | in that trainer's actor |
| `openrlhf.trainer.ray.ppo_actor.PolicyModelActor` | `IntrinsicRewardActor` | the CLI imports it at its top |
| `openrlhf.utils.get_strategy` | the same, with `args.swap` set | the strategy travels to every actor |
| `openrlhf.trainer.ray.vllm_engine.RolloutRayActor` | `SwapRolloutActor` | rollouts that can be drawn again |
| the same, on CPU | `CpuRolloutActor` | weight sync without CUDA, too |
| `openrlhf.trainer.ray.vllm_worker_wrap.WorkerWrap` | `SwapWorker`, `CpuWorker` | vLLM imports it by name |
| `openrlhf.trainer.ray.launcher.ReferenceModelActor` | `SwapReferenceActor` | prepares its process |
| `openrlhf.utils.deepspeed.DeepspeedStrategy` | `SwapStrategy` | attention and Adam that need no compiler |
| `openrlhf.trainer.ray.ppo_actor.ActorPPOTrainer` | `SwapPolicyTrainer` | in the policy's actor, while it is made |
| `openrlhf.trainer.ray.ppo_actor.Actor` | `ChunkedActor` | the same; log-probabilities in chunks |
| `openrlhf.trainer.ray.launcher.Actor` | `ChunkedActor` | in the reference model's actor, while it is made |

Methods are replaced on single objects, where no class of ours can stand: two of DeepSpeed's stage 3 optimizer
(`policy_trainer.py`, `strategy.py`), `named_parameters` of a model with adapters while it travels (`lora.py`), and
`forward` of a model's head while it gives log-probabilities (`actor.py`).

Names that a Ray actor looks up (the two of the asynchronous trainer in its actor, the last three of the table in the
policy's and the reference model's) are rebound in it, all others in the driver: a patch there of a class that lives in
a Ray actor would do nothing. The replacements are importable subclasses, so workers find them by name.
"""

from __future__ import annotations

import importlib
import os
import runpy
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

from openrlhf_swap.config import RunConfig, SwapConfig
from openrlhf_swap.errors import CompatibilityError
from openrlhf_swap.flags.stock import check_version

CLI = "openrlhf.cli.train_ppo_ray"


def check_versions() -> None:
    """Look at what the seams were written for: the version of OpenRLHF, and memory that processes can share.

    Raises:
        CompatibilityError: with the remedy.
    """
    check_version()
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        if "expandable_segments:true" in (value := os.environ.get(name, "")).lower().replace(" ", ""):
            raise CompatibilityError(
                f"{name} is {value}; weights in expandable segments cannot be handed to vLLM over CUDA IPC: unset "
                "expandable_segments"
            )


def undecorated(actor_class: Any) -> Any:
    """The plain class under a `@ray.remote` class: the decorated one cannot be subclassed."""
    return actor_class.__ray_metadata__.modified_class.__ray_actor_class__


def run(argv: list[str], config: SwapConfig, run_config: RunConfig, replacements: dict[str, Any]) -> None:
    """Run OpenRLHF's training CLI with our classes in the places of its own.

    Args:
        argv: OpenRLHF's arguments.
        config: the method's settings, which reach every actor as `strategy.args.swap`.
        run_config: the run's, as `strategy.args.swap_run`.
        replacements: dotted name of a class in OpenRLHF -> what stands for it.
    """
    from openrlhf import utils

    stock_strategy = utils.get_strategy

    def get_strategy(args: SimpleNamespace) -> object:
        args.swap, args.swap_run = config, run_config
        return stock_strategy(args)

    with rebound({**replacements, "openrlhf.utils.get_strategy": get_strategy}), _as_command_line(argv):
        runpy.run_module(CLI, run_name="__main__", alter_sys=True)


@contextmanager
def _as_command_line(argv: list[str]) -> Iterator[None]:
    with mock.patch.object(sys, "argv", ["openrlhf_swap.train", *argv]):
        yield


@contextmanager
def rebound(replacements: Mapping[str, type | Callable[..., Any]]) -> Iterator[None]:
    """Meanwhile each dotted name stands for its replacement."""
    originals = {}
    for dotted, replacement in replacements.items():
        module_name, name = dotted.rsplit(".", 1)
        module = importlib.import_module(module_name)
        originals[dotted] = (module, name, getattr(module, name))
        setattr(module, name, replacement)
    try:
        yield
    finally:
        for module, name, original in originals.values():
            setattr(module, name, original)

"""The names, modules and variables that this project replaces in other packages: the table, and what applies it.

A method of one object is replaced where the object is, by `packages.versions.replace`, which checks versions, too.
"""

import importlib
import os
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple

from openrlhf_swap.errors import CompatibilityError
from openrlhf_swap.packages import versions
from openrlhf_swap.packages.versions import replace


class Group(NamedTuple):
    """What the replacements of a group have in common."""

    kind: str  # of their targets
    where: str  # the processes in which they are in force, and for how long
    package: str | None  # whose version in `VERSIONS` they are written for; None where any will do
    why: str


# Kinds: names in modules, modules, environment variables.
NAME, MODULE, VARIABLE = "NAME", "MODULE", "VARIABLE"
EVERY = "every process that imports `openrlhf_swap.integration`"
NO_FLASH = f"{EVERY}, without flash-attn"
EVERY_CPU = f"{EVERY}, on CPU"
NO_CLUSTER = f"{EVERY}, on CPU without RAY_ADDRESS"
CPU_COMMAND = "commands that train or generate and the processes they start, on CPU"
DRIVER = "driver, while OpenRLHF's command runs"
SFT = "`openrlhf_swap.sft`, while OpenRLHF's command runs"
TRAINER = "trainer, while it is constructed"
ASYNC_TRAINER = "asynchronous trainer, while it is constructed"
CPU_RANKS_MEET = "policy and reference model, on CPU, while their ranks meet"
POLICY_LOADS = "policy, while its model is loaded"
STAGE_3_SLEEPS = "policy under ZeRO-3, while its optimizer is moved to main memory"
REFERENCE_LOADS = "reference model, while it is loaded"
ENGINE_STARTS = "rollout actor, while its engine starts"
TRAINS = "driver and the processes it starts"
TRAINS_ALONE = "driver and the processes it starts, without RAY_ADDRESS"

# Dotted names and their replacements, below `openrlhf_swap.integration` where they begin with a dot; a VARIABLE's is
# its value.
PATCHES: dict[Group, dict[str, str]] = {
    Group(NAME, DRIVER, "openrlhf", "OpenRLHF's command imports the name and starts actors of the class"): {
        "openrlhf.trainer.ppo_trainer.PPOTrainer": ".driver.trainer.SwapTrainer",
        "openrlhf.trainer.ppo_trainer_async.PPOTrainerAsync": ".driver.async_trainer.SwapTrainerAsync",
        "openrlhf.trainer.ray.ppo_actor.PolicyModelActor": ".policy.actors.IntrinsicRewardActor",
        "openrlhf.trainer.ray.launcher.ReferenceModelActor": ".policy.actors.SwapReferenceActor",
        "openrlhf.trainer.ray.vllm_engine.RolloutRayActor": ".generation.rollout_actor.EngineFactory",
    },
    Group(NAME, DRIVER, "openrlhf", "the policy's process starts while engines do; they sleep before it loads"): {
        "openrlhf.trainer.ray.vllm_engine.batch_vllm_engine_call": ".startup.launch.leave_awake"
    },
    Group(NAME, DRIVER, "openrlhf", "its `args` carry our settings to every actor"): {
        "openrlhf.utils.get_strategy": ".startup.launch.run_openrlhf"
    },
    Group(NAME, DRIVER, "openrlhf", "installed attention, Adam without a compiler"): {
        "openrlhf.utils.deepspeed.DeepspeedStrategy": ".policy.strategy.SwapStrategy"
    },
    Group(NAME, SFT, "openrlhf", "installed attention, Adam without a compiler"): {
        "openrlhf.utils.deepspeed.DeepspeedStrategy": ".policy.strategy.SwapStrategy"
    },
    Group(NAME, TRAINER, "openrlhf", "every setting but the key, runs that resume"): {
        "openrlhf.trainer.ppo_trainer.WandbLogger": ".driver.trackers.SwapWandb"
    },
    Group(NAME, ASYNC_TRAINER, "openrlhf", "it starts actors of the classes that it finds in its own process"): {
        "openrlhf.trainer.ppo_trainer_async.GenerateSamplesActor": ".driver.async_trainer.SwapGenerateActor",
        "openrlhf.trainer.ppo_trainer_async.TrainingActor": ".driver.async_trainer.SwapTrainingActor",
    },
    Group(NAME, POLICY_LOADS, "openrlhf", "log-probabilities in chunks of tokens; updates that DeepSpeed completes"): {
        "openrlhf.trainer.ray.ppo_actor.Actor": ".policy.chunked_actor.ChunkedActor",
        "openrlhf.trainer.ray.ppo_actor.ActorPPOTrainer": ".policy.trainer.SwapPolicyTrainer",
    },
    Group(NAME, REFERENCE_LOADS, "openrlhf", "log-probabilities in chunks of tokens"): {
        "openrlhf.trainer.ray.launcher.Actor": ".policy.chunked_actor.ChunkedActor"
    },
    Group(NAME, STAGE_3_SLEEPS, "deepspeed", "DeepSpeed only moves its own Adam's moments"): {
        "deepspeed.ops.adam.fused_adam.FusedAdam": "torch.optim.AdamW"
    },
    Group(NAME, EVERY_CPU, "torch", "OpenRLHF calls it, and there is no CUDA"): {
        f"torch.cuda.{name}": f".runtime.cpu.{name}"
        for name in ("current_device", "set_device", "synchronize", "empty_cache", "current_stream")
    },
    Group(NAME, CPU_RANKS_MEET, "openrlhf", "the device mesh is on the CPU"): {
        "openrlhf.utils.deepspeed.deepspeed.init_device_mesh": ".runtime.cpu.init_cpu_mesh"
    },
    Group(
        NAME, ENGINE_STARTS, "vllm", "vLLM would look at the model's class in a process of its own: 9 s of imports"
    ): {"vllm.model_executor.models.registry._run_in_subprocess": ".generation.rollout_actor.run_here"},
    Group(MODULE, NO_FLASH, "openrlhf", "OpenRLHF needs them; compiling flash-attn takes hours"): {
        f"flash_attn.{name}": ".runtime.flash_attention"
        for name in ("bert_padding", "utils.distributed", "ops.triton.cross_entropy")
    },
    Group(VARIABLE, EVERY, None, "FlashInfer's sampler is compiled with nvcc when an engine starts"): {
        "VLLM_USE_FLASHINFER_SAMPLER": "0"
    },
    Group(VARIABLE, EVERY_CPU, None, "DeepSpeed's accelerator"): {"DS_ACCELERATOR": "cpu"},
    # Ray reads it when it is imported, on Linux too, whatever the name says.
    Group(VARIABLE, NO_CLUSTER, None, "Ray listens on 127.0.0.1 only"): {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"},
    Group(VARIABLE, CPU_COMMAND, None, "nothing is compiled, no warnings about forks"): {
        "TORCHDYNAMO_DISABLE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    },
    Group(VARIABLE, CPU_COMMAND, None, "no copies of tensors; `num_gpus=0` hides no device"): {
        "RAY_ENABLE_ZERO_COPY_TORCH_TENSORS": "1",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    },
    Group(VARIABLE, CPU_COMMAND, None, "another process would repeat all imports, on fewer cores"): {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0"
    },
    # Matrix products then take longer with two threads than with one.
    Group(VARIABLE, CPU_COMMAND, None, "spinning threads take cores from the processes they wait for"): {
        "OMP_WAIT_POLICY": "PASSIVE"
    },
    Group(VARIABLE, CPU_COMMAND, None, "oneDNN keeps 1,024 programs for products of other sizes: 290 MiB"): {
        "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64"
    },
    Group(VARIABLE, TRAINS, None, "a killed Ray actor takes along what it has started, such as vLLM's engine"): {
        "RAY_process_group_cleanup_enabled": "true"
    },
    # Ray's own 60 s are for a network; here only a killed driver ends the server.
    Group(VARIABLE, TRAINS_ALONE, None, "Ray's agents end at once with a killed driver"): {
        "RAY_gcs_rpc_server_reconnect_timeout_s": "5"
    },
    Group(VARIABLE, TRAINS_ALONE, None, "Ray's GCS would keep a record of every call: 0.2 MiB more at each step"): {
        "RAY_task_events_report_interval_ms": "0"
    },
}


def check_versions() -> None:
    """Check what the replacements are written for: the versions of packages, and memory that processes can share.

    Raises CompatibilityError with the remedy.
    """
    for package in versions.VERSIONS:
        versions.check_version(package)
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        settings = (value := os.environ.get(name, "")).lower().replace(" ", "")
        if "expandable_segments:true" in settings:
            raise CompatibilityError(
                f"{name} is {value}; weights in expandable segments cannot be handed to vLLM over CUDA IPC: unset "
                "expandable_segments"
            )


def undecorated(actor_class: Any) -> Any:
    """The plain class under a `@ray.remote` class: the decorated one cannot be subclassed."""
    return actor_class.__ray_metadata__.modified_class.__ray_actor_class__


def installed(where: str, computed: Mapping[str, Any] | None = None) -> ExitStack:
    """Put the names for `where` in force until what is returned is closed, as a `with` block does.

    A class that takes the place of a Ray actor's becomes one, with the same options. `computed` has the replacements
    of targets that depend on the run. Raises CompatibilityError when a package has another version than they are
    written for.
    """
    with ExitStack() as restoring:
        for package, targets in _find(NAME, where):
            for target, replacement in targets.items():
                module, name = target.rsplit(".", 1)
                owner = importlib.import_module(module)
                value = (computed or {}).get(target) or _in_place_of(getattr(owner, name), replacement)
                restoring.callback(replace(owner, name, value, package))
        return restoring.pop_all()


def install(where: str) -> None:
    """Put the variables, modules and names for `where` in force for good; variables that are set stay.

    Raises CompatibilityError as `installed` does.
    """
    for name, value in variables(where).items():
        os.environ.setdefault(name, value)
    for package, targets in _find(MODULE, where):
        versions.check_version(package or "")
        sys.modules.update({name: importlib.import_module(value, __package__) for name, value in targets.items()})
    installed(where)


def variables(where: str) -> dict[str, str]:
    """The environment variables for `where`."""
    return {name: value for _, targets in _find(VARIABLE, where) for name, value in targets.items()}


def _find(kind: str, where: str) -> list[tuple[str | None, dict[str, str]]]:
    return [(group.package, targets) for group, targets in PATCHES.items() if group[:2] == (kind, where)]


def _in_place_of(original: Any, replacement: str) -> Any:
    module, name = replacement.rsplit(".", 1)
    value = getattr(importlib.import_module(module, __package__), name)
    if not hasattr(original, "__ray_metadata__"):
        return value
    import ray

    options = original._default_options
    return ray.remote(**options)(value) if options else ray.remote(value)

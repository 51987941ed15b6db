"""The tables of what this project replaces in other packages, and the functions that apply them.

A method of one object is replaced where the object is, by `packages.versions.replace`, which also
checks the version.
"""

import os
from collections.abc import Mapping
from contextlib import ExitStack
from pkgutil import resolve_name
from typing import Any

from openrlhf_swap.errors import CompatibilityError
from openrlhf_swap.packages import versions
from openrlhf_swap.packages.versions import replace
from openrlhf_swap.process.private_ray import LOOPBACK_ONLY

# Processes in which replacements are in force, and for how long.
EVERY = "every process that imports `openrlhf_swap.integration`"
EVERY_CPU = f"{EVERY}, on CPU"
NO_CLUSTER = f"{EVERY}, on CPU without RAY_ADDRESS"
CPU_COMMAND = "commands that train or generate and the processes they start, on CPU"
ENGINES_ARE_MADE = "driver, while OpenRLHF starts the engines"
CPU_RANKS_MEET = "policy and reference model, on CPU, while their ranks meet"
POLICY_LOADS = "policy, while its model is loaded"
STAGE_3_SLEEPS = "policy under ZeRO-3, while its optimizer is moved to main memory"
REFERENCE_LOADS = "reference model, while it is loaded"
ENGINE_STARTS = "rollout actor, while its engine starts"
CPU_ENGINE = "vLLM's engine, on CPU"
TRAINS = "driver and the processes it starts"
TRAINS_ALONE = "driver and the processes it starts, without RAY_ADDRESS"

# Dotted name -> its replacement, which stands below `openrlhf_swap.integration` if it begins with a
# dot. A replacement is written for the version in `VERSIONS` of the package that the name is from.
REPLACEMENTS: dict[str, dict[str, str]] = {
    ENGINES_ARE_MADE: {
        # `engine.start` computes it: OpenRLHF's function has no other place for arguments of ours.
        "openrlhf.trainer.ray.vllm_engine.RolloutRayActor": ".engine.actor.SwapRolloutActor"
    },
    POLICY_LOADS: {
        "openrlhf.trainer.ray.ppo_actor.Actor": ".policy.chunked_actor.ChunkedActor",
        "openrlhf.trainer.ray.ppo_actor.ActorPPOTrainer": ".policy.actors.SwapPolicyTrainer",
    },
    REFERENCE_LOADS: {"openrlhf.trainer.ray.launcher.Actor": ".policy.chunked_actor.ChunkedActor"},
    STAGE_3_SLEEPS: {  # DeepSpeed only moves its own Adam's moments
        "deepspeed.ops.adam.fused_adam.FusedAdam": "torch.optim.AdamW"
    },
    EVERY_CPU: {  # OpenRLHF calls these, and there is no CUDA
        f"torch.cuda.{name}": f".runtime.cpu.{name}"
        for name in ("current_device", "set_device", "synchronize")
    },
    CPU_RANKS_MEET: {
        "openrlhf.utils.deepspeed.deepspeed.init_device_mesh": ".runtime.cpu.init_cpu_mesh"
    },
    ENGINE_STARTS: {  # vLLM would look at the model's class in a process of its own: 9 s of imports
        "vllm.model_executor.models.registry._run_in_subprocess": ".engine.actor.run_here"
    },
    CPU_ENGINE: {  # vLLM's took two fifths of the generation with 152,000 tokens
        "vllm.v1.sample.ops.topk_topp_sampler.TopKTopPSampler.forward_cpu": (
            ".engine.drawing.draw_tokens"
        )
    },
}

# OpenRLHF imports these, for which `.runtime.attention` stands; compiling flash-attn takes hours.
FLASH_ATTENTION = (
    "flash_attn.bert_padding",
    "flash_attn.utils.distributed",
    "flash_attn.ops.triton.cross_entropy",
)

# glibc returns a freed block of more than 32 MiB to the kernel, which clears every page of the next
# one: a quarter of the CPU time of a 0.5B's forward pass. With these limits, in bytes, a process
# keeps freed blocks of up to 1 GB, and about as much at the end of its heap. The policy returns
# them before each micro-batch of a pass, before and after an update, and where it has sent its
# weights (`runtime.cpu.release_freed_blocks`).
KEEPS_FREED_BLOCKS = {
    "MALLOC_MMAP_THRESHOLD_": "1000000000",
    "MALLOC_TRIM_THRESHOLD_": "1000000000",
}

VARIABLES: dict[str, dict[str, str]] = {
    EVERY: {"VLLM_USE_FLASHINFER_SAMPLER": "0"},  # it is compiled with nvcc when an engine starts
    EVERY_CPU: {"DS_ACCELERATOR": "cpu"},
    NO_CLUSTER: LOOPBACK_ONLY,
    CPU_COMMAND: {
        "TORCHDYNAMO_DISABLE": "1",  # nothing is compiled
        "TOKENIZERS_PARALLELISM": "false",  # no warnings about forks
        "RAY_ENABLE_ZERO_COPY_TORCH_TENSORS": "1",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # `num_gpus=0` hides no device
        # Another process would repeat all imports, on fewer cores.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        # Spinning threads take cores from the processes they wait for: two then take longer for
        # products than one.
        "OMP_WAIT_POLICY": "PASSIVE",
        # oneDNN would keep 1,024 programs for products of other sizes: 290 MiB.
        "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64",
        **KEEPS_FREED_BLOCKS,
    },
    TRAINS: {
        # A killed actor takes along what it started: vLLM's engine.
        "RAY_process_group_cleanup_enabled": "true"
    },
    TRAINS_ALONE: {
        # Ray's agents end soon after a killed driver: Ray's own 60 s are for a network. A driver
        # whose head was killed has as long to say so (`startup.head`).
        "RAY_gcs_rpc_server_reconnect_timeout_s": "10",
        # A record of every call would take 0.2 MiB more at each step.
        "RAY_task_events_report_interval_ms": "0",
    },
}


def check_versions() -> None:
    """Raise CompatibilityError for other versions than `VERSIONS`, and for unshareable memory."""
    for package in versions.VERSIONS:
        versions.check_version(package)
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        value = os.environ.get(name, "")
        if "expandable_segments:true" in value.lower().replace(" ", ""):
            raise CompatibilityError(
                f"{name} is {value}; weights in expandable segments cannot be handed to vLLM over "
                "CUDA IPC: unset expandable_segments"
            )


def undecorated(actor_class: Any) -> Any:
    """Return the plain class under a `@ray.remote` class, which cannot be subclassed itself."""
    return actor_class.__ray_metadata__.modified_class.__ray_actor_class__


def installed(where: str, computed: Mapping[str, Any] | None = None) -> ExitStack:
    """Put the names for `where` in force until the returned stack is closed.

    A class that takes the place of a Ray actor becomes a Ray actor with the same options.
    `computed` has the replacements that depend on the run. Raises CompatibilityError when a package
    has another version than the replacements are written for.
    """
    with ExitStack() as restoring:
        for target, replacement in REPLACEMENTS.get(where, {}).items():
            owner_name, _, name = target.rpartition(".")
            owner = resolve_name(owner_name)
            value = (computed or {}).get(target)
            if value is None:
                value = _in_place_of(getattr(owner, name), replacement)
            package = target.partition(".")[0]
            restoring.callback(replace(owner, name, value, package))
        return restoring.pop_all()


def install(where: str) -> None:
    """Put the variables and names for `where` in force for good; variables that are set stay."""
    for name, value in VARIABLES.get(where, {}).items():
        os.environ.setdefault(name, value)
    installed(where)


def _in_place_of(original: Any, replacement: str) -> Any:
    """The object of that name; a Ray actor with the original's options, if that is an actor."""
    if replacement.startswith("."):
        replacement = f"{__package__}{replacement}"
    value = resolve_name(replacement)
    if not hasattr(original, "__ray_metadata__"):
        return value
    import ray

    options = original._default_options
    return ray.remote(**options)(value) if options else ray.remote(value)

"""Everything that this project replaces in other packages and in the interpreter: the table, and what applies it.

Tests compare the table with what processes have really replaced. A class
that OpenRLHF or vLLM takes as an argument, such as the extension of vLLM's worker, replaces nothing and is not listed.
"""

import importlib
import os
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple

from openrlhf_swap.errors import CompatibilityError
from openrlhf_swap.packages import versions
from openrlhf_swap.packages.kernels import PRODUCTS
from openrlhf_swap.packages.versions import replace


class Group(NamedTuple):
    """What the replacements of a group have in common."""

    kind: str  # of their targets; names, modules and variables are replaced from here, the rest where it is needed
    where: str  # the processes in which they are in force, and for how long
    package: str | None  # whose version in `VERSIONS` they are written for; None where any will do
    why: str


# Kinds: names in modules, attributes of single objects, modules, environment variables, registries and such.
NAME, METHOD, MODULE, VARIABLE, STATE = "NAME", "METHOD", "MODULE", "VARIABLE", "STATE"
EVERY = "every process that imports `openrlhf_swap.integration`"
NO_CUDNN = f"{EVERY} or makes a `Scorer`"
NO_BFLOAT16 = f"{EVERY} (CPU build) or makes a `Scorer`, on a processor without bfloat16 products"
NO_FLASH = f"{EVERY}, without flash-attn"
EVERY_CPU = f"{EVERY}, on CPU"
NO_CLUSTER = f"{EVERY}, on CPU without RAY_ADDRESS"
STARTS_RAY = "commands that start Ray and the processes they start, without RAY_ADDRESS"
CPU_COMMAND = "commands that train or generate and the processes they start, on CPU"
DRIVER = "driver, while OpenRLHF's command runs"
SFT = "`openrlhf_swap.sft`, while OpenRLHF's command runs"
CONSOLE = "commands that send other packages' output to a log"
TRAINER = "trainer, while it is constructed"
ASYNC_TRAINER = "asynchronous trainer, while it is constructed"
CPU_RANKS_MEET = "policy and reference model, on CPU, while their ranks meet"
POLICY_LOADS = "policy, while its model is loaded"
POLICY = "policy"
STAGE_3 = "policy under ZeRO-3"
STAGE_3_SLEEPS = "policy under ZeRO-3, while its optimizer is moved to main memory"
REFERENCE_LOADS = "reference model, while it is loaded"
LOG_PROBS = "policy and reference model, during forward passes for log-probabilities"
ENGINE_STARTS = "rollout actor, while its engine starts"
ENGINE = "rollout engine"
TRAINS = "driver and the processes it starts"
TRAINS_ALONE = "driver and the processes it starts, without RAY_ADDRESS"
TRAINS_ON_CPU = "driver and the processes it starts, on CPU"
GENERATES_ON_CPU = "commands that only generate, on CPU"
SCORING = "policy, or your process with a `Scorer`, during the forward passes of scoring"
GRADER = "grading process"
GRADES = "every process that imports `openrlhf_swap.rewards.grading`"
_STAGE_3 = "deepspeed.runtime.zero.stage3.DeepSpeedZeroOptimizer_Stage3"

# Dotted names and their replacements. A METHOD is named with a class of the objects, where that is defined. A
# replacement is a dotted name, below `openrlhf_swap.integration` where it begins with a dot; for a METHOD, of what
# makes it; for a VARIABLE or STATE, the value or, where a process computes it, words.
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
    Group(MODULE, SFT, None, "OpenRLHF's command only runs under this name"): {"__main__": "runpy"},
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
    Group(NAME, CONSOLE, None, "what is printed after the command reaches the console again"): {
        "sys.stdout": "openrlhf_swap.runs.console.quiet_console",
        "sys.stderr": "openrlhf_swap.runs.console.quiet_console",
    },
    Group(METHOD, STAGE_3, "deepspeed", "it keeps NaN gradients, and torch's Adam on the GPU"): {
        f"{_STAGE_3}._overflow_check_and_loss_scale_update": ".policy.strategy.SwapStrategy",
        f"{_STAGE_3}.offload_states": ".policy.strategy.SwapStrategy",
    },
    Group(METHOD, LOG_PROBS, "transformers", "the head returns log-probabilities instead of logits"): {
        "torch.nn.modules.linear.Linear.forward": ".policy.chunked_actor.ChunkedActor"
    },
    Group(
        NAME, ENGINE_STARTS, "vllm", "vLLM would look at the model's class in a process of its own: 9 s of imports"
    ): {"vllm.model_executor.models.registry._run_in_subprocess": ".generation.rollout_actor.run_here"},
    Group(METHOD, ENGINE, "openrlhf", "the reward function may take `end_of_thought` and `grader`"): {
        "openrlhf.utils.agent.SingleTurnAgentExecutor.reward_func": ".generation.rollout_actor.SwapRolloutActor"
    },
    Group(NAME, SCORING, None, "answer branches are attended behind the rows of a forward"): {
        f"transformers.{name}": "openrlhf_swap.scoring.branch_attention.BranchAttention"
        for name in (
            "modeling_utils.AttentionInterface.get_interface",
            "masking_utils.AttentionMaskInterface.__getitem__",
        )
    },
    Group(METHOD, SCORING, None, "recurrent layers run in pieces, whose states the branches resume"): {
        "torch.nn.modules.module.Module.forward": "openrlhf_swap.scoring.mixers.branching_mixers"
    },
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
    Group(VARIABLE, STARTS_RAY, None, "Ray runs code for whoever has its token, not for every user of the machine"): {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": "random",
    },
    Group(VARIABLE, STARTS_RAY, None, "Ray's session folder lets everybody in"): {
        "RAY_TMPDIR": "a new folder that its owner alone may enter"
    },
    Group(VARIABLE, STARTS_RAY, None, "vLLM leaves sockets and files behind"): {"TMPDIR": "the same folder"},
    Group(VARIABLE, EVERY_CPU, None, "compiled once per environment, by its own ninja"): {
        "TORCH_EXTENSIONS_DIR": "torch_extensions in the environment's folder",
        "PATH": "begins with the environment's bin",
    },
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
    Group(VARIABLE, TRAINS_ON_CPU, None, "Ray would give each process one thread"): {
        "OMP_NUM_THREADS": "the process's share of the cores"
    },
    Group(VARIABLE, GENERATES_ON_CPU, None, "vLLM leaves sockets and files behind, on GPUs, too"): {
        "TMPDIR": "a new folder, which goes with the process"
    },
    Group(VARIABLE, GENERATES_ON_CPU, None, "a cache of 1 GiB, unless you set another size"): {
        "VLLM_CPU_KVCACHE_SPACE": "1"
    },
    Group(VARIABLE, CONSOLE, None, "a log is read without a terminal"): {"RAY_COLOR_PREFIX": "0"},
    Group(VARIABLE, POLICY, None, "a pickle in a checkpoint that would run code is refused"): {
        "TORCH_FORCE_WEIGHTS_ONLY_LOAD": "1"
    },
    Group(STATE, POLICY, "deepspeed", "the classes of DeepSpeed's own checkpoints stay readable"): {
        "torch.serialization.get_safe_globals()": ".policy.checkpoints.forbid_pickles"
    },
    Group(STATE, EVERY, None, "imported modules are not searched for garbage"): {
        "gc.get_freeze_count()": "gc.freeze, until the interpreter exits"
    },
    Group(STATE, EVERY, None, "packed responses are attended without masks of length x length"): {
        "transformers.AttentionInterface": ".runtime.attention.attend",
        "transformers.AttentionMaskInterface": ".runtime.attention.bounds_or_mask",
    },
    Group(STATE, NO_CUDNN, None, "cuDNN's attention builds a plan for every new length; vLLM leaves it out, too"): {
        "torch.backends.cuda.cudnn_sdp_enabled()": "False"
    },
    Group(STATE, NO_BFLOAT16, None, "torch's own loop takes many times as long as a product in float32"): {
        f'torch.library.get_kernel("aten::{name}", "CPU")': "openrlhf_swap.packages.kernels.speed_up_products"
        for name in PRODUCTS
    },
    Group(STATE, GRADER, None, "bounded memory; Ctrl-C is left to the parent"): {
        "resource.RLIMIT_AS": "its limit of memory",
        "signal.SIGINT": "ignored",
    },
    Group(STATE, GRADES, None, "no repeated warnings"): {'logging.getLogger("math_verify").level': "ERROR"},
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
        if "pinned_max_round_threshold_mb" in settings and "pinned_max_cached_size_mb" not in settings:
            raise CompatibilityError(
                f"{name} is {value}; torch then reuses pinned blocks that are too small, and vLLM's second sleep "
                "fails: unset pinned_max_round_threshold_mb"
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

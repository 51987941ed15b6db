"""The places of a run on its machine: GPUs, main memory, and what each vLLM engine is given."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import psutil
import torch
from transformers import PretrainedConfig

from openrlhf_swap.errors import ConfigError
from openrlhf_swap.flags.configuration import Configuration
from openrlhf_swap.flags.placement import MOST_SEQUENCES, gpus_of_run, responses_of_an_engine
from openrlhf_swap.flags.stock import FlagValues
from openrlhf_swap.integration.startup.model import TriedModel
from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.sizing.engine import cache_bytes
from openrlhf_swap.sizing.fitting import (
    Machine,
    describe_place,
    describe_update,
    fit,
    lower_micro_batches,
    of_mean_length,
)
from openrlhf_swap.sizing.host import (
    MOST_CACHE,
    PROCESS,
    cpu_bytes,
    cpu_cache,
    host_bytes,
    ways_to_fit,
)
from openrlhf_swap.sizing.models import GIB, gib, head_size
from openrlhf_swap.sizing.settings import CHECKPOINTING, may_keep_all, read_run

BATCHED_TOKENS = 8192  # of prompts, and more than there are sequences
# Tokens of a block of an engine's cache on a CPU, which keeps a prefix in whole ones: the least for
# which vLLM has its fast kernels there. Its default is 128, which few prefixes fill.
CPU_PREFIX_BLOCK = 32
BYTES = 2  # of a number in bfloat16
# Layers that keep keys and values.
ATTENTION = {"full_attention", "sliding_attention", "chunked_attention"}
CACHE = "kv_cache_memory_bytes"


@dataclass(frozen=True)
class Places:
    """Where a run has its parts.

    Attributes:
        engine_limits: arguments of vLLM's engines for which OpenRLHF has no flags, by vLLM's names.
        flags: the flags of OpenRLHF that place optimizer and vLLM, or say what an update
            recomputes, with their values.
        settings: those of `RunConfig` that say what an update keeps and holds.
        messages: lines about all of them.
    """

    engine_limits: Mapping[str, int]
    flags: FlagValues = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    messages: tuple[str, ...] = ()


def place(run: Configuration, objective: Objective, model: TriedModel) -> Places:
    """Place optimizer and vLLM on a machine that can carry the run.

    A CPU has one place for all, and a cluster's GPUs are taken as the flags say. Raises ConfigError
    for too few GPUs, for which Ray would wait silently, or too little main memory.
    """
    limits = engine_limits(run, model.config)
    if "RAY_ADDRESS" in os.environ:
        return Places(limits, recomputing(run))
    if run.on_cpu:
        return place_on_cpu(run, objective, limits)
    check_gpus(run.args)
    placed = place_on_gpus(run, objective, smallest_gpu(run.args))
    return replace(placed, engine_limits={**limits, **placed.engine_limits})


def recomputing(run: Configuration) -> FlagValues:
    """Let an update recompute each layer, where neither a flag nor a plan says what fits."""
    return {CHECKPOINTING: True} if may_keep_all(run) else {}


def check_gpus(args: SimpleNamespace) -> None:
    """Raise ConfigError if the machine has fewer GPUs than the run takes."""
    needed = gpus_of_run(args)
    present = torch.cuda.device_count()
    if present < needed:
        raise ConfigError(
            f"the run takes {needed} GPUs (--actor.num_gpus_per_node, --vllm.num_engines), but "
            f"{present} are here; ask for fewer, see nvidia-smi, or set RAY_ADDRESS to a cluster"
        )


def smallest_gpu(args: SimpleNamespace) -> int:
    """Bytes of the smallest of the GPUs that the run takes."""
    from vllm.platforms import current_platform

    # The driver says it: asked by CUDA, each GPU would give this process memory until it ends.
    numbers = range(gpus_of_run(args))
    return min(current_platform.get_device_total_memory(number) for number in numbers)


def place_on_gpus(run: Configuration, objective: Objective, gpu: int) -> Places:
    """Keep on GPUs of `gpu` bytes what fits there: the optimizer, vLLM beside it, activations.

    `--ds.enable_sleep` and `--vllm.enable_sleep` let them leave. An engine that stays although it
    might leave gets the size of its cache: vLLM then need not measure its room, and the policy may
    load beside it. The cache of other engines is left to vLLM. Raises ConfigError for too little
    main memory.
    """
    args = run.args
    may_leave = args.ds.enable_sleep and args.train.colocate_all and args.vllm.enable_sleep
    try:
        model, given = read_run(run, objective)
    except ConfigError as error:  # there is no formula for this model
        line = f"the optimizer leaves the GPU while vLLM generates: {error}"
        return Places({}, recomputing(run), messages=(line,) if may_leave else ())
    settings = fit(model, given, Machine(gpu, args.actor.num_gpus_per_node))
    check_memory(host_bytes(model, settings, args.actor.num_gpus_per_node))
    flags: FlagValues = {}
    own = {"keeps_products": settings.keeps_products, "logits_chunk": settings.logits_chunk}
    messages = []
    if given.may_keep_all:
        flags[CHECKPOINTING] = settings.checkpointing
    decided = describe_update(given, settings)
    if decided:
        messages.append(f"the update {decided}")
    if not may_leave:
        return Places({}, flags, own, tuple(messages))
    flags |= {
        "ds.enable_sleep": settings.actor_sleeps,
        "vllm.enable_sleep": settings.vllm_sleeps,
        "vllm.gpu_memory_utilization": settings.utilization,
    }
    limits = {} if settings.vllm_sleeps else {CACHE: cache_bytes(model, settings, gpu)}
    messages.append(f"the optimizer {describe_place(model, given, settings)}")
    return Places(limits, flags, own, tuple(messages))


def place_on_cpu(run: Configuration, objective: Objective, limits: Mapping[str, int]) -> Places:
    """Lower the micro-batches of a run on a CPU where the main memory has no room for them.

    `limits` are those of the engines. Raises ConfigError where no micro-batch fits: Ray would end
    the run later.
    """
    args = run.args
    try:
        model, given = read_run(run, objective)
    except ConfigError:  # there is no formula for this model
        return Places(limits)
    cache = limits[CACHE]
    reference = 0
    if args.algo.kl.init_coef > 0:
        reference = PROCESS + BYTES * model.parameters
    smallest = replace(of_mean_length(given), update_rows=1, score_rows=1)
    held = {**cpu_bytes(model, smallest, cache), "reference model": reference}
    check_room(held, f"with --train.micro_batch_size 1, too; {ways_to_fit(args)}")
    available = available_memory()
    settings = lower_micro_batches(model, given, cache, available - reference)
    if settings == given:
        return Places(limits)
    message = (
        f"micro-batches are lowered to --train.micro_batch_size {settings.update_rows} and "
        f"--rollout.micro_batch_size {settings.score_rows}, from {given.update_rows} and "
        f"{given.score_rows}: {gib(available)} GiB of main memory are available"
    )
    flags = {
        "train.micro_batch_size": settings.update_rows,
        "rollout.micro_batch_size": settings.score_rows,
    }
    return Places(limits, flags, messages=(message,))


def check_memory(pinned: Mapping[str, int]) -> None:
    """Raise ConfigError for a machine without room for `pinned`, bytes of main memory by use."""
    node = available_memory() // GIB
    check_room(
        pinned, f"openrlhf-swap plan --node-memory {node} with these flags names some that fit"
    )


def check_room(held: Mapping[str, int], remedy: str) -> None:
    """Raise ConfigError, with this remedy, where `held` is more than the main memory has free."""
    available = available_memory()
    total = sum(held.values())
    if total > available:
        parts = ", ".join(f"{name} {gib(size)}" for name, size in held.items() if size)
        raise ConfigError(
            f"{gib(available)} GiB of main memory are available, but the run takes {gib(total)} "
            f"there ({parts}); {remedy}"
        )


def available_memory() -> int:
    """Free bytes of main memory: Ray reads a container's limit, psutil what others leave."""
    from ray._private.utils import estimate_available_memory

    return int(min(estimate_available_memory(), psutil.virtual_memory().available))


def engine_limits(run: Configuration, config: PretrainedConfig) -> dict[str, int]:
    """Arguments of vLLM's engines for which OpenRLHF has no flags, by vLLM's names.

    On a GPU these are as many responses as a step has, instead of 128: vLLM itself queues those
    that its memory has no room for.
    """
    args = run.args
    given = run.run.engine_sequences
    if run.on_cpu:
        limits = {CACHE: _cpu_cache(args, config)}
        if given:
            limits["max_num_seqs"] = given
        if args.vllm.enable_prefix_caching:
            limits["block_size"] = CPU_PREFIX_BLOCK
        return limits
    sequences = given or min(responses_of_an_engine(args), MOST_SEQUENCES)
    return {"max_num_seqs": sequences, "max_num_batched_tokens": max(BATCHED_TOKENS, sequences)}


def _cpu_cache(args: SimpleNamespace, config: PretrainedConfig) -> int:
    """Bytes of the keys and values of all responses that an engine gets in a step, or nearly."""
    text = config.get_text_config()
    kinds = getattr(text, "layer_types", None) or ()
    if getattr(text, "kv_lora_rank", None) or not ATTENTION.issuperset(kinds):
        return MOST_CACHE  # other layers keep something else
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    token = 2 * BYTES * text.num_hidden_layers * heads * head_size(text)
    needed = responses_of_an_engine(args) * args.data.max_len * token
    return cpu_cache(needed)

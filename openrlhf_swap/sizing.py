"""What models and GPUs measure, and how much memory and arithmetic a training run takes.

The formulas are pure, in bytes and floating-point operations. They follow OpenRLHF 0.11.2, DeepSpeed 0.19.6 and vLLM
0.29.0; docs/sizing.md says where each comes from.
Symbols: N parameters, n tokens of a micro-batch (padding included), V vocabulary, H hidden size, L layers.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from openrlhf_swap.errors import ConfigError

GIB = 2**30
# GiB that CUDA reports for them.
GPUS = {"a100-40": 39.4, "a100-80": 79.1, "h100": 79.1, "h200": 139.8, "b200": 178.3, "l40s": 44.4, "rtx4090": 23.5}
# Known without the hub: hidden size, layers, heads, key-value heads, width of the MLP, vocabulary.
_DIMENSIONS = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "vocab_size",
)
PRESETS = {
    f"deepseek-ai/DeepSeek-R1-Distill-Qwen-{size}": dict(zip(_DIMENSIONS, numbers, strict=True))
    for size, numbers in {
        "1.5B": (1536, 28, 12, 2, 8960, 151_936),
        "7B": (3584, 28, 28, 4, 18_944, 152_064),
        "14B": (5120, 48, 40, 8, 13_824, 152_064),
        "32B": (5120, 64, 40, 8, 27_648, 152_064),
    }.items()
}

BIT16, FP32 = 2, 4  # bytes of a number
ADAM = 3 * FP32  # the master copy of a parameter and two moments
BUCKET = 500_000_000  # gradients that DeepSpeed reduces at a time (reduce_bucket_size)
LIVE = 1_050_000_000  # parameters that ZeRO-3 gathers at a time (max_live_parameters and prefetch_bucket_size)
SUB_GROUP = 1_000_000_000  # parameters that ZeRO-3 updates at a time (sub_group_size)
SEQUENCES = 128  # that one vLLM engine runs at a time: its default for how OpenRLHF starts it
BRANCH_TOKENS = 4096  # that scoring runs at a time, as in scoring/shared_prefix.py

# Assumed, not computed.
VLLM_OVERHEAD = int(1.5 * GIB)  # activations of vLLM's profiling run and what is not torch's
BRANCH, ANSWER = 24, 6  # tokens of close template and answer together, and of the answer

Parts = dict[str, int]
"""Bytes by what they hold."""


@dataclass(frozen=True)
class Model:
    """A dense decoder: attention with grouped heads and a gated MLP, as in Qwen and Llama."""

    parameters: int  # N, tied weights once
    largest: int  # parameters of the largest weight
    looked_up: int  # parameters of an input embedding that is not the output layer too: they multiply nothing
    layers: int
    hidden: int
    heads: int
    query: int  # heads times their size
    key_value: int  # key-value heads times their size
    intermediate: int
    vocabulary: int


def gpu_bytes(name: str) -> int:
    """Bytes of a GPU, by its name or its GiB.

    Raises:
        ConfigError: for neither.
    """
    with contextlib.suppress(ValueError):
        size = GPUS.get(name.lower()) or float(name)
        if 0 < size < math.inf:
            return int(size * GIB)
    raise ConfigError(f"--gpu is {name}; use one of {', '.join(GPUS)}, or a number of GiB")


def read_model(path: str, context: int) -> Model:
    """Build the model without its weights, and count.

    Raises:
        ConfigError: when its configuration cannot be read, it is no dense decoder, or its context is too short.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, Qwen2Config

    try:
        known = PRESETS.get(path)
        config = Qwen2Config(**known, max_position_embeddings=131_072) if known else AutoConfig.from_pretrained(path)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ConfigError(
            f"--actor.model_name_or_path is {path}, whose configuration cannot be read ({reason}); give a folder with "
            f"config.json, a model id of the hub, or one that is known offline: {', '.join(PRESETS)}"
        ) from error
    config = model.config.get_text_config()
    if getattr(config, "num_experts", None) or getattr(config, "num_local_experts", None):
        raise ConfigError(f"--actor.model_name_or_path is {path}, a mixture of experts; the plan knows dense models")
    if context > config.max_position_embeddings:
        raise ConfigError(
            f"--data.max_len is {context}, but {path} has a context of {config.max_position_embeddings} tokens"
        )
    sizes = [parameter.numel() for parameter in model.parameters()]
    embedding, output = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return Model(
        parameters=sum(sizes),
        largest=max(sizes),
        looked_up=0 if embedding is output else embedding.numel(),
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        query=config.num_attention_heads * size,
        key_value=config.num_key_value_heads * size,
        intermediate=config.intermediate_size,
        vocabulary=config.vocab_size,
    )


@dataclass(frozen=True)
class Settings:
    """What decides the size of a run."""

    ranks: int  # GPUs of the actor
    stage: int  # of ZeRO
    adam_offload: bool  # the optimizer lives and steps on the CPU
    accumulate_bytes: int  # of an accumulated gradient
    overlap: bool  # gradients are reduced during the backward pass
    checkpointing: bool  # each layer is computed again in the backward pass
    temperature: float  # of the rollouts; OpenRLHF divides the logits by it
    context: int  # tokens of prompt and response together, at most
    batch: int  # responses of an update
    update_rows: int  # responses of its micro-batch
    update_tokens: int  # and their tokens
    score_rows: int  # the same of the log-probability pass
    score_tokens: int
    dynamic: bool  # micro-batches are made up by tokens
    packed: bool  # the pass leaves no cache that could be branched
    branches: int  # K+1 prefixes scored of a response; 0 for an objective that scores none
    reference: bool  # a frozen reference model shares the actor's GPUs
    shared: bool  # vLLM shares the actor's GPUs
    vllm_sleeps: bool  # and frees its memory while the actor works
    actor_sleeps: bool  # DeepSpeed keeps optimizer and gradients on the CPU while it does not update
    engines: int
    tensor_parallel: int  # GPUs of an engine
    utilization: float  # share of a GPU that vLLM takes
    reserve: int  # bytes of a GPU of the actor for CUDA contexts, NCCL, CUDA graphs and fragmentation


def partition(model: Model, settings: Settings) -> int:
    """Parameters that a rank updates."""
    return math.ceil(model.parameters / settings.ranks)


def weights(model: Model, settings: Settings) -> Parts:
    """bf16 weights that stay on a GPU of the actor."""
    own = BIT16 * (partition(model, settings) if settings.stage == 3 else model.parameters)
    return {"weights": own, **({"reference model": own} if settings.reference else {})}


def passing(model: Model, settings: Settings) -> Parts:
    """`weights`, and those of other ranks that ZeRO-3 gathers during a pass, at most."""
    live = {"gathered weights": BIT16 * min(model.parameters, LIVE)} if settings.stage == 3 else {}
    return {**weights(model, settings), **live}


def optimizer(model: Model, settings: Settings) -> Parts:
    """The fp32 master copy and Adam's two moments on a GPU, from the first update on."""
    return {} if settings.adam_offload else {"optimizer": ADAM * partition(model, settings)}


def gradients(model: Model, settings: Settings, backward: bool) -> Parts:
    """Gradients on a GPU in any micro-batch of an update but the first.

    Args:
        model: the model.
        settings: the run's.
        backward: while the layers' gradients are made, and not only those of earlier micro-batches are there.
    """
    size, own = settings.accumulate_bytes, partition(model, settings)
    bucket = BIT16 * min(BUCKET, model.parameters)
    newest = BIT16 * model.largest if backward else 0
    if settings.stage < 2:
        produced = BIT16 * model.parameters if backward and size != BIT16 else 0
        return {"gradients": size * model.parameters + produced}
    if settings.stage == 2:
        # Every gradient that touches the rank's partition is kept whole, of this micro-batch and of the earlier ones.
        kept = 0 if settings.adam_offload else size * (own + (model.largest if settings.ranks > 1 else 0))
        # A bucket that is filled (two with overlap), and a flat copy of one that is reduced.
        buckets = bucket * (3 if settings.overlap else 2) if backward else 0
        return {"gradients": kept * (1 + backward), "gradient buckets": buckets + newest}
    return {"gradients": 0 if settings.adam_offload else size * own, "gradient buckets": bucket + newest}


def layer_bytes(model: Model) -> int:
    """What one layer keeps of a token for its backward pass, with flash-attention.

    Two norms (a float32 copy, the normed and the scaled values, a scale), queries, keys, values and output of the
    attention with the logarithm of its sum, and four tensors of the MLP.
    """
    norms = 2 * ((FP32 + 2 * BIT16) * model.hidden + FP32)
    attention = BIT16 * (2 * model.query + 2 * model.key_value) + FP32 * model.heads
    return norms + attention + 4 * BIT16 * model.intermediate


def update_moments(model: Model, settings: Settings) -> dict[str, Parts]:
    """What is alive at the two moments of an update that can be its peak: its loss, and the last layer's backward."""
    n = settings.update_tokens
    logits = FP32 * model.vocabulary * n
    kept = n * model.layers * (BIT16 * model.hidden if settings.checkpointing else layer_bytes(model))
    resident = {**passing(model, settings), **optimizer(model, settings)}
    at_loss = {
        "kept activations": kept + 8 * model.hidden * n,  # the final norm's too
        "logits": logits,
        # Their gradient, and the same behind the division by the temperature or, without one, in bf16.
        "gradients of logits": 2 * logits if settings.temperature != 1 else logits + logits * BIT16 // FP32,
    }
    gradient = BIT16 * (model.hidden + 2 * model.intermediate)
    in_layer = {
        "kept activations": kept,
        # What it keeps, computed again, and gradients: of its output, and in its MLP two more than were freed.
        "layer at work": ((layer_bytes(model) if settings.checkpointing else 0) + gradient) * n,
        "logits": logits,  # OpenRLHF's training step holds them until it ends
    }
    return {
        "loss": {**resident, **gradients(model, settings, backward=False), **at_loss},
        "layer": {**resident, **gradients(model, settings, backward=True), **in_layer},
    }


def adam_step(model: Model, settings: Settings) -> Parts:
    """What is alive in the optimizer's step: the gradients, flat and in float32."""
    own = partition(model, settings)
    # In bf16 and float32; under ZeRO-3 in float32, group by group.
    flat = FP32 * min(own, SUB_GROUP) if settings.stage == 3 else (BIT16 + FP32) * own
    copies = {} if settings.adam_offload else {"flat gradients": flat}
    kept = gradients(model, settings, backward=False)
    return {**weights(model, settings), **optimizer(model, settings), **kept, **copies}


def idle(model: Model, settings: Settings) -> Parts:
    """Optimizer and gradient buffers that stay on the GPU while the actor does not update: none in sleep mode."""
    if settings.actor_sleeps and not settings.adam_offload:
        return {}
    buffers = gradients(model, settings, backward=False) if settings.stage == 3 else {}
    return {**optimizer(model, settings), **buffers}


def kept_cache(model: Model, tokens: int) -> int:
    """Bytes of the keys and values of `tokens` tokens in bf16."""
    return 2 * BIT16 * model.layers * model.key_value * tokens


def scoring_moments(model: Model, settings: Settings) -> dict[str, Parts]:
    """What is alive at the two moments of the log-probability pass: its logits, and the answer branches."""
    n, rows = settings.score_tokens, settings.score_rows
    resident = {**passing(model, settings), **idle(model, settings)}
    cache = {"kept cache": kept_cache(model, n)} if settings.branches else {}
    # bf16 and a float32 copy of it; with a small vocabulary the layers need more.
    logits = max((BIT16 + FP32) * model.vocabulary, 6 * model.intermediate + 8 * model.hidden) * n
    moments = {"logits": {**resident, **({} if settings.packed else cache), "logits": logits}}
    if settings.branches:
        count = rows * settings.branches
        one_chunk = settings.stage == 3 and settings.ranks > 1
        run = count if one_chunk else min(count, BRANCH_TOKENS // BRANCH)
        copy = kept_cache(model, n + rows * BRANCH) // model.layers
        masks = BIT16 * run * BRANCH * n // rows
        moments["branches"] = {
            **resident,
            **cache,
            "branches": copy + masks + 2 * FP32 * model.vocabulary * run * ANSWER,
        }
    return moments


def phases(model: Model, settings: Settings, gpu: int) -> dict[str, Parts]:
    """Bytes on a GPU by phase of a training step, each at its peak.

    Args:
        model: the model.
        settings: the run's.
        gpu: bytes of a GPU.
    """
    vllm, reserve = {"vLLM": int(settings.utilization * gpu)}, {"allowance": settings.reserve}
    beside = {**weights(model, settings), **idle(model, settings), **reserve} if settings.shared else {}
    others = {**(vllm if settings.shared and not settings.vllm_sleeps else {}), **reserve}
    return {
        "generate": {**vllm, **beside},
        "score": {**_peak(scoring_moments(model, settings)), **others},
        "update": {**_peak(update_moments(model, settings)), **others},
        "adam": {**adam_step(model, settings), **others},
    }


def most_update_rows(model: Model, settings: Settings, gpu: int) -> int:
    """Responses of full length that a micro-batch of the update can hold; 0 for none."""
    rows = 0
    while rows < settings.batch // settings.ranks:
        more = replace(settings, update_tokens=(rows + 1) * settings.context)
        if sum(phases(model, more, gpu)["update"].values()) > gpu:
            break
        rows += 1
    return rows


def remedy(model: Model, settings: Settings, gpu: int, phase: str) -> str:
    """The first flag that makes a phase fit, alone or with those before it.

    Args:
        model: the model.
        settings: with which it does not.
        gpu: bytes of a GPU.
        phase: of `phases`.
    """

    def fits(changed: Settings) -> bool:
        return sum(phases(model, changed, gpu)[phase].values()) <= gpu

    flags: list[str] = []
    changed = settings
    for flag, change in _changes(model, settings, gpu, phase):
        if fits(replace(settings, **change)):
            return flag
        flags.append(flag)
        changed = replace(changed, **change)
        if fits(changed):
            return " ".join(flags)
    for context in range(settings.context - 1000, 0, -1000):
        shorter = {"context": context, "update_tokens": context, "score_tokens": context, "score_rows": 1}
        if fits(replace(changed, **shorter)):
            return " ".join([*flags, f"--data.max_len {context} (and a smaller --rollout.max_new_tokens)"])
    return "more or larger GPUs"


def _changes(model: Model, now: Settings, gpu: int, phase: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Flags that lower what a phase needs, the cheapest in speed first, with what each changes."""
    if now.shared and not now.vllm_sleeps and phase != "generate":
        yield "--vllm.enable_sleep", {"vllm_sleeps": True}
    if now.shared and not now.actor_sleeps and phase in ("generate", "score"):
        yield "--ds.enable_sleep", {"actor_sleeps": True}
    if phase == "generate":
        others = sum(phases(model, replace(now, utilization=0.0), gpu)[phase].values())
        share = math.floor(100 * (gpu - others) / gpu) / 100
        if share > 0:
            yield f"--vllm.gpu_memory_utilization {share:.2f}", {"utilization": share}
    if phase == "update" and not now.checkpointing:
        yield "--actor.gradient_checkpointing_enable", {"checkpointing": True}
    for name, section in (("update", "train"), ("score", "rollout")):
        if phase == name and now.dynamic:
            yield f"--{section}.max_tokens_per_gpu {now.context}", {f"{name}_tokens": now.context}
        elif phase == name:
            for rows in range(getattr(now, f"{name}_rows") - 1, 0, -1):
                if now.batch % (rows * now.ranks) == 0:
                    change = {f"{name}_rows": rows, f"{name}_tokens": rows * now.context}
                    yield f"--{section}.micro_batch_size {rows}", change
    if now.stage < 3 and now.ranks > 1:
        yield "--ds.zero_stage 3", {"stage": 3}
    if not now.adam_offload and phase in ("update", "adam"):
        yield "--ds.adam_offload", {"adam_offload": True}


def vllm_room(model: Model, settings: Settings, gpu: int) -> Parts:
    """Of vLLM's memory on one GPU: its weights, what is left for keys and values (or negative), and one token's."""
    share = math.ceil(BIT16 * model.parameters / settings.tensor_parallel)
    return {
        "weights": share,
        "cache": int(settings.utilization * gpu) - share - VLLM_OVERHEAD,
        "token": math.ceil(kept_cache(model, 1) / settings.tensor_parallel),
    }


def room_remedy(model: Model, settings: Settings, gpu: int) -> str | None:
    """What gives vLLM room for one response of full length; None if it has it."""

    def enough(size: int) -> bool:
        room = vllm_room(model, replace(settings, tensor_parallel=size), gpu)
        return room["cache"] >= settings.context * room["token"]

    places = settings.engines * settings.tensor_parallel
    sizes = [size for size in range(settings.tensor_parallel, places + 1) if not (places % size or model.heads % size)]
    for size in filter(enough, sizes):
        engines = places // size
        same = size == settings.tensor_parallel
        return None if same else f"--vllm.tensor_parallel_size {size} --vllm.num_engines {engines}"
    return "a larger --vllm.gpu_memory_utilization, more or larger GPUs"


def forward_flops(model: Model, tokens: float) -> float:
    """Of one sequence: 2 for each token and weight that multiplies, and causal attention."""
    return 2 * (model.parameters - model.looked_up) * tokens + 2 * model.layers * model.query * tokens**2


def scoring_flops(model: Model, prompt: float, response: float, steps: int) -> float:
    """Of the `steps` + 1 branches of one response, on a cache that is there; its steps are taken as equally long."""
    branches, head = steps + 1, model.hidden * model.vocabulary
    layers = 2 * (model.parameters - model.looked_up - head) * branches * BRANCH
    keys = branches * BRANCH * (prompt + response / 2 + BRANCH / 2)
    return layers + 4 * model.layers * model.query * keys + 2 * head * branches * ANSWER


def step_flops(
    model: Model, settings: Settings, prompt: float, response: float, steps: int, epochs: int
) -> dict[str, float]:
    """Of one response through a whole training step, by phase."""
    forward = forward_flops(model, prompt + response)
    head = 2 * model.hidden * model.vocabulary * (prompt + response)
    recomputed = forward - head if settings.checkpointing else 0
    return {
        "generate": forward,
        "log-probabilities": forward,
        "score": scoring_flops(model, prompt, response, steps) if settings.branches else 0.0,
        "update": epochs * (3 * forward + recomputed),
    }


def checkpoint_bytes(model: Model, settings: Settings) -> dict[str, int]:
    """On disk: DeepSpeed's weights (not under ZeRO-3) and optimizer over all ranks, and the weights as a model."""
    size = ADAM + (0 if settings.stage == 3 else BIT16)
    return {"deepspeed": size * model.parameters, "model": BIT16 * model.parameters}


def host_bytes(model: Model, settings: Settings, gpus_of_node: int) -> Parts:
    """What a node's main memory holds beside the processes themselves."""
    parameters = gpus_of_node * partition(model, settings)
    held: Parts = {}
    if settings.shared and settings.vllm_sleeps:
        held["weights of sleeping vLLM"] = BIT16 * model.parameters * gpus_of_node // settings.tensor_parallel
    if settings.adam_offload:
        held["optimizer"] = (ADAM + FP32 + BIT16) * parameters  # gradients in float32 and bf16 weights too
    elif settings.actor_sleeps:
        held["sleeping optimizer"] = (ADAM + (settings.accumulate_bytes if settings.stage == 3 else 0)) * parameters
    return held


def _peak(moments: dict[str, Parts]) -> Parts:
    return max(moments.values(), key=lambda parts: sum(parts.values()))

"""How much a training run takes: memory on a GPU, main memory, disk, floating-point operations and time.

The formulas are pure, in bytes and seconds. They follow OpenRLHF 0.11.2, DeepSpeed 0.19.6 and vLLM 0.29.0;
docs/internals/sizing_formulas.md says where each comes from.
Symbols: N parameters, n tokens of a micro-batch (padding included), V vocabulary, H hidden size, L layers.
"""

import math
from collections.abc import Iterable

from openrlhf_swap.flags.placement import MOST_SEQUENCES
from openrlhf_swap.sizing.models import GIB, Model
from openrlhf_swap.sizing.settings import ANSWER, BIT16, BRANCH, FP32, Settings

ADAM = 3 * FP32  # the master copy of a parameter and two moments
BUCKET = 500_000_000  # gradients that DeepSpeed reduces at a time (reduce_bucket_size)
LIVE = 1_050_000_000  # parameters that ZeRO-3 gathers at a time (max_live_parameters and prefetch_bucket_size)
SUB_GROUP = 1_000_000_000  # parameters that ZeRO-3 updates at a time (sub_group_size)
MASK_ELEMENTS = 2**24  # of a call's attention mask: `MAX_MASK` of scoring/shared_prefix.py
MIB = 2**20
SEGMENT = 20 * MIB  # in which torch puts tensors of less than LARGE on a GPU
LARGE, LARGE_ROUNDING = 10 * MIB, 2 * MIB
ALLOWANCE = 4 * GIB  # of a GPU of the actor: CUDA contexts, NCCL, CUDA graphs, what sleeps there, fragmentation
VLLM_OVERHEAD = int(1.5 * GIB)  # assumed: activations of vLLM's profiling run and memory outside torch
PHASES = {"generate": "generation", "score": "log-probabilities", "update": "the update", "adam": "Adam's step"}
"""Phases of a training step -> how reports name them."""

# Shares of the data sheet's peaks: that of operations is what an H100 reached in benchmarks.policy_step
# (docs/measurements.md), that of bytes is assumed. Loading prompts, sending weights, sleeping and waking are left out.
OF_OPERATIONS, OF_BYTES = 0.3, 0.6
Peaks = tuple[float, float]
"""Operations and bytes a second of a GPU, by its data sheet."""
Parts = dict[str, int]
"""Bytes by use."""


def partition(model: Model, settings: Settings) -> int:
    """Parameters that a rank updates."""
    return math.ceil(model.trained / settings.ranks)


def weights(model: Model, settings: Settings) -> Parts:
    """bf16 weights that stay on a GPU of the actor."""
    own = BIT16 * (partition(model, settings) if settings.stage == 3 else model.held)
    return {"weights": own, **({"reference model": own} if settings.reference else {})}


def weights_in_forward(model: Model, settings: Settings) -> Parts:
    """`weights`, and the most that ZeRO-3 gathers from other ranks for a forward or backward pass."""
    live = {"gathered weights": BIT16 * min(model.parameters, LIVE)} if settings.stage == 3 else {}
    return {**weights(model, settings), **live}


def optimizer(model: Model, settings: Settings) -> Parts:
    """The fp32 master copy and Adam's two moments on a GPU, from the first update on.

    Where they are offloaded, ZeRO-1 and 2 keep a buffer there through which each gradient leaves.
    """
    if settings.adam_offload:
        return {"offload buffer": BIT16 * model.largest} if settings.stage < 3 else {}
    return {"optimizer": ADAM * partition(model, settings)}


def gradients(model: Model, settings: Settings, backward: bool) -> Parts:
    """Gradients on a GPU in any micro-batch of an update after the first.

    A backward pass adds its own to those of earlier micro-batches.
    """
    size, own = settings.accumulate_bytes, partition(model, settings)
    bucket = BIT16 * min(BUCKET, model.trained)
    newest = BIT16 * model.largest if backward else 0
    if settings.stage < 2:
        produced = BIT16 * model.trained if backward and size != BIT16 else 0
        return {"gradients": size * model.trained + produced}
    if settings.stage == 2:
        # Every gradient that touches the rank's partition is kept whole, for this micro-batch and for earlier ones.
        kept = 0 if settings.adam_offload else size * (own + (model.largest if settings.ranks > 1 else 0))
        # The bucket being filled (two with overlap), and a flat copy of the one being reduced.
        buckets = bucket * (3 if settings.overlap else 2) if backward else 0
        return {"gradients": kept * (1 + backward), "gradient buckets": buckets + newest}
    return {"gradients": 0 if settings.adam_offload else size * own, "gradient buckets": bucket + newest}


def layer_bytes(model: Model) -> int:
    """Bytes that one layer keeps per token for its backward pass, with flash-attention.

    Two norms (a float32 copy, the normed and the scaled values, a scale); queries, keys, values and output of the
    attention with its log-sum-exp; and four tensors of the MLP.
    """
    norms = 2 * ((FP32 + 2 * BIT16) * model.hidden + FP32)
    attention = BIT16 * (2 * model.query + 2 * model.key_value) + FP32 * model.heads
    return norms + attention + 4 * BIT16 * model.intermediate


def update_moments(model: Model, settings: Settings) -> dict[str, Parts]:
    """What is allocated at the two possible peaks of an update: its loss, and the last layer's backward."""
    n = settings.update_tokens
    kept = n * model.layers * (BIT16 * model.hidden if settings.checkpointing else layer_bytes(model))
    resident = {**weights_in_forward(model, settings), **optimizer(model, settings)}
    at_loss = {"kept activations": kept + 8 * model.hidden * n, **_head(model, settings)}  # and the final norm's
    gradient = BIT16 * (model.hidden + 2 * model.intermediate)
    in_layer = {
        "kept activations": kept,
        # Its recomputed activations, and gradients: of its output, and in its MLP two more than were freed.
        "layer at work": ((layer_bytes(model) if settings.checkpointing else 0) + gradient) * n,
        # Without chunks, OpenRLHF's training step holds them until it ends.
        "logits": 0 if settings.logits_chunk else FP32 * model.vocabulary * n,
    }
    return {
        "loss": {**resident, **gradients(model, settings, backward=False), **at_loss},
        "layer": {**resident, **gradients(model, settings, backward=True), **in_layer},
    }


def _head(model: Model, settings: Settings) -> Parts:
    """What an update's logits take while they are turned into gradients."""
    n, vocabulary = settings.update_tokens, model.vocabulary
    if not settings.logits_chunk:
        logits = FP32 * vocabulary * n
        # Their gradient, and its copy after the division by the temperature or, without one, in bf16.
        slopes = 2 * logits if settings.temperature != 1 else logits + logits * BIT16 // FP32
        return {"logits": logits, "gradients of logits": slopes}
    held = min(settings.logits_chunk, n) * vocabulary
    weight = 0 if model.adapters else model.hidden * vocabulary
    return {
        # A chunk's logits in bf16 and float32; or its gradients in bf16, and their share of the weight's.
        "logits": max((BIT16 + FP32) * held, BIT16 * (held + weight)),
        # The weight's gradient, summed in float32 over more than one chunk, and that of the hidden states.
        "gradients of the head": (FP32 if n > settings.logits_chunk else BIT16) * weight + BIT16 * model.hidden * n,
    }


def adam_step(model: Model, settings: Settings) -> Parts:
    """What is allocated in the optimizer's step, with the gradients flat and in float32."""
    own = partition(model, settings)
    # In bf16 and float32; under ZeRO-3 group by group.
    flat = (BIT16 + FP32) * (min(own, SUB_GROUP) if settings.stage == 3 else own)
    copies = {} if settings.adam_offload else {"flat gradients": flat}
    # OpenRLHF's training step holds those of its last micro-batch until it ends.
    logits = {} if settings.logits_chunk else {"logits": FP32 * model.vocabulary * settings.update_tokens}
    kept = gradients(model, settings, backward=False)
    return {**weights(model, settings), **optimizer(model, settings), **kept, **copies, **logits}


def idle(model: Model, settings: Settings) -> Parts:
    """Optimizer and gradient buffers that stay on the GPU while the actor is not updating: none in sleep mode."""
    if settings.actor_sleeps and not settings.adam_offload:
        return {}
    buffers = gradients(model, settings, backward=False) if settings.stage == 3 else {}
    return {**optimizer(model, settings), **buffers}


def kept_cache(model: Model, tokens: int) -> int:
    """Bytes of the keys and values, or latent vectors, of `tokens` tokens in bf16, regardless of windows."""
    return BIT16 * len(model.windows) * model.cached * tokens


def scoring_pass(model: Model, settings: Settings) -> Parts:
    """What is allocated at the peak of the log-probability pass, with the answer branches behind its rows."""
    rows = settings.score_tokens // settings.context
    branches = rows * settings.branches
    n = settings.score_tokens + branches * BRANCH
    # In bf16 and float32. A chunk's are computed from a copy of its hidden states, beside those of all tokens.
    chunk, states = min(settings.logits_chunk, n), BIT16 * model.hidden
    held = (BIT16 + FP32) * model.vocabulary * (chunk or n) + (states * (chunk + n) if chunk else 0)
    # With a small vocabulary the layers need more; an adapter's output is scaled, and added to that of its layer.
    logits = max(held, ((8 if model.adapters else 6) * model.intermediate + 8 * model.hidden) * n)
    parts = {**weights_in_forward(model, settings), **idle(model, settings), "logits": logits}
    if branches:
        calls = math.ceil(math.sqrt(branches * BRANCH * n / MASK_ELEMENTS))  # each for a share of branches and keys
        recurrent = max(1, model.layers - len(model.windows))
        parts["branches"] = BIT16 * branches * BRANCH * n // calls + 2 * FP32 * branches * model.states // recurrent
    return parts


def phases(model: Model, settings: Settings, gpu: int) -> dict[str, Parts]:
    """Bytes on a GPU of `gpu` bytes at the peak of each phase of a training step."""
    vllm, allowance = {"vLLM": int(settings.utilization * gpu)}, {"allowance": ALLOWANCE}
    beside = {**weights(model, settings), **idle(model, settings), **allowance} if settings.shared else {}
    others = {**(vllm if settings.shared and not settings.vllm_sleeps else {}), **allowance}
    return {
        "generate": {**vllm, **beside},
        "score": {**scoring_pass(model, settings), **others},
        "update": {**_peak(update_moments(model, settings)), **others},
        "adam": {**adam_step(model, settings), **others},
    }


def engine_capacity(model: Model, settings: Settings, gpu: int, mean: int) -> Parts:
    """Memory of vLLM on one GPU, and the responses of full length and of `mean` tokens, prompt included, in it."""
    share = math.ceil(BIT16 * model.parameters / settings.tensor_parallel)
    # Averaged over a response of full length: vLLM keeps no more of a layer than its window.
    seen = sum(min(window / settings.context, 1.0) for window in model.windows)
    token = BIT16 * model.cached * seen + FP32 * model.states / settings.context
    cache = max(0, int(settings.utilization * gpu) - share - VLLM_OVERHEAD)
    tokens = cache // math.ceil(token / settings.tensor_parallel)
    # vLLM is not told: it starts as many as fit and queues the others.
    most = settings.sequences or max(1, min(settings.engine_responses, tokens // mean, MOST_SEQUENCES))
    return {
        "weights_bytes": share,
        "cache_bytes": cache,
        "cache_tokens": tokens,
        "full_sequences": tokens // settings.context,
        "mean_sequences": tokens // mean,
        "most_sequences": most,
        "sequences_a_step": settings.engine_responses,
    }


def checkpoint_bytes(model: Model, settings: Settings) -> dict[str, int]:
    """Bytes on disk: DeepSpeed's weights (not under ZeRO-3) and optimizer of all ranks, and the exported model.

    A moving average is counted with DeepSpeed's.
    """
    stored = (0 if settings.stage == 3 else BIT16 * model.held) + FP32 * model.parameters * settings.averages
    return {"deepspeed": ADAM * model.trained + stored, "model": BIT16 * model.trained}


def host_bytes(model: Model, settings: Settings, gpus_of_node: int) -> Parts:
    """What a node's main memory holds in addition to the processes themselves.

    Most of it is pinned, in blocks that torch rounds up to powers of two.
    """
    held = {"moving average": FP32 * model.parameters} if settings.averages else {}  # on the first rank's node
    if settings.shared and settings.vllm_sleeps:
        # Every GPU of an engine keeps its share of each weight.
        shares = (BIT16 * weight / settings.tensor_parallel for weight in model.served)
        held["weights of sleeping vLLM"] = gpus_of_node * backup_blocks(shares)
    if settings.adam_offload:
        held["optimizer"] = gpus_of_node * _offloaded(model, settings)
    elif settings.actor_sleeps:
        held["sleeping optimizer"] = gpus_of_node * _asleep(model, settings)
    return held


def _offloaded(model: Model, settings: Settings) -> int:
    """Bytes of a rank's optimizer in main memory under --ds.adam_offload.

    Pinned are the master copy, gradients in float32, bf16 weights, and the gradients of earlier micro-batches one by
    one; the two moments are not.
    """
    own = partition(model, settings)
    earlier = blocks(BIT16 * weight for weight in model.weights) // settings.ranks
    return blocks((FP32 * own, FP32 * own, BIT16 * own)) + 2 * FP32 * own + earlier


def _asleep(model: Model, settings: Settings) -> int:
    """Bytes of a rank's pinned optimizer under --ds.enable_sleep, which ZeRO-3 updates and moves group by group."""
    own = partition(model, settings)
    if settings.stage < 3:
        return ADAM // FP32 * blocks([FP32 * own])
    groups = [SUB_GROUP] * (own // SUB_GROUP) + [own % SUB_GROUP]
    return ADAM // FP32 * blocks(FP32 * group for group in groups) + blocks([settings.accumulate_bytes * own])


def blocks(sizes: Iterable[float]) -> int:
    """Bytes of pinned main memory for tensors of these sizes in bytes: torch keeps a power of two for each."""
    return sum(1 << (math.ceil(size) - 1).bit_length() for size in sizes if size)


def backup_blocks(sizes: Iterable[float]) -> int:
    """Bytes of the pinned blocks to which vLLM copies weights of these sizes in bytes before it sleeps.

    vLLM copies what torch has allocated: large weights in whole 2 MiB, the others together in segments.
    """
    held = list(sizes)
    large = [math.ceil(size / LARGE_ROUNDING) * LARGE_ROUNDING for size in held if size >= LARGE]
    segments = math.ceil(sum(size for size in held if size < LARGE) / SEGMENT)
    return blocks([*large, *([SEGMENT] * segments)])


def _peak(moments: dict[str, Parts]) -> Parts:
    return max(moments.values(), key=lambda parts: sum(parts.values()))


def forward_flops(model: Model, tokens: float) -> float:
    """FLOPs for one sequence: 2 for each token and multiplying weight, and 4 for each pair of attending tokens."""
    return 2 * model.multiplying * tokens + 4 * model.query * model.pairs(tokens)


def scoring_flops(model: Model, prompt: float, response: float, steps: int) -> float:
    """FLOPs of the `steps` + 1 branches of one response, as a GPU attends them: in one call a layer.

    In that call every branch meets the keys of the whole response and of all branches, twice what it sees; in a layer
    with a window, only the window's and its own.
    """
    branches, head = steps + 1, model.hidden * model.vocabulary
    layers = 2 * (model.multiplying - head) * branches * BRANCH
    reach = prompt + response
    seen = sum(window + BRANCH if window < reach else reach + branches * BRANCH for window in model.windows)
    return layers + 4 * model.query * branches * BRANCH * seen + 2 * head * branches * ANSWER


def step_flops(
    model: Model, settings: Settings, prompt: float, response: float, steps: int, epochs: int
) -> dict[str, float]:
    """FLOPs for one response in a whole training step, by phase."""
    forward = forward_flops(model, prompt + response)
    head = 2 * model.hidden * model.vocabulary * (prompt + response)
    recomputed = (forward - head if settings.checkpointing else 0) + (head if settings.logits_chunk else 0)
    return {
        "generate": forward,
        "log-probabilities": forward,
        "score": scoring_flops(model, prompt, response, steps) if settings.branches else 0.0,
        # Frozen weights have no gradient of their own.
        "update": epochs * ((2 if model.adapters else 3) * forward + recomputed),
    }


def generation_seconds(
    model: Model, settings: Settings, prompt: int, response: int, at_a_time: int, peaks: Peaks
) -> float:
    """Seconds to generate all responses of a step, of `response` tokens on average.

    Each decoding step of an engine adds a token to every running response, `at_a_time` of them, and reads the weights
    and the keys and values so far once. An engine takes at least as many steps as its longest response has tokens.
    """
    tokens = settings.engine_responses * response
    decodings = max(tokens / at_a_time, settings.longest)
    running = tokens / decodings
    read = BIT16 * model.parameters + running * kept_cache(model, prompt + response // 2)
    operations = 2 * running * model.multiplying
    slowest = max(read / (OF_BYTES * peaks[1]), operations / (OF_OPERATIONS * peaks[0]))
    return decodings / settings.tensor_parallel * slowest


def step_seconds(settings: Settings, generation: float, training: float, peaks: Peaks) -> dict[str, float]:
    """Seconds of a step: vLLM and DeepSpeed take turns on their GPUs, or work at the same time on GPUs of their own.

    `generation` are seconds, `training` the FLOPs of all responses in the other phases.
    """
    train = training / (settings.ranks * OF_OPERATIONS * peaks[0])
    step = generation + train if settings.shared else max(generation, train)
    return {"generate": generation, "train": train, "step": step}

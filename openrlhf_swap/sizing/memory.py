"""What a training run takes: memory, disk, floating-point operations and time.

The formulas are pure, in bytes and seconds. They follow OpenRLHF 0.11.2, DeepSpeed 0.19.6 and vLLM
0.29.0; docs/internals/sizing_formulas.md says where each comes from. Symbols: N parameters, n
tokens of a micro-batch (padding included), V vocabulary, H hidden size, L layers.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

from openrlhf_swap.algorithm.signals import NEED
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.flags.configuration import Configuration
from openrlhf_swap.flags.placement import MOST_SEQUENCES, policy_ranks, responses_of_an_engine
from openrlhf_swap.objectives.registry import build
from openrlhf_swap.sizing.models import GIB, Model, gib, read_model

BIT16 = 2  # bytes of a number
FP32 = 4
PROMPT = 200  # assumed: mean tokens of a prompt
BRANCH = 24  # assumed: tokens of close template and answer together
ANSWER = 6  # assumed: tokens of the answer
ADAM = 3 * FP32  # the master copy of a parameter and two moments
BUCKET = 500_000_000  # gradients that DeepSpeed reduces at a time (reduce_bucket_size)
# Parameters that ZeRO-3 gathers at a time (max_live_parameters and prefetch_bucket_size).
LIVE = 1_050_000_000
SUB_GROUP = 1_000_000_000  # parameters that ZeRO-3 updates at a time (sub_group_size)
MASK_ELEMENTS = 2**24  # of a call's attention mask: `MAX_MASK` of scoring/shared_prefix.py
HIDDEN_TOKENS = 2**13  # of a pass without steps: `MAX_TOKENS` of scoring/need.py
MIB = 2**20
PIECE = 256 * MIB  # of weights that travel to vLLM: `PIECE_BYTES` of their transfer
SEGMENT = 20 * MIB  # in which torch puts tensors of less than LARGE on a GPU
LARGE = 10 * MIB
LARGE_ROUNDING = 2 * MIB
# Of a GPU of the actor: CUDA contexts, NCCL, CUDA graphs, what sleeps there, fragmentation.
ALLOWANCE = 4 * GIB
# Assumed: activations of vLLM's profiling run and memory outside torch.
VLLM_OVERHEAD = int(1.5 * GIB)
VLLM_GRAPHS = GIB  # assumed: CUDA graphs of an engine that is told how large its cache is
BLOCK_TOKENS = 32  # of a response's cache: its last block of 16 tokens, and one to spare
MOST_UTILIZATION = 0.95
PHASES = {
    "generate": "generation",
    "score": "log-probabilities",
    "update": "the update",
    "adam": "Adam's step",
    "transfer": "the weight transfer",
}
"""Phases of a training step -> how reports name them."""
CACHE = "vLLM's cache"  # what may be too small besides
NODE_MEMORY = "main memory"

# Shares of the data sheet's peaks: the first is what an H100 reached in benchmarks.policy_step
# (docs/measurements.md), the second is assumed. Loading prompts, sending weights, sleeping and
# waking are left out.
OF_OPERATIONS = 0.3
OF_BYTES = 0.6
Peaks = tuple[float, float]
"""Operations and bytes a second of a GPU, by its data sheet."""
Parts = dict[str, int]
"""Bytes by use."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings that determine a run's size."""

    ranks: int  # GPUs of the actor
    stage: int  # of ZeRO
    adam_offload: bool  # the optimizer lives and steps on the CPU
    accumulate_bytes: int  # bytes of an accumulated gradient
    overlap: bool  # gradients are reduced during the backward pass
    checkpointing: bool  # the backward pass recomputes each layer
    context: int  # most tokens of prompt and response together
    prompt_limit: int  # most tokens of a prompt
    update_rows: int  # responses of a micro-batch
    update_limit: int  # tokens by which micro-batches are filled instead; 0 for none
    score_rows: int  # the same for the log-probability pass
    score_limit: int
    logits_chunk: int  # tokens whose logits are held at a time; 0 for a whole micro-batch
    branches: int  # K+1 prefixes scored per response; 0 for an objective that scores none
    hides_steps: bool = False  # need is read, by passes over the tokens after each hidden step
    reference: bool  # a frozen reference model shares the actor's GPUs
    shared: bool  # vLLM shares the actor's GPUs
    vllm_sleeps: bool  # vLLM frees its memory while the actor works
    actor_sleeps: bool  # optimizer and gradients are on the CPU between updates
    engines: int
    engine_responses: int  # responses that an engine gets in a step
    sequences: int  # responses that it generates at a time; 0 for as many as fit
    tensor_parallel: int  # GPUs per engine
    utilization: float  # share of a GPU that vLLM takes
    can_shard: bool  # whether the run would take ZeRO-3

    @property
    def gpus(self) -> int:
        """GPUs of the whole run."""
        if self.shared:
            return self.ranks
        return self.ranks + self.engines * self.tensor_parallel

    @property
    def longest(self) -> int:
        """The most tokens of a response."""
        return self.context - self.prompt_limit

    @property
    def mean(self) -> int:
        """Mean tokens of prompt and response, where nobody says more."""
        return min(PROMPT, self.context // 2) + self.longest // 2

    @property
    def update_tokens(self) -> int:
        """Tokens of a micro-batch of the update."""
        whole = self.update_rows * self.context
        return max(self.context, self.update_limit or whole)

    @property
    def score_tokens(self) -> int:
        """Tokens of a micro-batch of the log-probability pass."""
        whole = self.score_rows * self.context
        return max(self.context, self.score_limit or whole)


def read_run(configuration: Configuration) -> tuple[Model, Settings]:
    """Read a run's model and the settings that determine its size.

    Raises ConfigError for a model or an optimizer that the plan has no formula for.
    """
    run = configuration.run
    args = configuration.args
    actor = args.actor
    ds = args.ds
    lora = ds.lora
    train = args.train
    rollout = args.rollout
    vllm = args.vllm
    context = args.data.max_len
    if actor.optim != "adam":
        raise ConfigError(
            f"--actor.optim is {actor.optim}; the plan supports adam only: leave it out"
        )
    model = read_model(actor.model_name_or_path, context, lora.rank, lora.target_modules)
    ranks = policy_ranks(args)
    by_tokens = train.dynamic_batch_enable
    score_limit = rollout.max_tokens_per_gpu or train.max_tokens_per_gpu
    in_float = ds.grad_accum_dtype == "fp32" and ds.zero_stage != 2
    near = train.colocate_all or train.colocate_actor_ref
    objective = build(configuration.method)
    settings = Settings(
        ranks=ranks,
        stage=ds.zero_stage,
        adam_offload=ds.adam_offload,
        accumulate_bytes=FP32 if in_float else BIT16,
        overlap=ds.overlap_comm,
        checkpointing=actor.gradient_checkpointing_enable,
        context=context,
        prompt_limit=context - (rollout.max_new_tokens or context),
        update_rows=train.micro_batch_size,
        update_limit=train.max_tokens_per_gpu if by_tokens else 0,
        score_rows=rollout.micro_batch_size,
        score_limit=score_limit if by_tokens else 0,
        logits_chunk=run.logits_chunk,
        branches=configuration.method.max_steps + 1 if objective.scores_steps else 0,
        hides_steps=NEED.name in objective.wanted_signals,
        reference=args.algo.kl.init_coef > 0 and near and not args.ref.offload,
        shared=train.colocate_all,
        vllm_sleeps=vllm.enable_sleep and train.colocate_all,
        actor_sleeps=ds.enable_sleep,
        engines=vllm.num_engines,
        engine_responses=responses_of_an_engine(args),
        sequences=run.engine_sequences,
        tensor_parallel=vllm.tensor_parallel_size,
        utilization=vllm.gpu_memory_utilization,
        can_shard=ranks > 1 and not lora.rank and run.scoring != "per_prefix",
    )
    return model, settings


# Memory of a GPU


def partition(model: Model, settings: Settings) -> int:
    """Parameters that a rank updates."""
    return math.ceil(model.trained / settings.ranks)


def weights(
    model: Model,
    settings: Settings,
    gathered: bool = False,
) -> Parts:
    """bf16 weights on a GPU of the actor.

    With `gathered`, these include the most that ZeRO-3 gathers for a forward or backward pass.
    """
    sharded = settings.stage == 3
    parameters = partition(model, settings) if sharded else model.held
    own = BIT16 * parameters
    parts = {"weights": own}
    if settings.reference:
        parts["reference model"] = own
    if gathered and sharded:
        parts["gathered weights"] = BIT16 * min(model.parameters, LIVE)
    return parts


def optimizer(model: Model, settings: Settings) -> Parts:
    """The fp32 master copy and Adam's two moments on a GPU, from the first update on."""
    if not settings.adam_offload:
        return {"optimizer": ADAM * partition(model, settings)}
    if settings.stage == 3:
        return {}
    # ZeRO-1 and 2 keep a buffer through which each gradient leaves.
    return {"offload buffer": BIT16 * model.largest}


def gradients(
    model: Model,
    settings: Settings,
    backward: bool,
) -> Parts:
    """Gradients on a GPU after the first micro-batch.

    A backward pass adds its own to those of earlier micro-batches.
    """
    size = settings.accumulate_bytes
    if settings.stage < 2:
        kept = size * model.trained
        if backward and size != BIT16:
            kept += BIT16 * model.trained
        return {"gradients": kept}
    kept = size * partition(model, settings)
    buckets = BIT16 * min(BUCKET, model.trained)
    if settings.stage == 2:
        # Every gradient that touches the rank's partition is kept whole, for this micro-batch and
        # for earlier ones.
        if settings.ranks > 1:
            kept += size * model.largest
        if backward:
            kept *= 2
            # The bucket being filled (two with overlap), and a flat copy of the one being reduced.
            buckets *= 3 if settings.overlap else 2
        else:
            buckets = 0
    if backward:
        buckets += BIT16 * model.largest
    if settings.adam_offload:
        kept = 0
    return {"gradients": kept, "gradient buckets": buckets}


def layer_bytes(model: Model) -> int:
    """Bytes that one layer keeps per token for its backward pass, with flash-attention.

    Two norms (a float32 copy, the normed and the scaled values, a scale); queries, keys, values and
    output of the attention with its log-sum-exp; and four tensors of the MLP.
    """
    norm = (FP32 + 2 * BIT16) * model.hidden + FP32
    attention = 2 * BIT16 * (model.query + model.key_value)
    sums = FP32 * model.heads
    mlp = 4 * BIT16 * model.intermediate
    return 2 * norm + attention + sums + mlp


def update_moments(model: Model, settings: Settings) -> dict[str, Parts]:
    """What is allocated at the two possible peaks of an update.

    One is at its loss ("loss"), the other in the last layer's backward pass ("layer").
    """
    n = settings.update_tokens
    kept = BIT16 * model.hidden
    # Gradients of a layer's output, and in its MLP two more than were freed.
    at_work = BIT16 * (model.hidden + 2 * model.intermediate)
    if settings.checkpointing:
        at_work += layer_bytes(model)  # its recomputed activations
    else:
        kept = layer_bytes(model)
    activations = n * model.layers * kept
    resident = weights(model, settings, gathered=True) | optimizer(model, settings)
    return {
        "loss": {
            **resident,
            **gradients(model, settings, backward=False),
            "kept activations": activations + 8 * model.hidden * n,  # with those of the last norm
            **_head(model, settings),
        },
        "layer": {
            **resident,
            **gradients(model, settings, backward=True),
            "kept activations": activations,
            "layer at work": at_work * n,
            **_held_logits(model, settings),
        },
    }


def _held_logits(model: Model, settings: Settings) -> Parts:
    """The logits that OpenRLHF's training step holds until it ends, if they are not in chunks."""
    if settings.logits_chunk:
        return {}
    return {"logits": FP32 * model.vocabulary * settings.update_tokens}


def _head(model: Model, settings: Settings) -> Parts:
    """What an update's logits take while they are turned into gradients."""
    n = settings.update_tokens
    if not settings.logits_chunk:
        logits = FP32 * model.vocabulary * n
        # Their gradient, and a copy of it after the division by the temperature.
        return {"logits": logits, "gradients of logits": 2 * logits}
    held = min(settings.logits_chunk, n) * model.vocabulary
    weight = 0 if model.adapters else model.hidden * model.vocabulary
    # A chunk's logits in bf16 and float32; or its gradients in bf16, and their share of the
    # weight's.
    logits = (BIT16 + FP32) * held
    slopes = BIT16 * (held + weight)
    # The weight's gradient is summed in float32 over more than one chunk.
    size = FP32 if n > settings.logits_chunk else BIT16
    of_states = BIT16 * model.hidden * n
    return {"logits": max(logits, slopes), "gradients of the head": size * weight + of_states}


def adam_step(model: Model, settings: Settings) -> Parts:
    """What is allocated in the optimizer's step, with the gradients flat and in float32."""
    parts = weights(model, settings) | optimizer(model, settings)
    parts |= gradients(model, settings, backward=False)
    if not settings.adam_offload:
        own = partition(model, settings)
        if settings.stage == 3:
            own = min(own, SUB_GROUP)  # group by group
        parts["flat gradients"] = (BIT16 + FP32) * own
    return parts | _held_logits(model, settings)


def idle(model: Model, settings: Settings) -> Parts:
    """Optimizer and gradient buffers that stay on the GPU while the actor is not updating.

    In sleep mode none do.
    """
    if settings.actor_sleeps and not settings.adam_offload:
        return {}
    parts = optimizer(model, settings)
    if settings.stage == 3:
        parts |= gradients(model, settings, backward=False)
    return parts


def kept_cache(model: Model, tokens: int) -> int:
    """Bytes of the keys and values, or latent vectors, of `tokens` tokens in bf16.

    The windows of layers do not count.
    """
    return BIT16 * len(model.windows) * model.cached * tokens


def scoring_pass(model: Model, settings: Settings) -> Parts:
    """What is allocated at the peak of the log-probability pass, or of the passes without steps.

    The answer branches run behind the rows of responses. Where need is read, the keys and values of
    the rows are kept for later passes, each without some step.
    """
    branches = settings.score_tokens // settings.context * settings.branches
    n = settings.score_tokens + branches * BRANCH
    parts = weights(model, settings, gathered=True) | idle(model, settings)
    if settings.hides_steps:
        parts["kept keys"] = key_bytes(model, settings.score_tokens, len(model.windows))
    of_rows = {**parts, "logits": _forward(model, settings, n)}
    if branches:
        # Each call takes a share of branches and keys.
        seen = branches * BRANCH * n
        calls = math.ceil(math.sqrt(seen / MASK_ELEMENTS))
        recurrent = max(1, model.layers - len(model.windows))
        states = 2 * FP32 * branches * model.states // recurrent
        of_rows["branches"] = BIT16 * seen // calls + states
    if not settings.hides_steps:
        return of_rows
    of_hidden = {**parts, **_hidden_steps(model, settings)}
    return max(of_rows, of_hidden, key=_total)


def key_bytes(
    model: Model,
    tokens: int,
    layers: int,
) -> int:
    """Bytes of the keys and values of so many tokens and layers in bf16, as attention gets them."""
    return 2 * BIT16 * model.key_value * tokens * layers


def _forward(
    model: Model,
    settings: Settings,
    n: int,
) -> int:
    """Bytes of a forward over n tokens for their log-probabilities: logits, or a layer at work."""
    chunk = min(settings.logits_chunk or n, n)
    logits = (BIT16 + FP32) * model.vocabulary * chunk  # in bf16 and float32
    if settings.logits_chunk:
        # A chunk's are computed from a copy of its hidden states, beside those of all tokens.
        logits += BIT16 * model.hidden * (chunk + n)
    # With a small vocabulary the layers need more; an adapter's output is scaled, and added to that
    # of its layer.
    width = 8 if model.adapters else 6
    layer = (width * model.intermediate + 8 * model.hidden) * n
    return max(logits, layer)


def _hidden_steps(model: Model, settings: Settings) -> Parts:
    """What a pass without steps allocates, besides the kept keys and values.

    A layer gathers what each branch sees: assumed are K branches, which see a whole context each.
    """
    n = max(HIDDEN_TOKENS, settings.context)
    seen = (settings.branches - 1) * settings.context + n
    return {
        "logits": _forward(model, settings, n),
        "gathered keys": key_bytes(model, seen, layers=1),
    }


def transfer(model: Model, settings: Settings) -> Parts:
    """What is allocated while the weights travel to vLLM, besides vLLM's own.

    They travel in pieces; the adapters are merged into one weight after the other.
    """
    piece = max(PIECE, BIT16 * model.largest_sent)
    parts = weights(model, settings) | idle(model, settings)
    parts["pieces of weights"] = 2 * piece  # packed, and as vLLM or the network takes it
    if settings.stage == 3:
        parts["gathered weights"] = piece
    if model.adapters:
        # What the adapter adds, and the sum.
        parts["merged weight"] = 2 * BIT16 * model.largest_merged
    return parts


def _total(parts: Parts) -> int:
    return sum(parts.values())


def phases(
    model: Model,
    settings: Settings,
    gpu: int,
) -> dict[str, Parts]:
    """Bytes on a GPU of `gpu` bytes at the peak of each phase of a training step."""
    vllm = {"vLLM": int(settings.utilization * gpu)}
    generation = dict(vllm)
    others = {"allowance": ALLOWANCE}
    at_transfer = dict(others)
    if settings.shared:
        generation |= weights(model, settings) | idle(model, settings) | others
        if settings.vllm_sleeps:  # for the transfer it has woken its weights alone
            at_transfer["weights of vLLM"] = _engine_weights(model, settings)
        else:
            others |= vllm
            at_transfer |= vllm
    update = max(update_moments(model, settings).values(), key=_total)
    return {
        "generate": generation,
        "score": {**scoring_pass(model, settings), **others},
        "update": {**update, **others},
        "adam": {**adam_step(model, settings), **others},
        "transfer": {**transfer(model, settings), **at_transfer},
    }


def _engine_weights(model: Model, settings: Settings) -> int:
    """Bytes of an engine's weights on one GPU."""
    return math.ceil(BIT16 * model.parameters / settings.tensor_parallel)


def _engine_cache(
    model: Model,
    settings: Settings,
    gpu: int,
) -> int:
    """Bytes of vLLM on a GPU for keys and values; less than 0 where its weights do not fit."""
    taken = _engine_weights(model, settings) + VLLM_OVERHEAD
    return int(settings.utilization * gpu) - taken


def _cached_token(model: Model, settings: Settings) -> int:
    """Bytes of a token in vLLM's cache on one GPU, averaged over a response of full length.

    vLLM keeps no more of a layer than its window.
    """
    windows = [min(window / settings.context, 1.0) for window in model.windows]
    keys = BIT16 * model.cached * sum(windows)
    states = FP32 * model.states / settings.context
    return math.ceil((keys + states) / settings.tensor_parallel)


def engine_capacity(
    model: Model,
    settings: Settings,
    gpu: int,
    mean: int,
) -> Parts:
    """Memory of vLLM on one GPU, in bytes, and the responses that it has room for.

    `mean` has the tokens of a response of mean length, its prompt included.
    """
    cache = max(0, _engine_cache(model, settings, gpu))
    tokens = cache // _cached_token(model, settings)
    # vLLM is not told: it starts as many as fit and queues the others.
    fitting = min(settings.engine_responses, tokens // mean, MOST_SEQUENCES)
    return {
        "weights_bytes": _engine_weights(model, settings),
        "cache_bytes": cache,
        "cache_tokens": tokens,
        "full_sequences": tokens // settings.context,
        "mean_sequences": tokens // mean,
        "most_sequences": settings.sequences or max(1, fitting),
        "sequences_a_step": settings.engine_responses,
    }


# Disk and main memory


def checkpoint_bytes(model: Model, settings: Settings) -> dict[str, int]:
    """Bytes on disk of one checkpoint of DeepSpeed, and of the exported model.

    DeepSpeed's has the optimizer, and the weights (not under ZeRO-3).
    """
    checkpoint = ADAM * model.trained
    if settings.stage < 3:
        checkpoint += BIT16 * model.held
    return {"deepspeed": checkpoint, "model": BIT16 * model.trained}


def host_bytes(
    model: Model,
    settings: Settings,
    gpus_of_node: int,
) -> Parts:
    """What a node's main memory holds in addition to the processes, most of it pinned."""
    held = {}
    if settings.shared and settings.vllm_sleeps:
        held["weights of sleeping vLLM"] = gpus_of_node * _sleeping_weights(model, settings)
    own = partition(model, settings)
    if settings.adam_offload:
        # Pinned are the master copy, gradients in float32, bf16 weights, and the gradients of
        # earlier micro-batches one by one; the two moments are not.
        earlier = pinned(BIT16 * weight for weight in model.weights) // settings.ranks
        moments = 2 * FP32 * own
        master = FP32 * own
        copies = pinned([master, FP32 * own, BIT16 * own])
        held["optimizer"] = gpus_of_node * (copies + moments + earlier)
    elif settings.actor_sleeps:
        groups = [own]
        summed = 0
        if settings.stage == 3:  # which updates and moves the optimizer group by group
            groups = [SUB_GROUP] * (own // SUB_GROUP) + [own % SUB_GROUP]
            summed = pinned([settings.accumulate_bytes * own])
        states = ADAM // FP32 * pinned(FP32 * group for group in groups)
        held["sleeping optimizer"] = gpus_of_node * (states + summed)
    return held


def _sleeping_weights(model: Model, settings: Settings) -> int:
    """Bytes of pinned main memory for the weights of one GPU of a sleeping engine.

    Every GPU of an engine has its share of each weight. vLLM copies what torch has allocated: large
    weights in whole 2 MiB, the others together in segments.
    """
    shares = [BIT16 * weight / settings.tensor_parallel for weight in model.served]
    large = [size for size in shares if size >= LARGE]
    rounded = [math.ceil(size / LARGE_ROUNDING) * LARGE_ROUNDING for size in large]
    segments = math.ceil((sum(shares) - sum(large)) / SEGMENT)
    return pinned([*rounded, *[SEGMENT] * segments])


def pinned(sizes: Iterable[float]) -> int:
    """Bytes of pinned main memory for tensors of these sizes in bytes.

    torch keeps a power of two for each.
    """
    return sum(2 ** (math.ceil(size) - 1).bit_length() for size in sizes if size)


# Operations and seconds


def forward_flops(model: Model, tokens: float) -> float:
    """FLOPs for one sequence.

    These are 2 for each token and multiplying weight, and 4 for each pair of attending tokens.
    """
    weights = 2 * model.multiplying * tokens
    attention = 4 * model.query * model.pairs(tokens)
    return weights + attention


def scoring_flops(
    model: Model,
    prompt: float,
    response: float,
    steps: int,
) -> float:
    """FLOPs of the `steps` + 1 branches of one response, in one call a layer as on a GPU.

    Every branch meets the keys of the response and of all branches there; in a layer with a window,
    of its window.
    """
    tokens = (steps + 1) * BRANCH
    head = model.hidden * model.vocabulary
    layers = 2 * (model.multiplying - head) * tokens
    output = 2 * head * (steps + 1) * ANSWER
    reach = prompt + response
    seen = sum(min(window + BRANCH, reach + tokens) for window in model.windows)
    attention = 4 * model.query * tokens * seen
    return layers + attention + output


def step_flops(
    model: Model,
    settings: Settings,
    prompt: float,
    response: float,
    steps: int,
    epochs: int,
) -> dict[str, float]:
    """FLOPs for one response in a whole training step, by phase."""
    forward = forward_flops(model, prompt + response)
    head = 2 * model.hidden * model.vocabulary * (prompt + response)
    passes = 2 if model.adapters else 3  # frozen weights have no gradient of their own
    update = passes * forward
    if settings.checkpointing:
        update += forward - head
    if settings.logits_chunk:
        update += head
    scoring = 0.0
    if settings.branches:
        scoring = scoring_flops(model, prompt, response, steps)
    return {
        "generate": forward,
        "log-probabilities": forward,
        "score": scoring,
        "update": epochs * update,
    }


def generation_seconds(
    model: Model,
    settings: Settings,
    prompt: int,
    response: int,
    at_a_time: int,
    peaks: Peaks,
) -> float:
    """Seconds to generate all responses of a step.

    They have `response` tokens on average, and an engine runs `at_a_time` of them. Each decoding
    adds a token to every running response, and reads the weights and the keys and values so far
    once; the longest response takes as many as it has tokens.
    """
    operations, bandwidth = peaks
    tokens = settings.engine_responses * response
    decodings = max(tokens / at_a_time, settings.longest)
    running = tokens / decodings
    cache = kept_cache(model, prompt + response // 2)
    read = BIT16 * model.parameters + running * cache
    reading = read / (OF_BYTES * bandwidth)
    computing = 2 * running * model.multiplying / (OF_OPERATIONS * operations)
    return decodings / settings.tensor_parallel * max(reading, computing)


def step_seconds(
    settings: Settings,
    generation: float,
    training: float,
    peaks: Peaks,
) -> dict[str, float]:
    """Seconds of a step: of `generation`, and of the `training` FLOPs of all responses."""
    train = training / (settings.ranks * OF_OPERATIONS * peaks[0])
    step = generation + train if settings.shared else max(generation, train)
    return {"generate": generation, "train": train, "step": step}


# What fits


@dataclass(frozen=True)
class Machine:
    """What a run has to fit into, in bytes."""

    gpu: int
    gpus_of_node: int
    node: int | None = None  # main memory of a node, if known

    def missing(self, model: Model, settings: Settings) -> dict[str, int]:
        """Bytes that each phase, vLLM's cache and a node lack; less than 0 where some are left.

        The cache has to hold one response of full length.
        """
        lacking = {}
        for phase, parts in phases(model, settings, self.gpu).items():
            lacking[phase] = _total(parts) - self.gpu
        longest = settings.context * _cached_token(model, settings)
        lacking[CACHE] = longest - _engine_cache(model, settings, self.gpu)
        if self.node:
            held = host_bytes(model, settings, self.gpus_of_node)
            lacking[NODE_MEMORY] = _total(held) - self.node
        return lacking

    def holds(self, model: Model, settings: Settings) -> bool:
        """Whether nothing is missing."""
        return max(self.missing(model, settings).values()) <= 0


def place_optimizer(
    model: Model,
    given: Settings,
    machine: Machine,
) -> Settings:
    """The settings as a run follows them: what may leave the GPUs stays there if it fits.

    With --ds.enable_sleep and --vllm.enable_sleep on one machine a run takes the first of three
    ways that fits: nothing leaves; the optimizer stays while vLLM sleeps; both leave.
    """
    may_leave = given.actor_sleeps and given.vllm_sleeps and not given.adam_offload
    several_nodes = given.ranks > machine.gpus_of_node
    if not may_leave or several_nodes:
        return given
    of_gpus = replace(machine, node=None)
    side_by_side = _side_by_side(model, given, machine.gpu)
    fits = side_by_side.utilization <= given.utilization
    if fits and of_gpus.holds(model, side_by_side):
        return side_by_side
    staying = replace(given, actor_sleeps=False)
    free = _free_share(model, staying, machine.gpu)
    staying = replace(staying, utilization=min(given.utilization, free))
    # vLLM has to run as many responses at a time with what the optimizer leaves to it.
    if _at_a_time(model, staying, machine.gpu) < _at_a_time(model, given, machine.gpu):
        return given
    return staying if of_gpus.holds(model, staying) else given


def _side_by_side(
    model: Model,
    given: Settings,
    gpu: int,
) -> Settings:
    """Settings with which nothing leaves a GPU.

    vLLM's share then holds its weights, its graphs, and all responses that it generates at a time
    at their full length.
    """
    responses = given.sequences or min(given.engine_responses, MOST_SEQUENCES)
    tokens = responses * (given.context + BLOCK_TOKENS)
    cache = tokens * _cached_token(model, given)
    needed = _engine_weights(model, given) + VLLM_OVERHEAD + VLLM_GRAPHS + cache
    share = math.ceil(100 * needed / gpu) / 100
    return replace(given, actor_sleeps=False, vllm_sleeps=False, utilization=share)


def cache_bytes(
    model: Model,
    settings: Settings,
    gpu: int,
) -> int:
    """Bytes of keys and values for an engine that is told them, instead of measuring its room."""
    return _engine_cache(model, settings, gpu) - VLLM_GRAPHS


def copied_bytes(model: Model, settings: Settings) -> int:
    """Bytes of a GPU that a step copies to the main memory and back, because a side sleeps."""
    leaving = 0
    if settings.actor_sleeps and not settings.adam_offload:
        leaving += ADAM * partition(model, settings)
    if settings.vllm_sleeps:
        leaving += _engine_weights(model, settings)
    return 2 * leaving


def describe_place(
    model: Model,
    given: Settings,
    settings: Settings,
) -> str:
    """What an optimizer does while vLLM generates, and the copies that this saves."""
    copied = copied_bytes(model, settings)
    saved = copied_bytes(model, given) - copied
    copies = f"a step copies {gib(copied)} GiB on each GPU"
    if saved:
        copies += f", {gib(saved)} less than if both left"
    if settings.adam_offload:
        return f"is in main memory: {copies}"
    if settings.actor_sleeps:
        return f"leaves the GPU while vLLM generates: {copies}"
    stays = f"stays on the GPU beside vLLM, which takes {settings.utilization:.0%} of it"
    if settings.vllm_sleeps:
        return f"{stays} and sleeps in turn: {copies}"
    return f"{stays} and never sleeps: {copies}"


def _at_a_time(
    model: Model,
    settings: Settings,
    gpu: int,
) -> int:
    """Responses of mean length that an engine runs at a time."""
    return engine_capacity(model, settings, gpu, settings.mean)["most_sequences"]


def _free_share(
    model: Model,
    settings: Settings,
    gpu: int,
) -> float:
    """The share of a GPU that all phases leave to vLLM, in whole hundredths."""
    without = phases(model, replace(settings, utilization=0.0), gpu)
    taken = [_total(parts) for parts in without.values() if "vLLM" in parts]
    hundredths = math.floor(100 - 100 * max(taken) / gpu)
    return min(MOST_UTILIZATION, max(0, hundredths) / 100)


def savings(
    model: Model,
    given: Settings,
    machine: Machine,
) -> dict[str, Parts]:
    """What each flag saves, by itself, of what is missing: place -> flags -> bytes, most first."""
    missing = machine.missing(model, place_optimizer(model, given, machine))
    saved: dict[str, Parts] = {place: {} for place, size in missing.items() if size > 0}
    for flag, changes in _alternatives(model, given, machine.gpu).items():
        changed = place_optimizer(model, replace(given, **changes), machine)
        left = machine.missing(model, changed)
        for place, flags in saved.items():
            if left[place] < missing[place]:
                flags[flag] = missing[place] - left[place]
    for place, flags in saved.items():
        saved[place] = dict(sorted(flags.items(), key=itemgetter(1), reverse=True))
    return saved


def _alternatives(
    model: Model,
    now: Settings,
    gpu: int,
) -> dict[str, dict[str, Any]]:
    """Flags that may save memory, and the settings that each changes; some change nothing."""
    update_rows = _fewer(now.update_rows)
    score_rows = _fewer(now.score_rows)
    free = _free_share(model, now, gpu)
    flags: dict[str, dict[str, Any]] = {
        "--swap.logits_chunk 1024": {"logits_chunk": 1024},
        f"--rollout.micro_batch_size {score_rows}": {"score_rows": score_rows},
        f"--train.micro_batch_size {update_rows}": {"update_rows": update_rows},
        f"--rollout.max_tokens_per_gpu {now.context}": {
            "score_limit": min(now.score_limit, now.context)
        },
        f"--train.max_tokens_per_gpu {now.context}": {
            "update_limit": min(now.update_limit, now.context)
        },
        "--actor.gradient_checkpointing_enable": {"checkpointing": True},
        "--ds.adam_offload": {"adam_offload": True},
        "--no-vllm.enable_sleep": {"vllm_sleeps": False},
        "--no-ds.enable_sleep": {"actor_sleeps": False},
        "--no-ds.adam_offload": {"adam_offload": False},
    }
    if free:
        flags[f"--vllm.gpu_memory_utilization {free:.2f}"] = {"utilization": free}
    if now.shared:
        flags["--vllm.enable_sleep"] = {"vllm_sleeps": True}
        flags["--ds.enable_sleep"] = {"actor_sleeps": True}
    if now.can_shard:
        flags["--ds.zero_stage 3"] = {"stage": 3}
    size = 2 * now.tensor_parallel
    engines = now.engines // 2
    if now.engines % 2 == 0 and model.heads % size == 0:
        flags[f"--vllm.tensor_parallel_size {size} --vllm.num_engines {engines}"] = {
            "tensor_parallel": size,
            "engines": engines,
            "engine_responses": 2 * now.engine_responses,
        }
    tokens = now.longest // 2
    context = now.context - now.longest + tokens
    flags[f"--data.max_len {context} --rollout.max_new_tokens {tokens}"] = {"context": context}
    return flags


def _fewer(rows: int) -> int:
    """Half of the rows, or one where they have no half: a divisor of what `rows` divides."""
    return rows // 2 if rows % 2 == 0 else 1

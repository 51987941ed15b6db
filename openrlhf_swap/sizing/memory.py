"""How much a training run takes, and what makes it fit: memory, disk, floating-point operations and
time.

The formulas are pure, in bytes and seconds. They follow OpenRLHF 0.11.2, DeepSpeed 0.19.6 and vLLM
0.29.0; docs/internals/sizing_formulas.md says where each comes from. Symbols: N parameters, n
tokens of a micro-batch (padding included), V vocabulary, H hidden size, L layers.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from itertools import chain, product
from operator import attrgetter
from typing import Any

from openrlhf_swap.errors import ConfigError
from openrlhf_swap.flags.configuration import Configuration
from openrlhf_swap.flags.placement import MOST_SEQUENCES, policy_ranks, responses_of_an_engine
from openrlhf_swap.objectives.registry import build
from openrlhf_swap.sizing.models import GIB, Model, read_model

BIT16, FP32 = 2, 4  # bytes of a number
PROMPT = 200  # assumed: mean tokens of a prompt
BRANCH, ANSWER = 24, 6  # assumed: tokens of close template and answer together, and of the answer
ADAM = 3 * FP32  # the master copy of a parameter and two moments
BUCKET = 500_000_000  # gradients that DeepSpeed reduces at a time (reduce_bucket_size)
LIVE = 1_050_000_000  # parameters that ZeRO-3 gathers at a time (max_live_parameters and prefetch_bucket_size)
SUB_GROUP = 1_000_000_000  # parameters that ZeRO-3 updates at a time (sub_group_size)
MASK_ELEMENTS = 2**24  # of a call's attention mask: `MAX_MASK` of scoring/shared_prefix.py
MIB = 2**20
SEGMENT = 20 * MIB  # in which torch puts tensors of less than LARGE on a GPU
LARGE, LARGE_ROUNDING = 10 * MIB, 2 * MIB
ALLOWANCE = (
    4 * GIB
)  # of a GPU of the actor: CUDA contexts, NCCL, CUDA graphs, what sleeps there, fragmentation
VLLM_OVERHEAD = int(
    1.5 * GIB
)  # assumed: activations of vLLM's profiling run and memory outside torch
MOST_UTILIZATION = 0.95
PHASES = {
    "generate": "generation",
    "score": "log-probabilities",
    "update": "the update",
    "adam": "Adam's step",
}
"""Phases of a training step -> how reports name them."""

# Shares of the data sheet's peaks: that of operations is what an H100 reached in
# benchmarks.policy_step (docs/measurements.md), that of bytes is assumed. Loading prompts, sending
# weights, sleeping and waking are left out.
OF_OPERATIONS, OF_BYTES = 0.3, 0.6
Peaks = tuple[float, float]
"""Operations and bytes a second of a GPU, by its data sheet."""
Parts = dict[str, int]
"""Bytes by use."""


def _flag(name: str) -> Any:
    """A setting that is a flag's value."""
    return field(metadata={"flag": name})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings that determine a run's size."""

    ranks: int  # GPUs of the actor
    stage: int = _flag("ds.zero_stage")
    adam_offload: bool = _flag("ds.adam_offload")  # the optimizer lives and steps on the CPU
    accumulate_bytes: int  # bytes of an accumulated gradient
    overlap: bool = _flag("ds.overlap_comm")  # gradients are reduced during the backward pass
    checkpointing: bool = _flag(
        "actor.gradient_checkpointing_enable"
    )  # the backward pass recomputes each layer
    temperature: float = _flag("rollout.temperature")  # OpenRLHF divides the logits by it
    context: int = _flag("data.max_len")  # most tokens of prompt and response together
    prompt_limit: int  # most tokens of a prompt
    batch: int = _flag("train.batch_size")  # responses per update
    update_rows: int = _flag("train.micro_batch_size")
    update_limit: int  # tokens by which micro-batches are filled instead; 0 for none
    score_rows: int = _flag("rollout.micro_batch_size")  # the same for the log-probability pass
    score_limit: int
    logits_chunk: int  # tokens whose logits are held at a time; 0 for a whole micro-batch
    branches: int  # K+1 prefixes scored per response; 0 for an objective that scores none
    reference: bool  # a frozen reference model shares the actor's GPUs
    shared: bool = _flag("train.colocate_all")  # vLLM shares the actor's GPUs
    vllm_sleeps: bool  # vLLM frees its memory while the actor works
    averages: bool = _flag("train.enable_ema")  # one process keeps a moving average of the weights
    actor_sleeps: bool = _flag(
        "ds.enable_sleep"
    )  # optimizer and gradients are on the CPU between updates
    engines: int = _flag("vllm.num_engines")
    engine_responses: int  # responses that an engine gets in a step
    sequences: int  # responses that it generates at a time; 0 for as many as fit
    tensor_parallel: int = _flag("vllm.tensor_parallel_size")  # GPUs per engine
    utilization: float = _flag(
        "vllm.gpu_memory_utilization"
    )  # share of a GPU's memory that vLLM takes
    can_shard: bool  # whether the run would take ZeRO-3

    @property
    def gpus(self) -> int:  # of the whole run
        return self.ranks + (0 if self.shared else self.engines * self.tensor_parallel)

    @property
    def longest(self) -> int:  # tokens of a response
        return self.context - self.prompt_limit

    @property
    def mean(self) -> int:  # tokens of prompt and response, where nobody says more
        return min(PROMPT, self.context // 2) + self.longest // 2

    @property
    def update_tokens(self) -> int:  # of a micro-batch
        return max(self.context, self.update_limit or self.update_rows * self.context)

    @property
    def score_tokens(self) -> int:
        return max(self.context, self.score_limit or self.score_rows * self.context)


def read_run(configuration: Configuration) -> tuple[Model, Settings]:
    """Read a run's model and the settings that determine its size.

    Raises ConfigError for a model or an optimizer that the plan has no formula for.
    """
    run, args = configuration.run, configuration.args
    ds, train, rollout = args.ds, args.train, args.rollout
    if args.actor.optim != "adam":
        raise ConfigError(
            f"--actor.optim is {args.actor.optim}; the plan supports adam only: leave it out"
        )
    shared, by_tokens, ranks = train.colocate_all, train.dynamic_batch_enable, policy_ranks(args)
    settings = Settings(
        **{
            each.name: attrgetter(each.metadata["flag"])(args)
            for each in fields(Settings)
            if each.metadata
        },
        ranks=ranks,
        accumulate_bytes=FP32 if ds.grad_accum_dtype == "fp32" and ds.zero_stage != 2 else BIT16,
        prompt_limit=args.data.max_len - rollout.max_new_tokens if rollout.max_new_tokens else 0,
        update_limit=train.max_tokens_per_gpu if by_tokens else 0,
        score_limit=(rollout.max_tokens_per_gpu or train.max_tokens_per_gpu) if by_tokens else 0,
        logits_chunk=run.logits_chunk,
        branches=configuration.method.max_steps + 1
        if build(configuration.method).scores_steps
        else 0,
        reference=args.algo.kl.init_coef > 0
        and (shared or train.colocate_actor_ref)
        and not args.ref.offload,
        vllm_sleeps=args.vllm.enable_sleep and shared,
        engine_responses=responses_of_an_engine(args),
        sequences=run.engine_sequences,
        can_shard=ranks > 1
        and not (train.enable_ema or ds.lora.rank or run.scoring == "per_prefix"),
    )
    return read_model(
        args.actor.model_name_or_path, args.data.max_len, ds.lora.rank, ds.lora.target_modules
    ), settings


def partition(model: Model, settings: Settings) -> int:
    """Parameters that a rank updates."""
    return math.ceil(model.trained / settings.ranks)


def weights(model: Model, settings: Settings, gathered: bool = False) -> Parts:
    """bf16 weights on a GPU of the actor; with the most that ZeRO-3 gathers for a forward or
    backward pass.
    """
    own = BIT16 * (partition(model, settings) if settings.stage == 3 else model.held)
    live = (
        {"gathered weights": BIT16 * min(model.parameters, LIVE)}
        if gathered and settings.stage == 3
        else {}
    )
    return {"weights": own, **({"reference model": own} if settings.reference else {}), **live}


def optimizer(model: Model, settings: Settings) -> Parts:
    """The fp32 master copy and Adam's two moments on a GPU, from the first update on."""
    if settings.adam_offload:  # ZeRO-1 and 2 keep a buffer through which each gradient leaves
        return {"offload buffer": BIT16 * model.largest} if settings.stage < 3 else {}
    return {"optimizer": ADAM * partition(model, settings)}


def gradients(model: Model, settings: Settings, backward: bool) -> Parts:
    """Gradients on a GPU after the first micro-batch; a backward pass adds its own to those of
    earlier ones.
    """
    size, own = settings.accumulate_bytes, partition(model, settings)
    bucket = BIT16 * min(BUCKET, model.trained)
    newest = BIT16 * model.largest if backward else 0
    if settings.stage < 2:
        produced = BIT16 * model.trained if backward and size != BIT16 else 0
        return {"gradients": size * model.trained + produced}
    if settings.stage == 2:
        # Every gradient that touches the rank's partition is kept whole, for this micro-batch and
        # for earlier ones.
        kept = (
            0
            if settings.adam_offload
            else size * (own + (model.largest if settings.ranks > 1 else 0))
        )
        # The bucket being filled (two with overlap), and a flat copy of the one being reduced.
        buckets = bucket * (3 if settings.overlap else 2) if backward else 0
        return {"gradients": kept * (1 + backward), "gradient buckets": buckets + newest}
    return {
        "gradients": 0 if settings.adam_offload else size * own,
        "gradient buckets": bucket + newest,
    }


def layer_bytes(model: Model) -> int:
    """Bytes that one layer keeps per token for its backward pass, with flash-attention.

    Two norms (a float32 copy, the normed and the scaled values, a scale); queries, keys, values and
    output of the attention with its log-sum-exp; and four tensors of the MLP.
    """
    norms = 2 * ((FP32 + 2 * BIT16) * model.hidden + FP32)
    attention = BIT16 * (2 * model.query + 2 * model.key_value) + FP32 * model.heads
    return norms + attention + 4 * BIT16 * model.intermediate


def update_moments(model: Model, settings: Settings) -> dict[str, Parts]:
    """What is allocated at the two possible peaks of an update: its loss, and the last layer's
    backward.
    """
    n = settings.update_tokens
    kept = (
        n * model.layers * (BIT16 * model.hidden if settings.checkpointing else layer_bytes(model))
    )
    resident = {**weights(model, settings, gathered=True), **optimizer(model, settings)}
    at_loss = {
        "kept activations": kept + 8 * model.hidden * n,
        **_head(model, settings),
    }  # and the final norm's
    gradient = BIT16 * (model.hidden + 2 * model.intermediate)
    in_layer = {
        "kept activations": kept,
        # Its recomputed activations, and gradients: of its output, and in its MLP two more than
        # were freed.
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
    logits = FP32 * vocabulary * n
    if not settings.logits_chunk:
        # Their gradient, and its copy after the division by the temperature or, without one, in
        # bf16.
        slopes = 2 * logits if settings.temperature != 1 else logits + logits * BIT16 // FP32
        return {"logits": logits, "gradients of logits": slopes}
    held = min(settings.logits_chunk, n) * vocabulary
    weight = 0 if model.adapters else model.hidden * vocabulary
    return {
        # A chunk's logits in bf16 and float32; or its gradients in bf16, and their share of the
        # weight's.
        "logits": max((BIT16 + FP32) * held, BIT16 * (held + weight)),
        # The weight's gradient, summed in float32 over more than one chunk, and that of the hidden
        # states.
        "gradients of the head": (FP32 if n > settings.logits_chunk else BIT16) * weight
        + BIT16 * model.hidden * n,
    }


def adam_step(model: Model, settings: Settings) -> Parts:
    """What is allocated in the optimizer's step, with the gradients flat and in float32."""
    own = partition(model, settings)
    # In bf16 and float32; under ZeRO-3 group by group.
    flat = (BIT16 + FP32) * (min(own, SUB_GROUP) if settings.stage == 3 else own)
    copies = {} if settings.adam_offload else {"flat gradients": flat}
    # OpenRLHF's training step holds those of its last micro-batch until it ends.
    logits = (
        {}
        if settings.logits_chunk
        else {"logits": FP32 * model.vocabulary * settings.update_tokens}
    )
    kept = gradients(model, settings, backward=False)
    return {**weights(model, settings), **optimizer(model, settings), **kept, **copies, **logits}


def idle(model: Model, settings: Settings) -> Parts:
    """Optimizer and gradient buffers that stay on the GPU while the actor is not updating: none in
    sleep mode.
    """
    if settings.actor_sleeps and not settings.adam_offload:
        return {}
    buffers = gradients(model, settings, backward=False) if settings.stage == 3 else {}
    return {**optimizer(model, settings), **buffers}


def kept_cache(model: Model, tokens: int) -> int:
    """Bytes of the keys and values, or latent vectors, of `tokens` tokens in bf16, regardless of
    windows.
    """
    return BIT16 * len(model.windows) * model.cached * tokens


def scoring_pass(model: Model, settings: Settings) -> Parts:
    """What is allocated at the peak of the log-probability pass, with the answer branches behind
    its rows.
    """
    rows = settings.score_tokens // settings.context
    branches = rows * settings.branches
    n = settings.score_tokens + branches * BRANCH
    # In bf16 and float32. A chunk's are computed from a copy of its hidden states, beside those of
    # all tokens.
    chunk, states = min(settings.logits_chunk, n), BIT16 * model.hidden
    held = (BIT16 + FP32) * model.vocabulary * (chunk or n) + (states * (chunk + n) if chunk else 0)
    # With a small vocabulary the layers need more; an adapter's output is scaled, and added to that
    # of its layer.
    logits = max(held, ((8 if model.adapters else 6) * model.intermediate + 8 * model.hidden) * n)
    parts = {**weights(model, settings, gathered=True), **idle(model, settings), "logits": logits}
    if branches:
        calls = math.ceil(
            math.sqrt(branches * BRANCH * n / MASK_ELEMENTS)
        )  # each for a share of branches and keys
        recurrent = max(1, model.layers - len(model.windows))
        parts["branches"] = (
            BIT16 * branches * BRANCH * n // calls + 2 * FP32 * branches * model.states // recurrent
        )
    return parts


def _total(parts: Parts) -> int:
    return sum(parts.values())


def phases(model: Model, settings: Settings, gpu: int) -> dict[str, Parts]:
    """Bytes on a GPU of `gpu` bytes at the peak of each phase of a training step."""
    vllm, allowance = {"vLLM": int(settings.utilization * gpu)}, {"allowance": ALLOWANCE}
    beside = (
        {**weights(model, settings), **idle(model, settings), **allowance}
        if settings.shared
        else {}
    )
    others = {**(vllm if settings.shared and not settings.vllm_sleeps else {}), **allowance}
    update = max(update_moments(model, settings).values(), key=_total)
    return {
        "generate": {**vllm, **beside},
        "score": {**scoring_pass(model, settings), **others},
        "update": {**update, **others},
        "adam": {**adam_step(model, settings), **others},
    }


def engine_capacity(model: Model, settings: Settings, gpu: int, mean: int) -> Parts:
    """Memory of vLLM on one GPU, and the responses of full length and of `mean` tokens, prompt
    included, in it.
    """
    share = math.ceil(BIT16 * model.parameters / settings.tensor_parallel)
    # Averaged over a response of full length: vLLM keeps no more of a layer than its window.
    seen = sum(min(window / settings.context, 1.0) for window in model.windows)
    token = BIT16 * model.cached * seen + FP32 * model.states / settings.context
    cache = max(0, int(settings.utilization * gpu) - share - VLLM_OVERHEAD)
    tokens = cache // math.ceil(token / settings.tensor_parallel)
    # vLLM is not told: it starts as many as fit and queues the others.
    most = settings.sequences or max(
        1, min(settings.engine_responses, tokens // mean, MOST_SEQUENCES)
    )
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
    """Bytes on disk: DeepSpeed's weights (not under ZeRO-3), optimizer and moving average, and the
    exported model.
    """
    stored = (
        0 if settings.stage == 3 else BIT16 * model.held
    ) + FP32 * model.parameters * settings.averages
    return {"deepspeed": ADAM * model.trained + stored, "model": BIT16 * model.trained}


def host_bytes(model: Model, settings: Settings, gpus_of_node: int) -> Parts:
    """What a node's main memory holds in addition to the processes themselves, most of it pinned."""
    held = (
        {"moving average": FP32 * model.parameters} if settings.averages else {}
    )  # on the first rank's node
    own = partition(model, settings)
    if settings.shared and settings.vllm_sleeps:
        # Every GPU of an engine keeps its share of each weight. vLLM copies what torch has
        # allocated: large weights in whole 2 MiB, the others together in segments.
        shares = [BIT16 * weight / settings.tensor_parallel for weight in model.served]
        large = [
            math.ceil(size / LARGE_ROUNDING) * LARGE_ROUNDING for size in shares if size >= LARGE
        ]
        segments = math.ceil(sum(size for size in shares if size < LARGE) / SEGMENT)
        held["weights of sleeping vLLM"] = gpus_of_node * pinned([*large, *([SEGMENT] * segments)])
    if settings.adam_offload:
        # Pinned are the master copy, gradients in float32, bf16 weights, and the gradients of
        # earlier micro-batches one by one; the two moments are not.
        earlier = pinned(BIT16 * weight for weight in model.weights) // settings.ranks
        held["optimizer"] = gpus_of_node * (
            pinned((FP32 * own, FP32 * own, BIT16 * own)) + 2 * FP32 * own + earlier
        )
    elif settings.actor_sleeps:
        whole = settings.stage < 3  # ZeRO-3 updates and moves the optimizer group by group
        groups = [own] if whole else [SUB_GROUP] * (own // SUB_GROUP) + [own % SUB_GROUP]
        summed = 0 if whole else pinned([settings.accumulate_bytes * own])
        held["sleeping optimizer"] = gpus_of_node * (
            ADAM // FP32 * pinned(FP32 * group for group in groups) + summed
        )
    return held


def pinned(sizes: Iterable[float]) -> int:
    """Bytes of pinned main memory for tensors of these sizes in bytes: torch keeps a power of two
    for each.
    """
    return sum(1 << (math.ceil(size) - 1).bit_length() for size in sizes if size)


def forward_flops(model: Model, tokens: float) -> float:
    """FLOPs for one sequence: 2 for each token and multiplying weight, and 4 for each pair of
    attending tokens.
    """
    return 2 * model.multiplying * tokens + 4 * model.query * model.pairs(tokens)


def scoring_flops(model: Model, prompt: float, response: float, steps: int) -> float:
    """FLOPs of the `steps` + 1 branches of one response, as a GPU attends them: in one call a
    layer.

    Every branch meets the keys of the response and of all branches there; in a layer with a window,
    of its window.
    """
    branches, head = steps + 1, model.hidden * model.vocabulary
    layers = 2 * (model.multiplying - head) * branches * BRANCH
    reach = prompt + response
    seen = sum(
        window + BRANCH if window < reach else reach + branches * BRANCH for window in model.windows
    )
    return layers + 4 * model.query * branches * BRANCH * seen + 2 * head * branches * ANSWER


def step_flops(
    model: Model, settings: Settings, prompt: float, response: float, steps: int, epochs: int
) -> dict[str, float]:
    """FLOPs for one response in a whole training step, by phase."""
    forward = forward_flops(model, prompt + response)
    head = 2 * model.hidden * model.vocabulary * (prompt + response)
    recomputed = (forward - head if settings.checkpointing else 0) + (
        head if settings.logits_chunk else 0
    )
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
    """Seconds to generate all responses of a step, of `response` tokens on average, `at_a_time` on
    an engine.

    Each decoding adds a token to every running response, and reads the weights and the keys and
    values so far once; the longest response takes as many as it has tokens.
    """
    tokens = settings.engine_responses * response
    decodings = max(tokens / at_a_time, settings.longest)
    running = tokens / decodings
    read = BIT16 * model.parameters + running * kept_cache(model, prompt + response // 2)
    operations = 2 * running * model.multiplying
    slowest = max(read / (OF_BYTES * peaks[1]), operations / (OF_OPERATIONS * peaks[0]))
    return decodings / settings.tensor_parallel * slowest


def step_seconds(
    settings: Settings, generation: float, training: float, peaks: Peaks
) -> dict[str, float]:
    """Seconds of a step, from those of `generation` and the FLOPs of all responses in the other
    phases.
    """
    train = training / (settings.ranks * OF_OPERATIONS * peaks[0])
    step = generation + train if settings.shared else max(generation, train)
    return {"generate": generation, "train": train, "step": step}


Choice = tuple[str, dict[str, Any]]
"""A flag, which may name settings, and the settings that it changes."""
UNCHANGED: Choice = ("", {})
SAVE_GPU_MEMORY = {"vllm_sleeps": "--vllm.enable_sleep", "actor_sleeps": "--ds.enable_sleep"}
TAKE_MAIN_MEMORY = SAVE_GPU_MEMORY | {
    "adam_offload": "--ds.adam_offload",
    "averages": "--train.enable_ema",
}


@dataclass(frozen=True)
class Machine:
    """What a run has to fit into, in bytes."""

    gpu: int
    gpus_of_node: int
    node: int | None = None  # main memory of a node, if known

    def holds(self, model: Model, settings: Settings) -> bool:
        """Whether each phase fits the GPU, vLLM's part of it one response of full length, and a
        node the rest.
        """
        if self.node and _total(host_bytes(model, settings, self.gpus_of_node)) > self.node:
            return False
        enough = engine_capacity(model, settings, self.gpu, settings.mean)["full_sequences"] > 0
        return enough and max(map(_total, phases(model, settings, self.gpu).values())) <= self.gpu


def find_remedy(model: Model, settings: Settings, machine: Machine) -> str | None:
    """The flags with which everything fits, all of them together; None if no flags are enough.

    All combinations are tried, the cheapest first: those of `_cheap`, then those of `_costly`, each
    in its order.
    """
    cheap, costly = _cheap(settings), _costly(model, settings, machine)
    smallest = [choices[-1] for choices in cheap]  # each of them only lowers what a phase needs
    for chosen in product(*reversed(costly)):  # the last one varies fastest
        if not machine.holds(model, _changed(model, settings, machine, [*chosen, *smallest])):
            continue
        for others in product(*reversed(cheap)):
            choices = [*reversed(others), *reversed(chosen)]
            changed = _changed(model, settings, machine, choices)
            if machine.holds(model, changed):
                return " ".join(flag.format(changed) for flag, _ in choices if flag)
    return None


def place_optimizer(model: Model, given: Settings, machine: Machine) -> Settings:
    """The settings as a run follows them: an optimizer that may leave stays on the GPUs if it fits
    beside vLLM.

    With --ds.enable_sleep and --vllm.enable_sleep on one machine it stays if every phase of a step
    fits without the former, and vLLM still runs as many responses at a time, one of full length at
    least, with its share of the GPU, or as much less as it takes.
    """
    several_nodes = given.ranks > machine.gpus_of_node
    if not (given.actor_sleeps and given.vllm_sleeps) or given.adam_offload or several_nodes:
        return given
    gpu, staying = machine.gpu, replace(given, actor_sleeps=False)
    if max(map(_total, phases(model, staying, gpu).values())) > gpu:
        staying = replace(
            staying, utilization=min(given.utilization, _free_share(model, staying, gpu))
        )
    running, before = (
        engine_capacity(model, run, gpu, run.mean)["most_sequences"] for run in (staying, given)
    )
    return (
        staying
        if running >= before and replace(machine, node=None).holds(model, staying)
        else given
    )


def _cheap(now: Settings) -> list[list[Choice]]:
    """Flags that cost little time, cheapest first."""
    chunk = [] if now.logits_chunk else [("--swap.logits_chunk 1024", {"logits_chunk": 1024})]
    choices: list[list[Choice]] = [[UNCHANGED, *chunk]]
    for name, section in (("score", "rollout"), ("update", "train")):
        rows = range(getattr(now, f"{name}_rows") - 1, 0, -1)
        flag = f"--{section}.micro_batch_size {{0.{name}_rows}}"
        fewer: list[Choice] = [
            (flag, {f"{name}_rows": n}) for n in rows if now.batch % (n * now.ranks) == 0
        ]
        if now.update_limit:
            fewer = [
                (f"--{section}.max_tokens_per_gpu {{0.context}}", {f"{name}_limit": 1})
            ]  # a response at a time
        choices.append([UNCHANGED, *fewer])
    return choices


def _costly(model: Model, now: Settings, machine: Machine) -> list[list[Choice]]:
    """Flags that cost time in each step, cheapest first; then those that change the run."""
    places = now.engines * now.tensor_parallel
    sizes = [
        n
        for n in range(now.tensor_parallel + 1, places + 1)
        if places % n == 0 and model.heads % n == 0
    ]
    tensor_parallel = (
        "--vllm.tensor_parallel_size {0.tensor_parallel} --vllm.num_engines {0.engines}"
    )
    contexts = range((now.context - 1) // 1000 * 1000, max(0, now.context - now.longest), -1000)
    flags: list[list[Choice]] = [
        *(
            [(flag, {name: True})]
            for name, flag in SAVE_GPU_MEMORY.items()
            if now.shared and not getattr(now, name)
        ),
        [("--actor.gradient_checkpointing_enable", {"checkpointing": True})],
        [(tensor_parallel, {"tensor_parallel": n, "engines": places // n}) for n in sizes],
        [("--vllm.gpu_memory_utilization {0.utilization:.2f}", {"utilization": None})],
        [("--ds.zero_stage 3", {"stage": 3})] if now.can_shard else [],
        [] if now.adam_offload else [("--ds.adam_offload", {"adam_offload": True})],
        [
            ("--data.max_len {0.context} --rollout.max_new_tokens {0.longest}", {"context": n})
            for n in contexts
        ],
    ]
    if machine.node:
        given = ((name, flag) for name, flag in TAKE_MAIN_MEMORY.items() if getattr(now, name))
        flags += [[(flag.replace("--", "--no-"), {name: False})] for name, flag in given]
    return [[UNCHANGED, *choices] for choices in flags]


def _changed(model: Model, now: Settings, machine: Machine, choices: Iterable[Choice]) -> Settings:
    """The settings after some choices, and what follows from them."""
    changes = dict(chain.from_iterable(change.items() for _, change in choices))
    share = changes.pop("utilization", now.utilization)
    changed = replace(now, **changes)
    changed = replace(
        changed, engine_responses=math.ceil(now.engine_responses * now.engines / changed.engines)
    )
    if share is not None:
        return place_optimizer(model, replace(changed, utilization=share), machine)
    # With all that vLLM can get, or with what an optimizer that stays leaves to it: that takes less
    # main memory.
    shares = (
        _free_share(model, now, machine.gpu)
        for now in (changed, replace(changed, actor_sleeps=False))
    )
    leaving, staying = (
        place_optimizer(model, replace(changed, utilization=free), machine) for free in shares
    )
    return leaving if machine.holds(model, leaving) else staying


def _free_share(model: Model, settings: Settings, gpu: int) -> float:
    """The share of a GPU that all phases leave to vLLM, in whole hundredths."""
    without = phases(model, replace(settings, utilization=0.0), gpu).values()
    taken = max(_total(parts) for parts in without if "vLLM" in parts)
    return min(MOST_UTILIZATION, max(0, math.floor(100 - 100 * taken / gpu)) / 100)

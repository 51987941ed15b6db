"""What a training step takes of a GPU's memory, in bytes.

The formulas are pure. They follow OpenRLHF 0.11.2, DeepSpeed 0.19.6 and vLLM 0.29.0. Symbols: N
parameters, n tokens of a micro-batch (padding included), V vocabulary, H hidden size, L layers.
"""

import math
from collections.abc import Sequence

from openrlhf_swap.scoring.limits import HIDDEN_TOKENS, MASK_ELEMENTS
from openrlhf_swap.sizing.engine import engine_weights
from openrlhf_swap.sizing.models import GIB, Model
from openrlhf_swap.sizing.settings import BIT16, BRANCH_TOKENS, FP32, BytesByUse, Settings

ADAM = 3 * FP32  # the master copy of a parameter and two moments
BUCKET = 500_000_000  # gradients that DeepSpeed reduces at a time (reduce_bucket_size)
# Parameters that ZeRO-3 gathers at a time (max_live_parameters and prefetch_bucket_size).
LIVE = 1_050_000_000
SUB_GROUP = 1_000_000_000  # parameters that ZeRO-3 updates at a time (sub_group_size)
PIECE_BYTES = 2**28  # of weights that travel to vLLM together; a larger tensor travels alone
# Of a GPU of the actor: CUDA contexts, NCCL, CUDA graphs, what sleeps there, fragmentation.
ALLOWANCE = 4 * GIB
# What a micro-batch of an update allocates and frees, by its tokens, and in all.
OF_TOKENS = ("kept activations", "layer at work", "logits", "gradients of logits")
OF_MICRO_BATCH = (*OF_TOKENS, "gradients of the head")
# How many of the largest micro-batch's tensors stay on a CPU; seen: studies/records/measurements.md
FREED = 1.5
PHASES = {
    "generate": "generation",
    "score": "log-probabilities",
    "update": "the update",
    "adam": "Adam's step",
    "transfer": "the weight transfer",
}
"""Phases of a training step -> how reports name them."""


def partition(model: Model, settings: Settings) -> int:
    """Parameters that a rank updates."""
    return math.ceil(model.trained / settings.ranks)


def weights(model: Model, settings: Settings, gathered: bool = False) -> BytesByUse:
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


def optimizer(model: Model, settings: Settings) -> BytesByUse:
    """The fp32 master copy and Adam's two moments on a GPU, from the first update on."""
    if not settings.adam_offload:
        return {"optimizer": ADAM * partition(model, settings)}
    if settings.stage == 3:
        return {}
    # ZeRO-1 and 2 keep a buffer through which each gradient leaves.
    return {"offload buffer": BIT16 * model.largest}


def gradients(model: Model, settings: Settings, backward: bool) -> BytesByUse:
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


def product_bytes(model: Model) -> int:
    """Bytes that one layer keeps per token if it recomputes all but products and attention.

    These are its input, the results of its seven products, and the output of the attention with its
    log-sum-exp.
    """
    products = 2 * model.hidden + model.query + 2 * model.key_value + 2 * model.intermediate
    return BIT16 * (model.hidden + products + model.query) + FP32 * model.heads


def kept_and_recomputed(model: Model, settings: Settings) -> tuple[int, int]:
    """Bytes per token that each layer keeps, and that the layer at work adds by recomputing."""
    everything = layer_bytes(model)
    if not settings.checkpointing:
        return everything, 0
    if not settings.keeps_products:
        return BIT16 * model.hidden, everything
    # Values, the attention's output and sums, and two tensors of the MLP are not recomputed. The
    # last results of attention and MLP are let go.
    results = model.key_value + model.query + 2 * model.intermediate + 2 * model.hidden
    return product_bytes(model), everything - BIT16 * results - FP32 * model.heads


def update_moments(model: Model, settings: Settings) -> dict[str, BytesByUse]:
    """What is allocated at the two possible peaks of an update.

    One is at its loss ("loss"), the other in the last layer's backward pass ("layer").
    """
    n = settings.update_tokens
    kept, recomputed = kept_and_recomputed(model, settings)
    # Gradients of a layer's output, and in its MLP two more than were freed.
    at_work = recomputed + BIT16 * (model.hidden + 2 * model.intermediate)
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


def cpu_update_bytes(model: Model, settings: Settings) -> BytesByUse:
    """Bytes that the policy holds in an update on a CPU, by use.

    There glibc keeps what is freed until the update ends (`KEEPS_FREED_BLOCKS`). A micro-batch
    hardly fits into what the one before has freed, because its responses have other lengths.
    """
    moments = update_moments(model, settings).values()
    by_tokens = max(_sum_of(OF_TOKENS, moment) for moment in moments)
    parts = weights(model, settings) | optimizer(model, settings)
    parts |= gradients(model, settings, backward=False)
    parts["micro-batch"] = max(_sum_of(OF_MICRO_BATCH, moment) for moment in moments)
    parts["freed blocks"] = int(FREED * by_tokens)
    if settings.widens_products:
        parts["weight in float32"] = FP32 * model.largest_sent  # of the head, for its product
    return parts


def _sum_of(names: Sequence[str], parts: BytesByUse) -> int:
    return sum(parts.get(name, 0) for name in names)


def _held_logits(model: Model, settings: Settings) -> BytesByUse:
    """The logits that OpenRLHF's training step holds until it ends, if they are not in chunks."""
    if settings.logits_chunk:
        return {}
    return {"logits": FP32 * model.vocabulary * settings.update_tokens}


def _head(model: Model, settings: Settings) -> BytesByUse:
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


def adam_step(model: Model, settings: Settings) -> BytesByUse:
    """What is allocated in the optimizer's step, with the gradients flat and in float32."""
    parts = weights(model, settings) | optimizer(model, settings)
    parts |= gradients(model, settings, backward=False)
    if not settings.adam_offload:
        own = partition(model, settings)
        if settings.stage == 3:
            own = min(own, SUB_GROUP)  # group by group
        parts["flat gradients"] = (BIT16 + FP32) * own
    return parts | _held_logits(model, settings)


def idle(model: Model, settings: Settings) -> BytesByUse:
    """Optimizer and gradient buffers that stay on the GPU while the actor is not updating.

    In sleep mode none do.
    """
    if settings.actor_sleeps and not settings.adam_offload:
        return {}
    parts = optimizer(model, settings)
    if settings.stage == 3:
        parts |= gradients(model, settings, backward=False)
    return parts


def scoring_pass(model: Model, settings: Settings) -> BytesByUse:
    """What is allocated at the peak of the log-probability pass, or of the passes without steps.

    The answer branches run behind the rows of responses. Where need is read, the keys and values of
    the rows are kept for later passes, each without some step.
    """
    branches = settings.score_tokens // settings.context * settings.branches
    n = settings.score_tokens + branches * BRANCH_TOKENS
    parts = weights(model, settings, gathered=True) | idle(model, settings)
    if settings.hides_steps:
        parts["kept keys"] = key_bytes(model, settings.score_tokens, len(model.windows))
    of_rows = {**parts, "logits": _forward(model, settings, n)}
    if branches:
        # Each call takes a share of branches and keys.
        seen = branches * BRANCH_TOKENS * n
        calls = math.ceil(math.sqrt(seen / MASK_ELEMENTS))
        recurrent = max(1, model.layers - len(model.windows))
        states = 2 * FP32 * branches * model.states // recurrent
        of_rows["branches"] = BIT16 * seen // calls + states
    if not settings.hides_steps:
        return of_rows
    of_hidden = {**parts, **_hidden_steps(model, settings)}
    return max(of_rows, of_hidden, key=total)


def key_bytes(model: Model, tokens: int, layers: int) -> int:
    """Bytes of the keys and values of so many tokens and layers in bf16, as attention gets them."""
    return 2 * BIT16 * model.key_value * tokens * layers


def _forward(model: Model, settings: Settings, n: int) -> int:
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


def _hidden_steps(model: Model, settings: Settings) -> BytesByUse:
    """What a pass without steps allocates, besides the kept keys and values.

    A layer gathers what each branch sees: assumed are K branches, which see a whole context each.
    """
    n = max(HIDDEN_TOKENS, settings.context)
    seen = (settings.branches - 1) * settings.context + n
    return {
        "logits": _forward(model, settings, n),
        "gathered keys": key_bytes(model, seen, layers=1),
    }


def transfer(model: Model, settings: Settings) -> BytesByUse:
    """What is allocated while the weights travel to vLLM, besides vLLM's own.

    They travel in pieces; the adapters are merged into one weight after the other.
    """
    piece = max(PIECE_BYTES, BIT16 * model.largest_sent)
    parts = weights(model, settings) | idle(model, settings)
    parts["pieces of weights"] = 2 * piece  # packed, and as vLLM or the network takes it
    if settings.stage == 3:
        parts["gathered weights"] = piece
    if model.adapters:
        # What the adapter adds, and the sum.
        parts["merged weight"] = 2 * BIT16 * model.largest_merged
    return parts


def total(parts: BytesByUse) -> int:
    """Bytes of all uses together."""
    return sum(parts.values())


def phases(model: Model, settings: Settings, gpu: int) -> dict[str, BytesByUse]:
    """Bytes on a GPU of `gpu` bytes at the peak of each phase of a training step."""
    vllm = {"vLLM": int(settings.utilization * gpu)}
    generation = dict(vllm)
    others = {"allowance": ALLOWANCE}
    at_transfer = dict(others)
    if settings.shared:
        generation |= weights(model, settings) | idle(model, settings) | others
        if settings.vllm_sleeps:  # for the transfer it has woken its weights alone
            at_transfer["weights of vLLM"] = engine_weights(model, settings)
        else:
            others |= vllm
            at_transfer |= vllm
    update = max(update_moments(model, settings).values(), key=total)
    return {
        "generate": generation,
        "score": {**scoring_pass(model, settings), **others},
        "update": {**update, **others},
        "adam": {**adam_step(model, settings), **others},
        "transfer": {**transfer(model, settings), **at_transfer},
    }

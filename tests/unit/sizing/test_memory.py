"""A plan's memory against hand-worked numbers and what the real code holds."""

import importlib
import sys
import types
from dataclasses import replace

import pytest
import torch
from support.paths import POLICY
from support.sizing import NODE, R1
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    AutoConfig,
    AutoModelForCausalLM,
    Qwen2Config,
)
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from openrlhf_swap.algorithm.log_probs import LogitTransform
from openrlhf_swap.sizing import memory
from openrlhf_swap.sizing.engine import engine_capacity
from openrlhf_swap.sizing.host import CheckpointBytes, checkpoint_bytes, host_bytes
from openrlhf_swap.sizing.models import GIB, read_model

pytestmark = pytest.mark.filterwarnings("ignore:Module is None")  # of the tracker of memory
SMALL = read_model(R1 + "1.5B", 14_000)
MIB = 2**20


def test_the_update_of_the_1_5b_by_hand():
    # One response of 14,000 tokens on each of 8 GPUs under ZeRO-2, in bytes:
    moments = memory.update_moments(SMALL, NODE)
    loss = moments["loss"]
    layer = moments["layer"]
    assert loss == {
        "weights": 2 * 1_777_088_000,
        "optimizer": 12 * 222_136_000,  # 1,777,088,000 / 8
        # bf16 gradients of earlier micro-batches: the partition and a 151,936 x 1,536 embedding
        # that reaches out of it
        "gradients": 2 * (222_136_000 + 233_373_696),
        "gradient buckets": 0,
        # 28 layer inputs of 2 x 1,536 bytes, and the last norm's 4 + 2 + 2 bytes times 1,536, for
        # each token
        "kept activations": 14_000 * (28 * 3_072 + 12_288),
        "logits": (2 + 4) * 1024 * 151_936,
        "gradients of the head": 4 * 233_373_696 + 14_000 * 2 * 1_536,
    }
    # A layer keeps 2 norms of 8 x 1,536 + 4, 2 x (2 x 1,536 + 2 x 256) + 4 x 12 of attention and 8
    # x 8,960 of MLP: 24,584 + 7,216 + 71,680 = 103,480; then gradients of 4 x 8,960 and 2 x 1,536.
    assert layer["layer at work"] == 14_000 * (103_480 + 35_840 + 3_072)
    assert "logits" not in layer
    assert layer["gradients"] == 2 * loss["gradients"]
    assert layer["gradient buckets"] == 2 * 2 * 500_000_000 + 2 * 233_373_696


@pytest.mark.parametrize(
    ("stage", "weights", "optimizer", "gradients", "checkpoint"),
    [
        (1, 16_000, 12_000, 16_000, 112_000),
        (2, 16_000, 12_000, 2 * (1_000 + 500), 112_000),
        (3, 2_000, 12_000, 2_000, 96_000),
    ],
)
def test_zero_stages_share_out_what_they_should(stage, weights, optimizer, gradients, checkpoint):
    # 8,000 parameters on 8 ranks, the largest weight 500: 16 bytes each without ZeRO, of which 14
    # are saved.
    model = replace(SMALL, parameters=8_000, largest=500)
    settings = replace(NODE, stage=stage)
    assert memory.weights(model, settings)["weights"] == weights
    assert memory.optimizer(model, settings)["optimizer"] == optimizer
    assert memory.gradients(model, settings, backward=False)["gradients"] == gradients
    assert checkpoint_bytes(model, settings) == CheckpointBytes(checkpoint, model=16_000)


@pytest.mark.parametrize(("stage", "buffer", "flat"), [(2, 1_000, 48_000), (3, None, 18_000)])
def test_one_rank_of_adam_by_hand(monkeypatch, stage, buffer, flat):
    """As measured on an H100: flat gradients in bf16 and float32, under ZeRO-3 by groups."""
    monkeypatch.setattr(memory, "SUB_GROUP", 3_000)
    model = replace(SMALL, parameters=8_000, largest=500)
    settings = replace(NODE, stage=stage, ranks=1)
    assert memory.adam_step(model, settings)["flat gradients"] == flat
    offloaded = memory.adam_step(model, replace(settings, adam_offload=True))
    assert offloaded.get("offload buffer") == buffer
    assert "flat gradients" not in offloaded


def test_pinned_blocks_are_powers_of_two_by_hand():
    """Of an engine's weights on a GPU, and of a rank's optimizer; 8 of each on a node."""
    # In each of 28 layers gate and up, 52.5 MiB, are allocated as 54 and pinned as 64, down with
    # 26.25 as 32. The smaller ones, 6 + 4.5 MiB a layer, fill 15 segments of 20 MiB, pinned as 32.
    # Embedding and head: 445.1 as 512.
    engine = (28 * (64 + 32) + 15 * 32 + 2 * 512) * MIB
    # Master copy and moments: 4 x 222,136,000 bytes are 847.4 MiB.
    assert host_bytes(SMALL, NODE, 8) == {
        "weights of sleeping vLLM": 8 * engine,
        "sleeping optimizer": 8 * 3 * 1024 * MIB,
    }
    # 4 x 1,777,088,000 bytes are 6.6 GiB: master copy and gradients take 8 each, the moments are
    # not pinned; bf16 weights take 4 for 3.3. Gradients of earlier micro-batches: 4.5 as 8, .75 as
    # 1 twice, 4.5 as 8, 26.25 as 32 three times a layer; biases of 3,072 and twice 512 bytes as
    # 4,096 and 512, two norms and the last of 3,072 as 4,096.
    earlier = 28 * (114 * MIB + 4096 + 2 * 512 + 2 * 4096) + 4096 + 2 * 512 * MIB
    offloaded = replace(NODE, ranks=1, vllm_sleeps=False, adam_offload=True)
    optimizer = 20 * GIB + 8 * 1_777_088_000 + earlier
    assert host_bytes(SMALL, offloaded, 1) == {"optimizer": optimizer}


# Memory by the real code


class SavesLikeFlashAttention(torch.autograd.Function):
    """What flash-attention keeps and returns; only sizes count here."""

    @staticmethod
    def forward(ctx, query, key, value):
        output = torch.empty_like(query)
        sums = torch.empty(query.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(query, key, value, output, sums)
        return output

    @staticmethod
    def backward(ctx, _):
        query, key, value, _, _ = ctx.saved_tensors
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


class SavesLikeFlashCrossEntropy(torch.autograd.Function):
    """The same for flash-attention's kernel of cross-entropy, with which OpenRLHF scores tokens."""

    @staticmethod
    def forward(ctx, logits, labels):
        sums = torch.empty_like(labels, dtype=torch.float32)
        ctx.save_for_backward(logits, sums, labels)
        return torch.empty_like(labels, dtype=torch.float32)

    @staticmethod
    def backward(ctx, _):
        return torch.empty_like(ctx.saved_tensors[0]), None


def attend(module, query, key, value, mask, **_):
    parts = [part.transpose(1, 2) for part in (query, key, value)]
    return SavesLikeFlashAttention.apply(*parts), None


def attend_by_torch(module, query, key, value, mask, **options):
    return sdpa_attention_forward(module, query, key, value, None, **options)


for name, attention in {"sizes_only": attend, "causal": attend_by_torch}.items():
    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, lambda *_, **__: None)


@pytest.fixture
def openrlhf_without_cuda(monkeypatch):
    """OpenRLHF with our imports, and with a stand-in for flash-attention's cross-entropy."""
    importlib.import_module("openrlhf_swap.integration")  # makes OpenRLHF importable without CUDA
    kernel = types.ModuleType("cross_entropy")
    kernel.cross_entropy_loss = lambda *given: (SavesLikeFlashCrossEntropy.apply(*given),)
    monkeypatch.setitem(sys.modules, "flash_attn.ops.triton.cross_entropy", kernel)


def make_actor(config, chunk, attention="sizes_only"):
    """An actor without weights. Without a chunk, its forward is OpenRLHF's own."""
    from openrlhf_swap.integration.policy.chunked_actor import ChunkedActor, Head

    options = {"dtype": torch.bfloat16, "attn_implementation": attention}
    model = AutoModelForCausalLM.from_config(config, **options)
    model.config.use_cache = False
    actor = ChunkedActor(model)
    actor.packing_samples = False
    actor.temperature = 0.6
    if chunk:
        actor.head = Head(model.lm_head, LogitTransform(), chunk)
    return actor


class Tracker(MemTracker):
    """Counts the bytes at a moment of a block, besides those of weights and their gradients."""

    def size(self, moment):
        (parts,) = self.get_tracker_snapshot(moment).values()
        total = 0
        for kind, size in parts.items():
            if getattr(kind, "value", "") in ("Activation", "Temp"):
                total += size
        return total


def all_tokens(mask):
    """Instead of `nonzero`: tensors without values, all of whose tokens are actions."""
    return torch.arange(mask.numel()).unsqueeze(-1)


def update(actor, sequences):
    """Forward, loss and backward of OpenRLHF's training step."""
    from openrlhf.models import PolicyLoss

    present = torch.ones_like(sequences)
    actions = present[:, 1:]
    log_probs, output = actor(sequences, actions, present, return_output=True)
    old = torch.zeros(actions.shape)
    info = {"dp_size": 1, "batch_num_tokens": 1.0}
    loss = PolicyLoss()(log_probs, old, old, action_mask=actions, **info)[0]
    loss.backward()
    # OpenRLHF holds the logits to the end.
    assert output["logits"].dtype == torch.float32


def read_log_probs(actor, sequences):
    present = torch.ones_like(sequences)
    with torch.no_grad():
        actor(sequences, present[:, 1:], present, return_output=True)


def nothing(model):
    """The backward pass recomputes nothing."""


def layers(model):
    model.gradient_checkpointing_enable({"use_reentrant": False})


def all_but_products(model):
    from openrlhf_swap.integration.policy.recomputing import keep_products

    keep_products(model)


RECOMPUTING = {
    nothing: {"checkpointing": False},
    layers: {"checkpointing": True},
    all_but_products: {"checkpointing": True, "keeps_products": True},
}


def traced_peak(run, config, rows, tokens, chunk, recompute=nothing):
    """Bytes at the peak of `run`, which gets an actor and so many rows of tokens."""
    with FakeTensorMode(), pytest.MonkeyPatch.context() as patch:
        attention = "causal" if recompute is all_but_products else "sizes_only"
        actor = make_actor(config, chunk, attention)
        if chunk:
            patch.setattr(torch.Tensor, "nonzero", all_tokens)
        recompute(actor.model)
        actor.model.train(run is update)
        tracker = Tracker()
        tracker.track_external(actor.model)
        sequences = torch.zeros(rows, tokens, dtype=torch.int64)
        with tracker:
            run(actor, sequences)
        return tracker.size("peak")


def wide_model(tmp_path, vocabulary):
    """Two layers as wide as the 1.5B's."""
    config = Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=1536,
        intermediate_size=8960,
        num_hidden_layers=2,
        num_attention_heads=12,
        num_key_value_heads=2,
        tie_word_embeddings=False,
    )
    config.save_pretrained(tmp_path)
    return config, read_model(str(tmp_path), 3000)


@pytest.mark.parametrize(
    ("moment", "vocabulary", "recompute", "chunk", "rows", "tokens"),
    [
        # So many rows that the gradients of the weights, which the peak has too, do not count.
        ("loss", 151_936, layers, 0, 2000, 3000),
        ("layer", 1000, nothing, 0, 2000, 3000),
        ("layer", 1000, all_but_products, 0, 2000, 3000),
        ("loss", 151_936, layers, 1024, 1, 3000),
        ("loss", 151_936, layers, 4096, 1, 14_000),
    ],
)
def test_the_update_allocates_what_the_plan_says(
    openrlhf_without_cuda, tmp_path, moment, vocabulary, recompute, chunk, rows, tokens
):
    config, model = wide_model(tmp_path, vocabulary)
    settings = replace(
        NODE,
        context=tokens,
        update_rows=rows,
        logits_chunk=chunk,
        **RECOMPUTING[recompute],
    )
    parts = memory.update_moments(model, settings)[moment]
    names = ["kept activations", "logits", "gradients of logits", "layer at work"]
    if chunk:
        names.append("gradients of the head")
    planned = sum(parts.get(name, 0) for name in names)
    traced = traced_peak(update, config, rows, tokens, chunk, recompute)
    # All but positions and their embedding: some 500 bytes a token.
    assert planned == pytest.approx(traced, rel=0.005)


def small_qwen2(folder):
    """Four layers with weights of any numbers, which real tensors pass."""
    sizes = {"hidden_size": 256, "intermediate_size": 1024, "vocab_size": 1000}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 2}
    config = Qwen2Config(num_hidden_layers=4, **sizes, **heads)
    config.save_pretrained(folder)
    return str(folder)


def bytes_for_the_backward(actor, sequences, mask):
    """Bytes of all storages that a forward keeps for its backward pass, but for weights."""
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        log_probs = actor(sequences, mask[:, 1:], mask)
    for weight in actor.model.parameters():
        kept.pop(weight.untyped_storage().data_ptr(), None)
    assert log_probs.requires_grad  # so that all of it is still there
    return sum(kept.values())


@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("embedded", [False, True])
def test_an_update_that_recomputes_nothing_keeps_what_the_plan_says(
    openrlhf_without_cuda, tmp_path, embedded, packing
):
    """Two rows of 400 and 300 tokens, which a packed row holds without padding."""
    path = str(POLICY) if embedded else small_qwen2(tmp_path)
    actor = make_actor(AutoConfig.from_pretrained(path), chunk=64)
    actor.packing_samples = packing
    sequences = torch.ones(2, 400, dtype=torch.int64)
    mask = torch.ones_like(sequences)
    mask[1, 300:] = 0
    kept = bytes_for_the_backward(actor, sequences, mask)
    settings = replace(NODE, checkpointing=False, context=400, update_rows=2)
    if packing:
        settings = replace(settings, update_limit=700)
    planned = memory.update_moments(read_model(path, 400), settings)["loss"]["kept activations"]
    assert planned == pytest.approx(kept, rel=0.05)


def test_an_update_that_keeps_products_keeps_what_the_plan_says(openrlhf_without_cuda, tmp_path):
    """Of two responses in a packed row, as training attends them on a CPU."""
    from openrlhf_swap.integration.runtime import attention

    path = small_qwen2(tmp_path)
    actor = make_actor(AutoConfig.from_pretrained(path), chunk=64, attention=attention.NAME)
    actor.packing_samples = True
    all_but_products(actor.model)
    mask = torch.ones(2, 400, dtype=torch.int64)
    mask[1, 300:] = 0
    tracker = Tracker()
    tracker.track_external(actor.model)
    with tracker:
        log_probs = actor(torch.ones_like(mask), mask[:, 1:], mask)
        kept = tracker.size("current")
    assert log_probs.requires_grad  # so that all of it is still there
    settings = replace(
        NODE, context=400, update_rows=2, update_limit=700, **RECOMPUTING[all_but_products]
    )
    planned = memory.update_moments(read_model(path, 400), settings)["loss"]["kept activations"]
    assert planned == pytest.approx(kept, rel=0.05)


@pytest.mark.parametrize("chunk", [0, 1024])
def test_the_log_probability_pass_allocates_what_the_plan_says(
    openrlhf_without_cuda, tmp_path, chunk
):
    config, model = wide_model(tmp_path, 151_936)
    settings = replace(NODE, context=3000, score_rows=2, logits_chunk=chunk, branches=0)
    planned = memory.scoring_pass(model, settings)["logits"]
    traced = traced_peak(read_log_probs, config, 2, 3000, chunk)
    assert planned == pytest.approx(traced, rel=0.001)


def test_lora_trains_and_keeps_its_adapters_only():
    model = replace(SMALL, adapters=1_000_000, largest=50_000)
    assert memory.partition(model, NODE) == 125_000
    assert memory.weights(model, NODE) == {"weights": 2 * (SMALL.parameters + 1_000_000)}
    assert memory.optimizer(model, NODE) == {"optimizer": 12 * 125_000}
    checkpoint = 12_000_000 + 2 * (SMALL.parameters + 1_000_000)
    assert checkpoint_bytes(model, NODE) == CheckpointBytes(checkpoint, model=2_000_000)
    capacity = engine_capacity(model, NODE, 80 * GIB, 6200)
    assert capacity.weights_bytes == 2 * SMALL.parameters  # vLLM gets merged weights
    # An adapter's output is scaled before it is added.
    unscored = replace(NODE, branches=0)
    plain = memory.scoring_pass(replace(SMALL, vocabulary=1000, layers=1), unscored)
    adapted = memory.scoring_pass(replace(model, vocabulary=1000, layers=1), unscored)
    assert adapted["logits"] - plain["logits"] == 14_000 * 2 * 8_960


def test_need_keeps_keys_and_values_by_hand():
    """Of 28 layers with 256 numbers each for keys and values, in bf16; 25 steps, 26 branches."""
    need = replace(NODE, hides_steps=True)
    plain = memory.scoring_pass(SMALL, NODE)
    parts = memory.scoring_pass(SMALL, need)
    assert parts["kept keys"] == 28 * 2 * 2 * 256 * 14_000 == 401_408_000
    # A pass repeats at most 14,000 tokens, more than 8,192; the branches see 25 x 14,000 before.
    assert parts["gathered keys"] == 2 * 2 * 256 * (25 * 14_000 + 14_000)
    # The logits of 1,024 tokens, beside hidden states of 1,536 numbers.
    assert parts["logits"] == 6 * 1024 * 151_936 + 2 * 1_536 * (1024 + 14_000)
    assert "kept keys" not in plain
    assert "branches" not in parts


def test_constants_are_those_of_the_installed_packages():
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
    from vllm.config.scheduler import SchedulerConfig
    from vllm.engine.arg_utils import EngineArgs
    from vllm.usage.usage_lib import UsageContext

    zero = DeepSpeedZeroConfig(stage=3)
    assert zero.reduce_bucket_size == memory.BUCKET
    assert zero.max_live_parameters + zero.prefetch_bucket_size == memory.LIVE
    assert zero.sub_group_size == memory.SUB_GROUP
    # OpenRLHF starts AsyncLLM without naming a usage, for which vLLM has no defaults of its own but
    # 128 and 2,048.
    _, sequences = EngineArgs.get_batch_defaults(1)
    assert UsageContext.ENGINE_CONTEXT not in sequences
    assert SchedulerConfig.DEFAULT_MAX_NUM_SEQS == 128
    assert SchedulerConfig.DEFAULT_MAX_NUM_BATCHED_TOKENS == 2048


def test_the_weight_transfer_of_a_7b_with_adapters_by_hand():
    """One weight is merged at a time: all at once, 12.2 GiB, would not fit into 45 GiB."""
    model = read_model(R1 + "7B", 14_000, 32)
    settings = replace(
        NODE, ranks=1, engines=1, engine_responses=2048, utilization=0.55, actor_sleeps=False
    )
    # In each of 28 layers, rank 32 times both widths: queries and output 2 x (3,584 + 3,584), keys
    # and values 2 x (3,584 + 512), gate, up and down 3 x (3,584 + 18,944).
    adapters = 28 * 32 * (2 * 7_168 + 2 * 4_096 + 3 * 22_528)
    assert model.adapters == adapters == 80_740_352
    parts = memory.phases(model, settings, 45 * GIB)["transfer"]
    assert parts == {
        "weights": 2 * (7_615_616_512 + adapters),
        "optimizer": 12 * adapters,
        "pieces of weights": 2 * 2 * 152_064 * 3_584,  # the embedding, packed and as vLLM takes it
        "merged weight": 2 * 2 * 18_944 * 3_584,  # what an adapter of the MLP adds, and the sum
        "weights of vLLM": 2 * 7_615_616_512,
        "allowance": 4 * GIB,
    }
    assert sum(parts.values()) / GIB == pytest.approx(35.7, abs=0.05)

"""The arithmetic of a plan against hand-worked numbers, and against what the real code computes and
allocates.
"""

import importlib
import math
import sys
import types
from dataclasses import replace

import pytest
import torch
from support.paths import POLICY, ROOT
from support.prefix_scores import masks_of
from support.sizing import NODE, R1
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    AutoModelForCausalLM,
    Qwen2Config,
)

from openrlhf_swap.algorithm.log_probs import LogitTransform
from openrlhf_swap.flags.configuration import configure
from openrlhf_swap.scoring.answer import AnswerBranch, ScoreRequest
from openrlhf_swap.scoring.branches import MAX_MASK
from openrlhf_swap.scoring.need import MAX_TOKENS
from openrlhf_swap.scoring.shared_prefix import score_shared_prefix
from openrlhf_swap.sizing import memory
from openrlhf_swap.sizing.models import GIB, Model, read_model

pytestmark = pytest.mark.filterwarnings("ignore:Module is None")  # of the tracker of memory
SMALL = read_model(R1 + "1.5B", 14_000)
MIB = 2**20


# Memory by hand


def test_the_update_of_the_1_5b_by_hand():
    # One response of 14,000 tokens on each of 8 GPUs under ZeRO-2, in bytes:
    loss, layer = memory.update_moments(SMALL, NODE).values()
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
    assert layer["logits"] == 0
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
    model, settings = replace(SMALL, parameters=8_000, largest=500), replace(NODE, stage=stage)
    assert memory.weights(model, settings)["weights"] == weights
    assert memory.optimizer(model, settings)["optimizer"] == optimizer
    assert memory.gradients(model, settings, backward=False)["gradients"] == gradients
    assert memory.checkpoint_bytes(model, settings) == {"deepspeed": checkpoint, "model": 16_000}


def test_what_sleeps_and_what_is_offloaded_leaves_the_gpu():
    awake = replace(NODE, vllm_sleeps=False, actor_sleeps=False)
    asleep, held = (memory.phases(SMALL, settings, 100 * GIB) for settings in (NODE, awake))
    assert held["update"]["vLLM"] == 70 * GIB
    assert "vLLM" not in asleep["update"]
    assert held["generate"]["optimizer"] == 12 * 222_136_000
    assert "optimizer" not in asleep["generate"]
    offloaded = memory.update_moments(SMALL, replace(NODE, adam_offload=True))["loss"]
    assert "optimizer" not in offloaded
    assert offloaded["gradients"] == 0


@pytest.mark.parametrize(
    ("stage", "buffer", "flat"), [(2, 2 * 500, 6 * 8_000), (3, None, 6 * 3_000)]
)
def test_one_rank_of_adam_by_hand(monkeypatch, stage, buffer, flat):
    """As measured on an H100: flat gradients in bf16 and float32, under ZeRO-3 by groups; a buffer
    when offloaded.
    """
    monkeypatch.setattr(memory, "SUB_GROUP", 3_000)
    model, settings = (
        replace(SMALL, parameters=8_000, largest=500),
        replace(NODE, stage=stage, ranks=1),
    )
    assert memory.adam_step(model, settings)["flat gradients"] == flat
    offloaded = memory.adam_step(model, replace(settings, adam_offload=True))
    assert offloaded.get("offload buffer") == buffer
    assert "flat gradients" not in offloaded


# Main memory of a node by hand


def test_pinned_blocks_are_powers_of_two_by_hand():
    """Of an engine's weights on a GPU, and of a rank's optimizer; 8 of each on a node."""
    # In each of 28 layers gate and up, 52.5 MiB, are allocated as 54 and pinned as 64, down with
    # 26.25 as 32. The smaller ones, 6 + 4.5 MiB a layer, fill 15 segments of 20 MiB, pinned as 32.
    # Embedding and head: 445.1 as 512.
    engine = (28 * (64 + 32) + 15 * 32 + 2 * 512) * MIB
    # Master copy and moments: 4 x 222,136,000 bytes are 847.4 MiB.
    assert memory.host_bytes(SMALL, NODE, 8) == {
        "weights of sleeping vLLM": 8 * engine,
        "sleeping optimizer": 8 * 3 * 1024 * MIB,
    }
    # 4 x 1,777,088,000 bytes are 6.6 GiB: master copy and gradients take 8 each, the moments are
    # not pinned; bf16 weights take 4 for 3.3. Gradients of earlier micro-batches: 4.5 as 8, .75 as
    # 1 twice, 4.5 as 8, 26.25 as 32 three times a layer; biases of 3,072 and twice 512 bytes as
    # 4,096 and 512, two norms and the last of 3,072 as 4,096.
    earlier = 28 * (114 * MIB + 4096 + 2 * 512 + 2 * 4096) + 4096 + 2 * 512 * MIB
    assert memory.host_bytes(
        SMALL, replace(NODE, ranks=1, vllm_sleeps=False, adam_offload=True), 1
    ) == {"optimizer": 20 * GIB + 8 * 1_777_088_000 + earlier}


def test_zero_3_pins_group_by_group():
    # 9.6e9 parameters on 8 ranks: a group of 1e9, 4e9 bytes as 4 GiB, one of 2e8, 8e8 bytes as 1
    # GiB; gradients 2.4e9 bytes as 4 GiB.
    model, settings = (
        replace(SMALL, parameters=9_600_000_000),
        replace(NODE, stage=3, vllm_sleeps=False),
    )
    assert memory.host_bytes(model, settings, 8) == {
        "sleeping optimizer": 8 * (3 * (4 + 1) + 4) * GIB
    }


# What stays on the GPU, by hand


def place(gib, *flags, size="1gpu", gpus=1):
    """A model, and its settings as they are given and as they are placed."""
    file = str(ROOT / "scripts" / f"train_swap_{size}.yaml")
    model, given = memory.read_run(configure(["--config", file, *flags], on_cpu=False))
    return model, given, memory.place_optimizer(model, given, memory.Machine(int(gib * GIB), gpus))


def stays(gib, *flags, size="1gpu", gpus=1):
    """vLLM's share of a GPU beside an optimizer that stays; None if it leaves."""
    _, given, placed = place(gib, *flags, size=size, gpus=gpus)
    assert (placed == given) == placed.actor_sleeps
    assert placed.vllm_sleeps == given.vllm_sleeps
    return None if placed.actor_sleeps else placed.utilization


def test_the_optimizer_stays_where_vllm_still_runs_as_many_responses():
    # 1,777,088,000 parameters take 2 + 12 bytes each and 4 GiB are kept free: 65.6% of 79.1 GiB are
    # left. The cache of 65% less 3,554,176,000 bytes of weights and 1.5 GiB holds 281 responses of
    # 6,200 tokens of 28,672 bytes: all 256.
    assert stays(79.1) == 0.65
    # Of 72 GiB 62% are left, for 240 responses; with the optimizer away 70% hold all 256.
    assert stays(72) is None
    # A response of full length takes 401 MB, and a GPU of 44 GiB leaves 38%: 12.6 GB, 70 responses
    # instead of 159.
    assert stays(44) is None
    assert stays(44, "--swap.engine_sequences", "64") == 0.38


@pytest.mark.parametrize("size", ["1.5b", "7b"])
def test_on_eight_gpus_there_is_room_beside_the_share_that_is_given(size):
    assert stays(79.1, size=size, gpus=8) == 0.7


def test_it_leaves_where_there_is_nothing_to_stay_for():
    assert stays(79.1, "--ds.adam_offload") is None
    assert stays(79.1, "--no-vllm.enable_sleep") is None
    assert stays(79.1, size="1.5b", gpus=4) is None  # two nodes: nobody reads the GPUs of the other


def step_of(prompts, responses):
    batch = ["--rollout.batch_size", str(prompts), "--train.batch_size", str(prompts * responses)]
    return [*batch, "--rollout.n_samples_per_prompt", str(responses)]


SHORT = ["--data.max_len", "3048", "--rollout.max_new_tokens", "2048", *step_of(8, 8)]
LORA = ["--actor.model_name_or_path", f"{R1}7B", "--ds.lora.rank", "32"]


def test_neither_leaves_where_both_fit_with_all_responses_of_a_step():
    # 64 responses of 3,048 tokens and 32 of blocks, 28,672 bytes each, with 3,554,176,000 bytes of
    # weights, 1.5 GiB of activations and 1 GiB of graphs: 13.9997% of 79.1 GiB.
    model, given, placed = place(79.1, *SHORT)
    neither = {"actor_sleeps": False, "vllm_sleeps": False, "utilization": 0.14}
    assert placed == replace(given, **neither)
    cache = int(0.14 * int(79.1 * GIB)) - 3_554_176_000 - 5 * GIB // 2
    assert memory.cache_bytes(model, placed, int(79.1 * GIB)) == cache >= 64 * 3_080 * 28_672
    # A step with sleep moves the optimizer's 12 bytes and the weights' 2, out and in.
    assert memory.copied_bytes(model, given) == 2 * (12 + 2) * 1_777_088_000
    assert memory.copied_bytes(model, replace(given, actor_sleeps=False)) == 2 * 2 * 1_777_088_000
    assert memory.describe_place(model, given, placed) == (
        "stays on the GPU beside vLLM, which takes 14% of it and never sleeps: a step copies 0.0 "
        "GiB on each GPU, 46.3 less than if both left"
    )
    # Nothing sleeps in main memory either, and a user's smaller share or flag wins.
    assert memory.host_bytes(model, placed, 1) == {}
    assert place(79.1, *SHORT, "--vllm.gpu_memory_utilization", "0.13")[2].vllm_sleeps
    _, given, placed = place(79.1, *SHORT, "--no-ds.enable_sleep")
    assert placed == given


@pytest.mark.parametrize(
    ("gib", "gpus", "size", "flags", "sleeps"),
    [
        # 16 x 8 responses of 14,000 tokens take 48.0 GiB. With 5.8 of weights, graphs and
        # activations and 23.2 + 4 of the policy they are 1.9 GiB too many.
        (79.1, 1, "1gpu", step_of(16, 8), True),
        # 256 responses of a 7B take 191 GiB on each of eight GPUs, 64 of 3,048 tokens 10.5.
        (79.1, 8, "7b", [], True),
        (79.1, 8, "7b", [*SHORT, *step_of(8, 64)], False),
        # LoRA on 48 GB: 27.2 GiB of vLLM are 5.8 too many in the update.
        (48, 1, "1gpu", [*SHORT, *LORA], True),
    ],
)
def test_vllm_sleeps_where_a_phase_needs_its_room(gib, gpus, size, flags, sleeps):
    _, _, placed = place(gib, *flags, size=size, gpus=gpus)
    assert (placed.vllm_sleeps, placed.actor_sleeps) == (sleeps, False)


# Memory by the real code


class SavesLikeFlashAttention(torch.autograd.Function):
    """What flash-attention keeps and returns; only sizes count here."""

    @staticmethod
    def forward(ctx, query, key, value):
        output, sums = torch.empty_like(query), torch.empty(query.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(query, key, value, output, sums)
        return output

    @staticmethod
    def backward(ctx, _):
        query, key, value, _, _ = ctx.saved_tensors
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


class SavesLikeFlashCrossEntropy(torch.autograd.Function):
    """The same for flash-attention's cross-entropy kernel, which OpenRLHF takes the
    log-probabilities from.
    """

    @staticmethod
    def forward(ctx, logits, labels):
        ctx.save_for_backward(logits, torch.empty_like(labels, dtype=torch.float32), labels)
        return torch.empty_like(labels, dtype=torch.float32)

    @staticmethod
    def backward(ctx, _):
        return torch.empty_like(ctx.saved_tensors[0]), None


def attend(module, query, key, value, mask, **_):
    return SavesLikeFlashAttention.apply(
        *(part.transpose(1, 2) for part in (query, key, value))
    ), None


AttentionInterface.register("sizes_only", attend)
AttentionMaskInterface.register("sizes_only", lambda *_, **__: None)


def traced_peak(monkeypatch, config, rows, tokens, checkpointing, temperature, train, chunk=0):
    """Bytes allocated at the peak of forward, loss and backward, besides weights and their
    gradients.

    Without a chunk, the forward is OpenRLHF's own.
    """
    importlib.import_module("openrlhf_swap.integration")  # makes OpenRLHF importable without CUDA
    from openrlhf.models import PolicyLoss

    from openrlhf_swap.integration.policy.chunked_actor import ChunkedActor, Head

    kernel = types.ModuleType("cross_entropy")
    kernel.cross_entropy_loss = lambda *given: (SavesLikeFlashCrossEntropy.apply(*given),)
    monkeypatch.setitem(sys.modules, "flash_attn.ops.triton.cross_entropy", kernel)
    with FakeTensorMode():
        model = AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16, attn_implementation="sizes_only"
        )
        if checkpointing:
            model.gradient_checkpointing_enable(
                gradient_checkpointing_kwargs={"use_reentrant": False}
            )
        model.train(train)
        actor = ChunkedActor(model)
        if chunk:
            actor.head = Head(model.lm_head, LogitTransform(), chunk)
            # These tensors have no values: all tokens are actions.
            monkeypatch.setattr(
                torch.Tensor, "nonzero", lambda mask: torch.arange(mask.numel()).unsqueeze(-1)
            )
        actor.packing_samples, actor.temperature = False, temperature
        sequences = torch.zeros(rows, tokens, dtype=torch.int64)
        present, actions = (
            torch.ones_like(sequences),
            torch.ones(rows, tokens - 1, dtype=torch.int64),
        )
        old = torch.zeros(rows, tokens - 1)
        tracker = MemTracker()
        tracker.track_external(model)
        with tracker:
            if train:
                model.config.use_cache = False
                log_probs, output = actor(
                    sequences, actions, attention_mask=present, return_output=True
                )
                info = {"dp_size": 1, "batch_num_tokens": 1.0}
                PolicyLoss()(log_probs, old, old, action_mask=actions, **info)[0].backward()
                assert (
                    output["logits"].dtype == torch.float32
                )  # held to the end, in OpenRLHF's training step
            else:
                with torch.no_grad():
                    actor(sequences, actions, present, return_output=True, use_cache=False)
        (peak,) = tracker.get_tracker_snapshot("peak").values()
        return sum(
            size
            for kind, size in peak.items()
            if getattr(kind, "value", "") in ("Activation", "Temp")
        )


def wide_model(tmp_path, vocabulary):
    """Two layers as wide as the 1.5B's."""
    sizes = {"hidden_size": 1536, "intermediate_size": 8960, "vocab_size": vocabulary}
    heads = {"num_attention_heads": 12, "num_key_value_heads": 2}
    config = Qwen2Config(num_hidden_layers=2, tie_word_embeddings=False, **sizes, **heads)
    config.save_pretrained(tmp_path)
    return config, read_model(str(tmp_path), 3000)


@pytest.mark.parametrize(
    ("moment", "vocabulary", "checkpointing", "temperature"),
    [("loss", 151_936, True, 0.6), ("layer", 1000, False, 0.6)],
)
def test_the_update_allocates_what_the_plan_says_for_all_logits_at_once(
    monkeypatch, tmp_path, moment, vocabulary, checkpointing, temperature
):
    config, model = wide_model(tmp_path, vocabulary)
    # So many rows that the gradients of the weights, which the peak has too, do not count.
    rows, tokens = 2000, 3000
    shape = {"checkpointing": checkpointing, "context": tokens, "update_rows": rows}
    settings = replace(NODE, **shape, logits_chunk=0)
    parts = memory.update_moments(model, settings)[moment]
    names = ("kept activations", "logits", "gradients of logits", "layer at work")
    planned = sum(parts.get(name, 0) for name in names)
    traced = traced_peak(monkeypatch, config, rows, tokens, checkpointing, temperature, train=True)
    # All but positions and their embedding: some 500 bytes a token.
    assert planned == pytest.approx(traced, rel=0.005)
    assert 0 < traced - planned < 600 * rows * tokens


@pytest.mark.parametrize(("chunk", "tokens"), [(1024, 3000), (4096, 14_000), (1024, 1000)])
def test_the_update_allocates_what_the_plan_says(monkeypatch, tmp_path, chunk, tokens):
    config, model = wide_model(tmp_path, 151_936)
    parts = memory.update_moments(model, replace(NODE, context=tokens, logits_chunk=chunk))["loss"]
    planned = sum(parts[name] for name in ("kept activations", "logits", "gradients of the head"))
    traced = traced_peak(monkeypatch, config, 1, tokens, True, 0.6, train=True, chunk=chunk)
    assert planned == pytest.approx(traced, rel=0.005)


def test_lora_trains_and_keeps_its_adapters_only():
    model = replace(SMALL, adapters=1_000_000, largest=50_000)
    assert memory.partition(model, NODE) == 125_000
    assert memory.weights(model, NODE) == {"weights": 2 * (SMALL.parameters + 1_000_000)}
    assert memory.optimizer(model, NODE) == {"optimizer": 12 * 125_000}
    assert memory.checkpoint_bytes(model, NODE) == {
        "deepspeed": 12_000_000 + 2 * (SMALL.parameters + 1_000_000),
        "model": 2_000_000,
    }
    capacity = memory.engine_capacity(model, NODE, 80 * GIB, 6200)
    assert capacity["weights_bytes"] == 2 * SMALL.parameters  # vLLM gets merged weights
    # An adapter's output is scaled before it is added.
    few = {"vocabulary": 1000, "layers": 1}
    passes = [replace(each, **few) for each in (SMALL, model)]
    plain, adapted = (memory.scoring_pass(each, replace(NODE, branches=0)) for each in passes)
    assert adapted["logits"] - plain["logits"] == 14_000 * 2 * 8_960
    # Forward, the same again for checkpointing, and a backward pass without gradients of frozen
    # weights.
    full, lora = (memory.step_flops(m, NODE, 200, 6000, 17, 1) for m in (SMALL, model))
    assert lora["update"] == full["update"] - full["generate"]


def test_the_weight_transfer_of_a_7b_with_adapters_by_hand():
    """One weight is merged at a time: all at once, 12.2 GiB, would not fit into 45 GiB."""
    model = read_model(R1 + "7B", 14_000, 32)
    one = {"ranks": 1, "engines": 1, "engine_responses": 2048, "utilization": 0.55}
    settings = replace(NODE, **one, actor_sleeps=False)
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


@pytest.mark.parametrize("chunk", [0, 1024, 4096])
def test_the_log_probability_pass_allocates_what_the_plan_says(monkeypatch, tmp_path, chunk):
    config, model = wide_model(tmp_path, 151_936)
    settings = replace(NODE, context=3000, score_rows=2, logits_chunk=chunk, branches=0)
    parts = memory.scoring_pass(model, settings)
    traced = traced_peak(monkeypatch, config, 2, 3000, False, 0.6, train=False, chunk=chunk)
    assert parts["logits"] == pytest.approx(traced, rel=0.001)


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
    assert "kept keys" not in plain and "branches" not in parts


@pytest.mark.parametrize("key_value_heads", [1, 2, 4])
def test_kept_cache_is_what_transformers_keeps(tmp_path, key_value_heads):
    heads = {"num_attention_heads": 4, "num_key_value_heads": key_value_heads}
    config = Qwen2Config(
        hidden_size=64, num_hidden_layers=3, intermediate_size=96, vocab_size=50, **heads
    )
    config.save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    cache = model(torch.zeros(2, 70, dtype=torch.int64), use_cache=True).past_key_values
    kept = sum(part.nbytes for layer in cache.layers for part in (layer.keys, layer.values))
    assert memory.kept_cache(read_model(str(tmp_path), 1), 2 * 70) == kept


def test_constants_are_those_of_the_installed_packages():
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
    from vllm.config.scheduler import SchedulerConfig
    from vllm.engine.arg_utils import EngineArgs
    from vllm.usage.usage_lib import UsageContext

    zero = DeepSpeedZeroConfig(stage=3)
    assert zero.reduce_bucket_size == memory.BUCKET
    assert zero.max_live_parameters + zero.prefetch_bucket_size == memory.LIVE
    assert zero.sub_group_size == memory.SUB_GROUP
    assert memory.HIDDEN_TOKENS == MAX_TOKENS
    # OpenRLHF starts AsyncLLM without naming a usage, for which vLLM has no defaults of its own but
    # 128 and 2,048.
    _, sequences = EngineArgs.get_batch_defaults(1)
    assert UsageContext.ENGINE_CONTEXT not in sequences
    assert (
        SchedulerConfig.DEFAULT_MAX_NUM_SEQS,
        SchedulerConfig.DEFAULT_MAX_NUM_BATCHED_TOKENS,
    ) == (128, 2048)


# Operations, by hand and by the real forwards


def count_flops(function):
    counter = FlopCounterMode(display=False)
    with counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        result = function()
    return counter.get_total_flops(), result


def test_flops_are_those_of_the_real_forwards():
    model = AutoModelForCausalLM.from_pretrained(
        POLICY, attn_implementation="eager", dtype=torch.float32
    ).eval()
    sizes = read_model(str(POLICY), 512)
    prompt, response, steps = 40, 400, 8
    tokens = prompt + response
    ids = torch.zeros(1, tokens, dtype=torch.int64)
    present = torch.ones_like(ids)
    counted, _ = count_flops(lambda: model(ids, attention_mask=present, use_cache=True))
    # Eager attention computes both triangles: 4 times layers, width and the square of the length
    # instead of 2.
    assert counted == pytest.approx(
        memory.forward_flops(sizes, tokens) + 2 * 4 * 128 * tokens**2, rel=0.01
    )

    branch = AnswerBranch(ids=(1,) * memory.BRANCH, scored=(False,) * 18 + (True,) * memory.ANSWER)
    ends = tuple(prompt - 1 + response * step // steps for step in range(steps + 1))
    request = ScoreRequest(row=0, prefix_ends=ends, branch=branch)
    plain, _ = count_flops(lambda: model(ids, attention_mask=present, logits_to_keep=1))
    with masks_of(MAX_MASK):
        scored, _ = count_flops(lambda: score_shared_prefix(model, ids, present, [request]))
    one_token = 2 * sizes.hidden * sizes.vocabulary
    assert scored - plain + one_token == pytest.approx(
        memory.scoring_flops(sizes, prompt, response, steps), rel=0.01
    )


def test_a_step_by_hand():
    # 1,000 parameters that multiply, 10 of them (hidden 5, vocabulary 2) in the output; no
    # attention. Of 100 tokens a forward takes 2 x 1,000 x 100, an update three and what
    # checkpointing repeats: all but the output's 2 x 10 x 100, which chunks of logits repeat.
    model = Model(1_200, 200, 200, 0, 5, 1, 0, 0, 0, 2)
    flops = memory.step_flops(model, replace(NODE, branches=0), 40, 60, 3, epochs=1)
    forward = 200_000
    assert flops == {
        "generate": forward,
        "log-probabilities": forward,
        "score": 0,
        "update": 4 * forward,
    }
    at_once = memory.step_flops(
        model, replace(NODE, branches=0, logits_chunk=0), 40, 60, 3, epochs=1
    )
    assert at_once["update"] == 4 * forward - 2_000
    twice = memory.step_flops(model, replace(NODE, checkpointing=False), 40, 60, 3, epochs=2)
    assert twice["update"] == 2 * (3 * forward + 2_000)


# Seconds by hand


# A token's keys and values take 2 x 10 x 200 = 4,000 bytes.
MODEL = Model(
    10**9, 10**8, 0, 10, 1000, 10, 1000, 100, 4000, 50_000, windows=(math.inf,) * 10, cached=200
)
PEAKS = (1e15, 1e12)


def test_generation_by_hand():
    """Weights and cache are read once for each token of all running responses: 600 tokens of
    context on average.
    """
    # Two engines, 256 responses each, 128 at a time: 2,000 readings of 2e9 + 128 x 600 x 4,000
    # bytes, .6e12 a second.
    two = replace(NODE, context=1700, prompt_limit=200, engine_responses=256)
    seconds = memory.generation_seconds(MODEL, two, 100, 1000, 128, PEAKS)
    assert seconds == pytest.approx(2000 * (2e9 + 128 * 2.4e6) / 0.6e12)
    # Eight engines, 64 responses each, all at a time: 1,500 readings for the longest, 64,000 /
    # 1,500 run on average.
    seconds = memory.generation_seconds(
        MODEL, replace(two, engine_responses=64), 100, 1000, 64, PEAKS
    )
    assert seconds == pytest.approx(1500 * (2e9 + 64_000 / 1500 * 2.4e6) / 0.6e12)
    # Bound by arithmetic: 2 x 128 x 1e9 operations a reading. Two GPUs take half as long.
    for size in (1, 2):
        seconds = memory.generation_seconds(
            MODEL, replace(two, tensor_parallel=size), 100, 1000, 128, (1e12, 1e12)
        )
        assert seconds == pytest.approx(2000 * 256e9 / 0.3e12 / size)

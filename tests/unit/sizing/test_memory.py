"""The memory of a plan against hand-worked numbers, and against what the real code allocates."""

import importlib
import sys
import types
from dataclasses import replace

import pytest
import torch
from support.sizing import NODE, R1
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from transformers import AttentionInterface, AttentionMaskInterface, AutoModelForCausalLM, Qwen2Config

from openrlhf_swap.algorithm.log_probs import LogitTransform
from openrlhf_swap.sizing import memory
from openrlhf_swap.sizing.memory import step_flops
from openrlhf_swap.sizing.models import GIB, read_model

SMALL = read_model(R1 + "1.5B", 14_000)


# By hand


def test_the_update_of_the_1_5b_by_hand():
    # One response of 14,000 tokens on each of 8 GPUs under ZeRO-2, in bytes:
    loss, layer = memory.update_moments(SMALL, NODE).values()
    assert loss == {
        "weights": 2 * 1_777_088_000,
        "optimizer": 12 * 222_136_000,  # 1,777,088,000 / 8
        # bf16 gradients of earlier micro-batches: the partition and a 151,936 x 1,536 embedding that reaches out of it
        "gradients": 2 * (222_136_000 + 233_373_696),
        "gradient buckets": 0,
        # 28 layer inputs of 2 x 1,536 bytes, and the last norm's 4 + 2 + 2 bytes times 1,536, for each token
        "kept activations": 14_000 * (28 * 3_072 + 12_288),
        "logits": (2 + 4) * 1024 * 151_936,
        "gradients of the head": 4 * 233_373_696 + 14_000 * 2 * 1_536,
    }
    # A layer keeps 2 norms of 8 x 1,536 + 4, 2 x (2 x 1,536 + 2 x 256) + 4 x 12 of attention and 8 x 8,960 of MLP:
    # 24,584 + 7,216 + 71,680 = 103,480; then gradients of 4 x 8,960 and 2 x 1,536.
    assert layer["layer at work"] == 14_000 * (103_480 + 35_840 + 3_072)
    assert layer["logits"] == 0
    assert layer["gradients"] == 2 * loss["gradients"]
    assert layer["gradient buckets"] == 2 * 2 * 500_000_000 + 2 * 233_373_696


def test_all_logits_at_once_by_hand():
    logits = 14_000 * 151_936 * 4
    loss, layer = memory.update_moments(SMALL, replace(NODE, logits_chunk=0)).values()
    assert (loss["logits"], loss["gradients of logits"], layer["logits"]) == (logits, 2 * logits, logits)
    assert memory.adam_step(SMALL, replace(NODE, logits_chunk=0))["logits"] == logits
    assert "logits" not in memory.adam_step(SMALL, NODE)


@pytest.mark.parametrize(
    ("stage", "weights", "optimizer", "gradients", "checkpoint"),
    [
        (1, 16_000, 12_000, 16_000, 112_000),
        (2, 16_000, 12_000, 2 * (1_000 + 500), 112_000),
        (3, 2_000, 12_000, 2_000, 96_000),
    ],
)
def test_zero_stages_share_out_what_they_should(stage, weights, optimizer, gradients, checkpoint):
    # 8,000 parameters on 8 ranks, the largest weight 500: 16 bytes each without ZeRO, of which 14 are saved.
    model, settings = replace(SMALL, parameters=8_000, largest=500), replace(NODE, stage=stage)
    assert memory.weights(model, settings)["weights"] == weights
    assert memory.optimizer(model, settings)["optimizer"] == optimizer
    assert memory.gradients(model, settings, backward=False)["gradients"] == gradients
    assert memory.checkpoint_bytes(model, settings) == {"deepspeed": checkpoint, "model": 16_000}


def test_what_sleeps_and_what_is_offloaded_leaves_the_gpu():
    awake = replace(NODE, vllm_sleeps=False, actor_sleeps=False)
    gpu = 100 * GIB
    asleep, held = memory.phases(SMALL, NODE, gpu), memory.phases(SMALL, awake, gpu)
    assert held["update"]["vLLM"] == 70 * GIB
    assert "vLLM" not in asleep["update"]
    assert held["generate"]["optimizer"] == 12 * 222_136_000
    assert "optimizer" not in asleep["generate"]
    offloaded = memory.update_moments(SMALL, replace(NODE, adam_offload=True))["loss"]
    assert "optimizer" not in offloaded
    assert offloaded["gradients"] == 0


@pytest.mark.parametrize(("stage", "buffer", "flat"), [(2, 2 * 500, 6 * 8_000), (3, None, 6 * 3_000)])
def test_one_rank_of_adam_by_hand(monkeypatch, stage, buffer, flat):
    """As measured on an H100: flat gradients in bf16 and float32, under ZeRO-3 by groups; a buffer when offloaded."""
    monkeypatch.setattr(memory, "SUB_GROUP", 3_000)
    model, settings = replace(SMALL, parameters=8_000, largest=500), replace(NODE, stage=stage, ranks=1)
    assert memory.adam_step(model, settings)["flat gradients"] == flat
    offloaded = memory.adam_step(model, replace(settings, adam_offload=True))
    assert offloaded.get("offload buffer") == buffer
    assert "flat gradients" not in offloaded


# By the real code


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
    """The same for flash-attention's cross-entropy kernel, which OpenRLHF takes the log-probabilities from."""

    @staticmethod
    def forward(ctx, logits, labels):
        ctx.save_for_backward(logits, torch.empty_like(labels, dtype=torch.float32), labels)
        return torch.empty_like(labels, dtype=torch.float32)

    @staticmethod
    def backward(ctx, _):
        return torch.empty_like(ctx.saved_tensors[0]), None


def attend(module, query, key, value, mask, **_):
    return SavesLikeFlashAttention.apply(*(part.transpose(1, 2) for part in (query, key, value))), None


AttentionInterface.register("sizes_only", attend)
AttentionMaskInterface.register("sizes_only", lambda *_, **__: None)


def traced_peak(monkeypatch, config, rows, tokens, checkpointing, temperature, train, stand_in=False, chunk=0):
    """Bytes allocated at the peak of forward, loss and backward, besides weights and their gradients.

    Without a chunk, the forward is OpenRLHF's own.
    """
    importlib.import_module("openrlhf_swap.integration")  # makes OpenRLHF importable without CUDA
    from openrlhf.models import PolicyLoss

    from openrlhf_swap.integration.policy.chunked_actor import ChunkedActor, Head

    if not stand_in:
        kernel = types.ModuleType("cross_entropy")
        kernel.cross_entropy_loss = lambda logits, labels: (SavesLikeFlashCrossEntropy.apply(logits, labels),)
        monkeypatch.setitem(sys.modules, "flash_attn.ops.triton.cross_entropy", kernel)
    with FakeTensorMode():
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sizes_only")
        if checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.train(train)
        actor = ChunkedActor(model)
        if chunk:
            actor.head = Head(model.lm_head, LogitTransform(), chunk)
            # These tensors have no values: all tokens are actions.
            monkeypatch.setattr(torch.Tensor, "nonzero", lambda mask: torch.arange(mask.numel()).unsqueeze(-1))
        actor.packing_samples, actor.temperature = False, temperature
        sequences = torch.zeros(rows, tokens, dtype=torch.int64)
        present, actions = torch.ones_like(sequences), torch.ones(rows, tokens - 1, dtype=torch.int64)
        old = torch.zeros(rows, tokens - 1)
        tracker = MemTracker()
        tracker.track_external(model)
        with tracker:
            if train:
                model.config.use_cache = False
                log_probs, output = actor(sequences, actions, attention_mask=present, return_output=True)
                info = {"dp_size": 1, "batch_num_tokens": 1.0}
                PolicyLoss()(log_probs, old, old, action_mask=actions, **info)[0].backward()
                assert output["logits"].dtype == torch.float32  # held to the end, in OpenRLHF's training step
            else:
                with torch.no_grad():
                    actor(sequences, actions, present, return_output=True, use_cache=False)
        (peak,) = tracker.get_tracker_snapshot("peak").values()
        return sum(size for kind, size in peak.items() if getattr(kind, "value", "") in ("Activation", "Temp"))


def wide_model(tmp_path, vocabulary):
    """Two layers as wide as the 1.5B's."""
    config = Qwen2Config(
        hidden_size=1536,
        num_hidden_layers=2,
        num_attention_heads=12,
        num_key_value_heads=2,
        intermediate_size=8960,
        vocab_size=vocabulary,
        tie_word_embeddings=False,
    )
    config.save_pretrained(tmp_path)
    return config, read_model(str(tmp_path), 3000)


@pytest.mark.filterwarnings("ignore:Module is None")
@pytest.mark.parametrize("temperature", [0.6, 1.0])
@pytest.mark.parametrize("checkpointing", [True, False])
@pytest.mark.parametrize(("moment", "vocabulary"), [("loss", 151_936), ("layer", 1000)])
def test_the_update_allocates_what_the_plan_says_for_all_logits_at_once(
    monkeypatch, tmp_path, moment, vocabulary, checkpointing, temperature
):
    config, model = wide_model(tmp_path, vocabulary)
    # So many rows that the gradients of the weights, which the peak has too, do not count.
    rows, tokens = 2000, 3000
    shape = {"checkpointing": checkpointing, "temperature": temperature, "context": tokens, "update_rows": rows}
    settings = replace(NODE, **shape, logits_chunk=0)
    parts = memory.update_moments(model, settings)[moment]
    names = ("kept activations", "logits", "gradients of logits", "layer at work")
    planned = sum(parts.get(name, 0) for name in names)
    traced = traced_peak(monkeypatch, config, rows, tokens, checkpointing, temperature, train=True)
    # All but positions and their embedding: some 500 bytes a token.
    assert planned == pytest.approx(traced, rel=0.005)
    assert 0 < traced - planned < 600 * rows * tokens


@pytest.mark.filterwarnings("ignore:Module is None")
@pytest.mark.parametrize(("chunk", "tokens"), [(1024, 3000), (4096, 14_000), (1024, 1000)])
def test_the_update_allocates_what_the_plan_says(monkeypatch, tmp_path, chunk, tokens):
    config, model = wide_model(tmp_path, 151_936)
    parts = memory.update_moments(model, replace(NODE, context=tokens, logits_chunk=chunk))["loss"]
    planned = sum(parts[name] for name in ("kept activations", "logits", "gradients of the head"))
    traced = traced_peak(monkeypatch, config, 1, tokens, True, 0.6, train=True, chunk=chunk)
    assert planned == pytest.approx(traced, rel=0.005)


@pytest.mark.filterwarnings("ignore:Module is None")
@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_without_flash_attn_the_logits_take_as_much(monkeypatch, tmp_path, temperature):
    config, _ = wide_model(tmp_path, 151_936)
    shape = {"rows": 10, "tokens": 3000, "checkpointing": True, "temperature": temperature, "train": True}
    theirs, ours = (traced_peak(monkeypatch, config, **shape, stand_in=stand_in) for stand_in in (False, True))
    assert ours == pytest.approx(theirs, rel=0.001)


def test_lora_trains_and_keeps_its_adapters_only():
    model = replace(SMALL, adapters=1_000_000, largest=50_000)
    assert memory.partition(model, NODE) == 125_000
    assert memory.weights(model, NODE) == {"weights": 2 * (SMALL.parameters + 1_000_000)}
    assert memory.optimizer(model, NODE) == {"optimizer": 12 * 125_000}
    assert memory.checkpoint_bytes(model, NODE) == {
        "deepspeed": 12_000_000 + 2 * (SMALL.parameters + 1_000_000),
        "model": 2_000_000,
    }
    assert (
        memory.engine_capacity(model, NODE, 80 * GIB, 6200)["weights_bytes"] == 2 * SMALL.parameters
    )  # vLLM gets merged weights
    few = {"vocabulary": 1000, "layers": 1}
    scoring = [memory.scoring_pass(replace(m, **few), replace(NODE, branches=0))["logits"] for m in (SMALL, model)]
    assert scoring[1] - scoring[0] == 14_000 * 2 * 8_960  # an adapter's scaled output, before it is added
    # Forward, the same again for checkpointing, and a backward pass without gradients of frozen weights.
    full, lora = (step_flops(m, NODE, 200, 6000, 17, 1) for m in (SMALL, model))
    assert lora["update"] == full["update"] - full["generate"]


@pytest.mark.filterwarnings("ignore:Module is None")
@pytest.mark.parametrize("chunk", [0, 1024, 4096])
def test_the_log_probability_pass_allocates_what_the_plan_says(monkeypatch, tmp_path, chunk):
    config, model = wide_model(tmp_path, 151_936)
    settings = replace(NODE, context=3000, score_rows=2, logits_chunk=chunk, branches=0)
    parts = memory.scoring_pass(model, settings)
    traced = traced_peak(monkeypatch, config, 2, 3000, False, 0.6, train=False, chunk=chunk)
    assert parts["logits"] == pytest.approx(traced, rel=0.001)


@pytest.mark.parametrize("key_value_heads", [1, 2, 4])
def test_kept_cache_is_what_transformers_keeps(tmp_path, key_value_heads):
    config = Qwen2Config(
        hidden_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=key_value_heads,
        intermediate_size=96,
        vocab_size=50,
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
    # OpenRLHF starts AsyncLLM without naming a usage, for which vLLM has no defaults of its own but 128 and 2,048.
    _, sequences = EngineArgs.get_batch_defaults(1)
    assert UsageContext.ENGINE_CONTEXT not in sequences
    assert (SchedulerConfig.DEFAULT_MAX_NUM_SEQS, SchedulerConfig.DEFAULT_MAX_NUM_BATCHED_TOKENS) == (128, 2048)

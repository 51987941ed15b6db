"""The formulas of a plan against hand-worked numbers, and against what the real code allocates and computes."""

import importlib
import json
import os
import subprocess
import sys
import types
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import POLICY, ROOT
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import AttentionInterface, AttentionMaskInterface, AutoModelForCausalLM, Qwen2Config

from openrlhf_swap import sizing
from openrlhf_swap.scoring.answer import AnswerBranch
from openrlhf_swap.scoring.shared_prefix import ScoreRequest, score_branches
from openrlhf_swap.sizing import GIB, Model, Settings

R1 = "deepseek-ai/DeepSeek-R1-Distill-Qwen-"
SMALL = sizing.read_model(R1 + "1.5B", 14_000)
NODE = Settings(
    ranks=8,
    stage=2,
    adam_offload=False,
    accumulate_bytes=2,
    overlap=False,
    checkpointing=True,
    temperature=0.6,
    context=14_000,
    batch=2048,
    update_rows=1,
    update_tokens=14_000,
    score_rows=1,
    score_tokens=14_000,
    dynamic=False,
    packed=False,
    branches=26,
    reference=False,
    shared=True,
    vllm_sleeps=True,
    actor_sleeps=True,
    engines=8,
    tensor_parallel=1,
    utilization=0.7,
    reserve=4 * GIB,
)


# The model


@pytest.mark.parametrize(("size", "parameters"), [("1.5B", 1_777_088_000), ("7B", 7_615_616_512)])
def test_parameters_are_those_of_the_published_models(size, parameters):
    assert sizing.read_model(R1 + size, 1).parameters == parameters


def test_a_model_in_a_folder():
    # Its README's 0.8M; input and output share their weights, so all of them multiply.
    model = sizing.read_model(str(POLICY), 512)
    weights = AutoModelForCausalLM.from_pretrained(POLICY).state_dict()
    assert model.parameters == sum(weight.numel() for name, weight in weights.items() if name != "lm_head.weight")
    assert (model.layers, model.query, model.key_value, model.looked_up) == (4, 128, 64, 0)


# What is allocated: by hand


def test_the_update_of_the_1_5b_by_hand():
    # One response of 14,000 tokens on each of 8 GPUs under ZeRO-2, in bytes:
    loss, layer = sizing.update_moments(SMALL, NODE).values()
    assert loss == {
        "weights": 2 * 1_777_088_000,
        "optimizer": 12 * 222_136_000,  # 1,777,088,000 / 8
        # bf16 gradients of earlier micro-batches: the partition and a 151,936 x 1,536 embedding that reaches out of it
        "gradients": 2 * (222_136_000 + 233_373_696),
        "gradient buckets": 0,
        # 28 layer inputs of 2 x 1,536 bytes, and the last norm's 4 + 2 + 2 bytes times 1,536, for each token
        "kept activations": 14_000 * (28 * 3_072 + 12_288),
        "logits": 14_000 * 151_936 * 4,
        "gradients of logits": 2 * 14_000 * 151_936 * 4,
    }
    # A layer keeps 2 norms of 8 x 1,536 + 4, 2 x (2 x 1,536 + 2 x 256) + 4 x 12 of attention and 8 x 8,960 of MLP:
    # 24,584 + 7,216 + 71,680 = 103,480; behind them gradients of 4 x 8,960 and 2 x 1,536.
    assert layer["layer at work"] == 14_000 * (103_480 + 35_840 + 3_072)
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
    # 8,000 parameters on 8 ranks, the largest weight 500: 16 bytes each without ZeRO, of which 14 are saved.
    model, settings = replace(SMALL, parameters=8_000, largest=500), replace(NODE, stage=stage)
    assert sizing.weights(model, settings)["weights"] == weights
    assert sizing.optimizer(model, settings)["optimizer"] == optimizer
    assert sizing.gradients(model, settings, backward=False)["gradients"] == gradients
    assert sizing.checkpoint_bytes(model, settings) == {"deepspeed": checkpoint, "model": 16_000}


def test_what_sleeps_and_what_is_offloaded_leaves_the_gpu():
    awake = replace(NODE, vllm_sleeps=False, actor_sleeps=False)
    gpu = 100 * GIB
    asleep, held = sizing.phases(SMALL, NODE, gpu), sizing.phases(SMALL, awake, gpu)
    assert held["update"]["vLLM"] == 70 * GIB
    assert "vLLM" not in asleep["update"]
    assert held["generate"]["optimizer"] == 12 * 222_136_000
    assert "optimizer" not in asleep["generate"]
    offloaded = sizing.update_moments(SMALL, replace(NODE, adam_offload=True))["loss"]
    assert "optimizer" not in offloaded
    assert offloaded["gradients"] == 0
    # In main memory of 8 GPUs: 8 engines' weights of 2 bytes, all states of 12.
    assert sizing.host_bytes(SMALL, NODE, 8) == {
        "weights of sleeping vLLM": 16 * 1_777_088_000,
        "sleeping optimizer": 12 * 1_777_088_000,
    }


# What is allocated: by the real code


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


def traced_peak(monkeypatch, config, rows, tokens, checkpointing, temperature, train):
    """Bytes alive at the peak of OpenRLHF's own forward, loss and backward, beside weights and their gradients."""
    importlib.import_module("openrlhf_swap.integration")  # makes OpenRLHF importable without CUDA
    from openrlhf.models import Actor, PolicyLoss

    kernel = types.ModuleType("cross_entropy")
    kernel.cross_entropy_loss = lambda logits, labels: (SavesLikeFlashCrossEntropy.apply(logits, labels),)
    for name in ("flash_attn.ops", "flash_attn.ops.triton"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "flash_attn.ops.triton.cross_entropy", kernel)
    with FakeTensorMode():
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sizes_only")
        if checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.train(train)
        actor = Actor(model)
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
                assert output["logits"].dtype == torch.float32  # held to the end, as in OpenRLHF's training step
            else:
                with torch.no_grad():
                    actor(sequences, actions, present, return_output=True, use_cache=True)
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
    return config, sizing.read_model(str(tmp_path), 3000)


@pytest.mark.filterwarnings("ignore:Module is None")
@pytest.mark.parametrize("temperature", [0.6, 1.0])
@pytest.mark.parametrize("checkpointing", [True, False])
@pytest.mark.parametrize(("moment", "vocabulary"), [("loss", 151_936), ("layer", 1000)])
def test_the_update_allocates_what_the_plan_says(
    monkeypatch, tmp_path, moment, vocabulary, checkpointing, temperature
):
    config, model = wide_model(tmp_path, vocabulary)
    # So many rows that the gradients of the weights, which the peak has too, do not count.
    rows, tokens = 2000, 3000
    settings = replace(NODE, checkpointing=checkpointing, temperature=temperature, update_tokens=rows * tokens)
    parts = sizing.update_moments(model, settings)[moment]
    names = ("kept activations", "logits", "gradients of logits", "layer at work")
    planned = sum(parts.get(name, 0) for name in names)
    traced = traced_peak(monkeypatch, config, rows, tokens, checkpointing, temperature, train=True)
    # All but positions and their embedding: some 500 bytes a token.
    assert planned == pytest.approx(traced, rel=0.005)
    assert 0 < traced - planned < 600 * rows * tokens


@pytest.mark.filterwarnings("ignore:Module is None")
def test_the_log_probability_pass_allocates_what_the_plan_says(monkeypatch, tmp_path):
    config, model = wide_model(tmp_path, 151_936)
    parts = sizing.scoring_moments(model, replace(NODE, score_rows=2, score_tokens=6000))["logits"]
    traced = traced_peak(monkeypatch, config, 2, 3000, False, 0.6, train=False)
    assert parts["logits"] + parts["kept cache"] == pytest.approx(traced, rel=0.001)


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
    assert sizing.kept_cache(sizing.read_model(str(tmp_path), 1), 2 * 70) == kept


ENGINE = """
import json, os, sys
from pathlib import Path
from openrlhf_swap.integration.cpu import build_communication_op
import deepspeed
from torch import bfloat16, is_tensor
from transformers import AutoModelForCausalLM
from openrlhf.utils.deepspeed.deepspeed_utils import get_optimizer_grouped_parameters, get_train_ds_config
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29617", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
build_communication_op()
deepspeed.init_distributed(dist_backend="gloo")
def size(tensors): return sum(tensor.nbytes for tensor in tensors if is_tensor(tensor))
results = {}
for stage in (2, 3):
    model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=bfloat16)
    adam = {"type": "AdamW", "params": {"lr": 1e-6}}
    config = get_train_ds_config(offload=False, adam_offload=False, stage=stage, zpg=1, optim_config=adam)
    config |= {"train_micro_batch_size_per_gpu": 1, "train_batch_size": 2}
    groups = get_optimizer_grouped_parameters(model, 0.0)
    engine, optimizer, _, _ = deepspeed.initialize(model=model, model_parameters=groups, config=config)
    for _ in range(2):
        engine.backward(engine(**model.dummy_inputs).logits.float().sum())
        if stage == 2:
            kept = [tensor for group in optimizer.all_grad_tensors.values() for tensor in group or ()]
            gradients = size(kept) or gradients
        else:
            gradients = size([optimizer.grad_partitions_flat_buffer])
        engine.step()
    master = optimizer.single_partition_of_fp32_groups if stage == 2 else optimizer.fp32_partitioned_groups_flat
    moments = [tensor for state in optimizer.optimizer.state.values() for tensor in state.values()]
    folder = Path(sys.argv[2]) / str(stage)
    engine.save_checkpoint(str(folder), tag="tag")
    saved = sum(file.stat().st_size for file in (folder / "tag").iterdir())
    results[stage] = {"gradients": gradients, "optimizer": size(master) + size(moments), "saved": saved}
print("RESULTS", json.dumps(results), flush=True)
os._exit(0)
"""


@pytest.mark.slow
def test_deepspeed_keeps_and_saves_what_the_plan_says(tmp_path):
    command = [sys.executable, "-c", ENGINE, str(POLICY), str(tmp_path)]
    # The tools that compile its op are those of the environment, or it would be compiled anew.
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    output = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False)
    (line,) = [line for line in output.stdout.splitlines() if line.startswith("RESULTS ")] or [output.stderr]
    model = sizing.read_model(str(POLICY), 512)
    for stage, found in json.loads(line.removeprefix("RESULTS ")).items():
        settings = replace(NODE, ranks=1, stage=int(stage))
        assert found["gradients"] == sizing.gradients(model, settings, backward=False)["gradients"]
        # Beside the states only the steps' counters and a padding of a few numbers.
        assert found["optimizer"] == pytest.approx(sizing.optimizer(model, settings)["optimizer"], abs=200)
        assert found["saved"] == pytest.approx(sizing.checkpoint_bytes(model, settings)["deepspeed"], rel=0.01)


def test_constants_are_those_of_the_installed_packages():
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
    from vllm.config.scheduler import SchedulerConfig
    from vllm.engine.arg_utils import EngineArgs
    from vllm.usage.usage_lib import UsageContext

    zero = DeepSpeedZeroConfig(stage=3)
    assert zero.reduce_bucket_size == sizing.BUCKET
    assert zero.max_live_parameters + zero.prefetch_bucket_size == sizing.LIVE
    assert zero.sub_group_size == sizing.SUB_GROUP
    # OpenRLHF starts AsyncLLM without naming a usage, for which vLLM has no default of its own.
    _, sequences = EngineArgs.get_batch_defaults(1)
    assert UsageContext.ENGINE_CONTEXT not in sequences
    assert SchedulerConfig.DEFAULT_MAX_NUM_SEQS == sizing.SEQUENCES


# Arithmetic


def count_flops(function):
    counter = FlopCounterMode(display=False)
    with counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        result = function()
    return counter.get_total_flops(), result


def test_flops_are_those_of_the_real_forwards():
    model = AutoModelForCausalLM.from_pretrained(POLICY, attn_implementation="eager", dtype=torch.float32).eval()
    sizes = sizing.read_model(str(POLICY), 512)
    prompt, response, steps = 40, 400, 8
    tokens = prompt + response
    ids = torch.zeros(1, tokens, dtype=torch.int64)
    present = torch.ones_like(ids)
    counted, output = count_flops(lambda: model(ids, attention_mask=present, use_cache=True))
    # Eager attention computes both triangles: 4 times layers, width and the square of the length instead of 2.
    assert counted == pytest.approx(sizing.forward_flops(sizes, tokens) + 2 * 4 * 128 * tokens**2, rel=0.01)

    branch = AnswerBranch(ids=(1,) * sizing.BRANCH, scored=(False,) * 18 + (True,) * sizing.ANSWER)
    ends = tuple(prompt - 1 + response * step // steps for step in range(steps + 1))
    request = ScoreRequest(row=0, prefix_ends=ends, branch=branch)
    counted, _ = count_flops(
        lambda: score_branches(model, model.config, output.past_key_values, ids, present, [request])
    )
    # A branch computes its own tokens against each other in both directions: half of 24 more keys.
    more = 4 * 4 * 128 * (steps + 1) * sizing.BRANCH * sizing.BRANCH / 2
    assert counted == pytest.approx(sizing.scoring_flops(sizes, prompt, response, steps) + more, rel=0.01)


def test_a_step_by_hand():
    # 1,000 parameters that multiply, 10 of them (hidden 5, vocabulary 2) in the output; no attention. Of 100 tokens a
    # forward takes 2 x 1,000 x 100, an update three and what checkpointing repeats: all but the output's 2 x 10 x 100.
    model = Model(1_200, 200, 200, 0, 5, 1, 0, 0, 0, 2)
    flops = sizing.step_flops(model, replace(NODE, branches=0), 40, 60, 3, epochs=1)
    forward = 200_000
    assert flops == {
        "generate": forward,
        "log-probabilities": forward,
        "score": 0,
        "update": 3 * forward + forward - 2_000,
    }
    twice = sizing.step_flops(model, replace(NODE, checkpointing=False), 40, 60, 3, epochs=2)
    assert twice["update"] == 6 * forward

"""The main memory of an update on a CPU, against torch's own allocations there."""

from dataclasses import replace

import pytest
import torch
from peft import LoraConfig, TaskType, get_peft_model
from support.sizing import NODE, R1
from torch.profiler import ProfilerActivity, profile
from transformers import AutoModelForCausalLM, Qwen2Config

from openrlhf_swap.algorithm.log_probs import LogitTransform
from openrlhf_swap.packages.kernels import widened_products
from openrlhf_swap.sizing import memory
from openrlhf_swap.sizing.host import OBJECT_STORE, PROCESS, SHARED, cpu_bytes
from openrlhf_swap.sizing.models import read_model

RANK = 8
CHUNK = 64
CONFIG = Qwen2Config(
    vocab_size=30_000,
    hidden_size=256,
    intermediate_size=1024,
    num_hidden_layers=2,
    num_attention_heads=8,
    num_key_value_heads=2,
    tie_word_embeddings=True,
)
ON_CPU = replace(
    NODE,
    ranks=1,
    checkpointing=False,
    logits_chunk=CHUNK,
    branches=0,
    shared=False,
    vllm_sleeps=False,
    actor_sleeps=False,
    engines=1,
)


def adapted_actor(packing):
    """The actor of a run with adapters on a CPU, with the attention that it has there."""
    from openrlhf_swap.integration.policy.chunked_actor import ChunkedActor, Head
    from openrlhf_swap.integration.runtime import attention

    attention.prepare()
    options = {
        "dtype": torch.bfloat16,
        "attn_implementation": attention.implementation("flash_attention_2", CONFIG),
    }
    base = AutoModelForCausalLM.from_config(CONFIG, **options)
    base.config.use_cache = False
    base.enable_input_require_grads()
    lora = LoraConfig(TaskType.CAUSAL_LM, r=RANK, target_modules="all-linear")
    model = get_peft_model(base, lora).to(torch.bfloat16)
    actor = ChunkedActor(model.train())
    actor.packing_samples = packing
    actor.temperature = 0.6
    actor.head = Head(base.lm_head, LogitTransform(), CHUNK)
    return actor


def allocated_peak(run):
    """Bytes that torch has allocated at the peak of a call; a first one has made the gradients."""
    run()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        run()
    changes = [
        event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"
    ]
    held = 0
    peak = 0
    for change in sorted(changes, key=lambda event: event.start_ns()):
        held += change.nbytes()
        peak = max(peak, held)
    return peak


@pytest.mark.parametrize("widened", [False, True])
@pytest.mark.parametrize("packing", [False, True])
def test_a_micro_batch_with_adapters_allocates_what_is_planned(tmp_path, packing, widened):
    """Two rows of 400 and 300 tokens, which a packed row holds without padding."""
    actor = adapted_actor(packing)
    sequences = torch.ones(2, 400, dtype=torch.int64)
    mask = torch.ones_like(sequences)
    mask[1, 300:] = 0

    def update():
        actor(sequences, mask[:, 1:], mask).sum().backward()

    kernels = widened_products() if widened else None
    found = allocated_peak(update)
    del kernels
    CONFIG.save_pretrained(tmp_path)
    model = read_model(str(tmp_path), 400, RANK)
    settings = replace(ON_CPU, context=400, update_rows=2, widens_products=widened)
    if packing:
        settings = replace(settings, update_limit=700)
    parts = memory.cpu_update_bytes(model, settings)
    planned = parts["micro-batch"] + parts.get("weight in float32", 0)
    assert planned == pytest.approx(found, rel=0.05)


def test_the_processes_of_the_1_5b_with_adapters_by_hand():
    """A micro-batch of 2,048 tokens, and a cache of 1,000 bytes."""
    model = read_model(R1 + "1.5B", 1024, 32)
    settings = replace(ON_CPU, context=1024, update_rows=2)
    # Rank 32 times both widths of each layer's seven weights.
    adapters = 28 * 32 * (2 * 3_072 + 2 * 1_792 + 3 * 10_496)
    assert model.adapters == adapters
    # A layer keeps 103,480 bytes for each token, the last norm 8 x 1,536; 64 tokens have logits of
    # 2 + 4 bytes for each of 151,936 words, beside gradients of 2 x 1,536 bytes for each token.
    kept = 2_048 * (28 * 103_480 + 12_288) + 6 * 64 * 151_936
    micro_batch = kept + 2_048 * 2 * 1_536
    resident = 2 * (1_777_088_000 + adapters) + 12 * adapters + 2 * adapters
    assert cpu_bytes(model, settings, 1_000) == {
        "policy": resident + micro_batch + kept * 3 // 2 + PROCESS + OBJECT_STORE,
        "engines": 2 * 2 * 1_777_088_000 + 1_000 + 2 * PROCESS,
        "driver": PROCESS + SHARED,
    }

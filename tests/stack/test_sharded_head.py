"""Log-probabilities in chunks where DeepSpeed shards the head's weight over two real ranks."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.scripts import python

RANK = """
import os
import openrlhf_swap.integration
from openrlhf_swap.integration.runtime.cpu import build_communication_op
import deepspeed, torch
from deepspeed.utils import safe_get_full_grad
from torch.nn.functional import log_softmax
from transformers import AutoModelForCausalLM, Qwen2Config
from openrlhf_swap.integration.policy.chunked_actor import ChunkedActor
build_communication_op()
deepspeed.init_distributed(dist_backend="gloo")
rank = torch.distributed.get_rank()
SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 300}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2, "use_cache": False}
def made(tied):
    config = Qwen2Config(tie_word_embeddings=tied, **SIZES)
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa")
def batch(rank):
    torch.manual_seed(rank + 1)
    tokens = (50, 19)[rank]  # eight chunks of seven tokens on one rank, three on the other
    ids = torch.randint(300, (1, tokens))
    ones = torch.ones(1, tokens, dtype=torch.int64)
    return ids, ones[:, 1:], ones, torch.randn(1, tokens - 1)
def compare(tied):
    plain = made(tied)
    for other in (0, 1):
        ids, _, _, weights = batch(other)
        log_probs = log_softmax(plain(ids).logits / 0.6, -1)[:, :-1]
        log_p = log_probs.gather(-1, ids[:, 1:, None]).squeeze(-1)
        (log_p * weights).sum().div(2).backward()  # DeepSpeed averages over the ranks
    zero = {"stage": 3, "stage3_param_persistence_threshold": 0}
    adam = {"type": "AdamW", "params": {"lr": 1e-6, "torch_adam": True}}
    options = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": zero, "optimizer": adam}
    model = made(tied)
    given = {"model": model, "model_parameters": model.parameters()}
    engine, *_ = deepspeed.initialize(**given, config=options)
    actor = ChunkedActor(engine)
    actor.packing_samples, actor.temperature = False, 0.6
    assert actor.hold_logits_of(7) is None
    ids, actions, mask, weights = batch(rank)
    assert model.lm_head.weight.numel() == 0  # sharded
    log_probs, _ = actor(ids, actions, mask, return_output=True)
    engine.backward((log_probs * weights).sum())
    pairs = zip(model.named_parameters(), plain.named_parameters(), strict=True)
    for (name, weight), (_, expected) in pairs:
        found = safe_get_full_grad(weight)
        assert (found - expected.grad).norm() <= 1e-5 * max(expected.grad.norm(), 1e-2), name
    print("EQUAL", len(list(model.parameters())), flush=True)
compare(False)
compare(True)
os._exit(0)
"""


@pytest.mark.slow
def test_two_zero_3_ranks_have_the_gradients_of_all_logits():
    """With a head of its own, which is a weight more, and with one that is tied."""
    environment = {"DS_ACCELERATOR": "cpu", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29631"}
    environment |= {"WORLD_SIZE": "2", "OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1"}
    # The tools that compile its op are those of the environment, or it would be compiled anew.
    environment["PATH"] = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"

    def run_rank(rank):
        return python("-c", RANK, **environment, RANK=rank, LOCAL_RANK=rank)

    with ThreadPoolExecutor() as threads:
        for result in threads.map(run_rank, "01"):
            found = [line for line in result.stdout.splitlines() if line.startswith("EQUAL")]
            assert found == ["EQUAL 27", "EQUAL 26"], result.stderr[-2000:]

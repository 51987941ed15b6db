"""Two ZeRO-3 ranks: scores of different numbers of responses, and gradients of a sharded head.

    python -m support.scoring_ranks FAMILY [...]

Both ranks print one line per family, `differ RANK FAMILY PACKED VALUE`, which is how far they are
from one forward per prefix; and `equal RANK WEIGHTS` where all gradients are those of all logits.
"""

import copy
import os
import sys
from dataclasses import replace

import torch
import torch.multiprocessing

FAMILIES = ["gemma3_text", "deepseek_v3", "qwen3_5_text"]


def rank_main(rank, world, families):
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
    torch.set_num_threads(1)
    import deepspeed
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    from openrlhf_swap.integration.policy.chunked_actor import ChunkedActor
    from openrlhf_swap.scoring.answer import AnswerBranch, ScoreRequest, read_per_prefix
    from openrlhf_swap.scoring.small_model import WORDS, small_model
    from support.hidden_steps import slow_needs
    from support.passes import scorer_of

    deepspeed.init_distributed("gloo")
    branch = AnswerBranch((3, 4, 5, 6), (False, True, True, True))
    ids = torch.randint(0, WORDS, (2, 40), generator=torch.Generator().manual_seed(rank))
    mask = torch.ones_like(ids)
    mask[0, 35:] = 0
    # Rank 1 has more rows and prefixes to score than rank 0, which has none in the second
    # micro-batch.
    both = ("answer_logprobs", "need")
    wanted = [
        ScoreRequest(0, (4, 9, 20, 34)[: 2 + 2 * rank], branch, both),
        ScoreRequest(1, (7, 39), branch, both),
    ][: 1 + rank]
    for family in families:
        model = small_model(CONFIG_MAPPING[family](), AutoModelForCausalLM.from_config)
        # As in OpenRLHF's actor: with a cache, packed responses are not kept apart.
        model.config.use_cache = False
        whole = copy.deepcopy(model)
        settings = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}
        engine, *_ = deepspeed.initialize(model=model, config=settings)
        # Recurrent layers are refused with packing.
        for packed in (False,) if family == "qwen3_5_text" else (False, True):
            actor = ChunkedActor(engine)
            actor.packing_samples, actor.temperature = packed, 1.0
            assert actor.hold_logits_of(7) is None
            scorer = scorer_of(actor, zero_stage=3)
            names = both if family != "qwen3_5_text" else both[:1]  # a recurrent one has no need
            for asked in (wanted, wanted[:1] if rank else []):
                requests = [replace(request, wanted=names) for request in asked]
                scored = scorer.forward(ids, mask[:, 1:], mask, requests, names)
                differences = [torch.zeros(1)]
                for request, signals in zip(requests, scored.signals, strict=True):
                    ours = signals["answer_logprobs"]
                    row = ids[request.row][mask[request.row].bool()]
                    reference = read_per_prefix(
                        whole, row, [end + 1 for end in request.prefix_ends], branch
                    )
                    differences.append(ours - reference)
                    if "need" in names:
                        differences.append(signals["need"] - slow_needs(whole, row, request))
                largest = float(torch.cat(differences).abs().max())
                print(f"\ndiffer {rank} {family} {packed} {largest:.2e}", flush=True)
    for tied in (False, True):
        compare_gradients(rank, tied)
    torch.distributed.destroy_process_group()


def rows_of(rank):
    """Ids of eight chunks of seven tokens on one rank, of three on the other; weights of a loss."""
    torch.manual_seed(rank + 1)
    tokens = (50, 19)[rank]
    return torch.randint(300, (1, tokens)), torch.randn(1, tokens - 1)


def compare_gradients(rank, tied):
    """Log-probabilities in chunks, where DeepSpeed shards the head's weight over both ranks."""
    import deepspeed
    from deepspeed.utils import safe_get_full_grad
    from transformers import AutoModelForCausalLM, Qwen2Config

    from openrlhf_swap.integration.policy.chunked_actor import ChunkedActor

    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 300}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "use_cache": False}
    config = Qwen2Config(tie_word_embeddings=tied, **sizes)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    plain = copy.deepcopy(model)
    for other in (0, 1):
        ids, weights = rows_of(other)
        log_probs = (plain(ids).logits / 0.6).log_softmax(-1)[:, :-1]
        taken = log_probs.gather(-1, ids[:, 1:, None]).squeeze(-1)
        (taken * weights).sum().div(2).backward()  # DeepSpeed averages over the ranks
    zero = {"stage": 3, "stage3_param_persistence_threshold": 0}
    adam = {"type": "AdamW", "params": {"lr": 1e-6, "torch_adam": True}}
    options = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": zero, "optimizer": adam}
    given = {"model": model, "model_parameters": model.parameters(), "config": options}
    engine, *_ = deepspeed.initialize(**given)
    actor = ChunkedActor(engine)
    actor.packing_samples, actor.temperature = False, 0.6
    assert actor.hold_logits_of(7) is None
    assert model.lm_head.weight.numel() == 0  # sharded
    ids, weights = rows_of(rank)
    ones = torch.ones_like(ids)
    log_probs, _ = actor(ids, ones[:, 1:], ones, return_output=True)
    engine.backward((log_probs * weights).sum())
    pairs = list(zip(model.named_parameters(), plain.named_parameters(), strict=True))
    for (name, weight), (_, expected) in pairs:
        found = safe_get_full_grad(weight)
        assert (found - expected.grad).norm() <= 1e-5 * max(expected.grad.norm(), 1e-2), name
    print(f"\nequal {rank} {len(pairs)}", flush=True)


if __name__ == "__main__":
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517", "DS_ACCELERATOR": "cpu"}
    torch.multiprocessing.spawn(rank_main, args=(2, sys.argv[1:] or FAMILIES), nprocs=2)

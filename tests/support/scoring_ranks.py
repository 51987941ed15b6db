"""Two ZeRO-3 ranks: scores of different numbers of responses, and gradients of a sharded head.

    python -m support.scoring_ranks FAMILY [...]

Each rank prints `differ RANK FAMILY PACKED VALUE` for each family and packing: how far its scores
are from those of the slow way. It prints `equal RANK WEIGHTS` once the gradients in chunks equal
those of all logits.
"""

import copy
import os
import sys

import torch
import torch.multiprocessing

FAMILIES = ["gemma3_text", "deepseek_v3", "qwen3_5_text"]
RECURRENT = "qwen3_5_text"  # it has no `need` and refuses packing


def rank_main(rank, world, families):
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
    torch.set_num_threads(1)
    import deepspeed

    deepspeed.init_distributed("gloo")
    for family in families:
        compare_scores(rank, family)
    for tied in (False, True):
        compare_gradients(rank, tied)
    torch.distributed.destroy_process_group()


def requests_of(rank, wanted):
    """What each of two micro-batches scores: rank 1 more rows and prefixes than rank 0.

    In the second micro-batch rank 0 has nothing to score.
    """
    from openrlhf_swap.scoring.answer import AnswerBranch, ScoreRequest

    branch = AnswerBranch((3, 4, 5, 6), (False, True, True, True))
    if rank == 0:
        return [[ScoreRequest(0, (4, 9), branch, wanted)], []]
    first = ScoreRequest(0, (4, 9, 20, 34), branch, wanted)
    second = ScoreRequest(1, (7, 39), branch, wanted)
    return [[first, second], [first]]


def compare_scores(rank, family):
    """Score with a sharded model, and compare with the slow way on the whole model."""
    import deepspeed
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    from openrlhf_swap.integration.policy.chunked_actor import ChunkedActor
    from openrlhf_swap.scoring.small_model import WORDS, small_model
    from support.passes import scorer_of

    generator = torch.Generator().manual_seed(rank)
    ids = torch.randint(0, WORDS, (2, 40), generator=generator)
    mask = torch.ones_like(ids)
    mask[0, 35:] = 0
    wanted = ("answer_logprobs",) if family == RECURRENT else ("answer_logprobs", "need")
    model = small_model(CONFIG_MAPPING[family](), AutoModelForCausalLM.from_config)
    # As in OpenRLHF's actor: with a cache, packed responses are not kept apart.
    model.config.use_cache = False
    whole = copy.deepcopy(model)
    settings = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}
    engine, *_ = deepspeed.initialize(model=model, config=settings)
    for packed in [False] if family == RECURRENT else [False, True]:
        actor = ChunkedActor(engine)
        actor.packing_samples = packed
        actor.temperature = 1.0
        assert actor.hold_logits_of(7) is None
        scorer = scorer_of(actor, zero_stage=3)
        for requests in requests_of(rank, wanted):
            scored = scorer.forward(ids, mask[:, 1:], mask, requests, wanted)
            largest = 0.0
            for request, signals in zip(requests, scored.signals, strict=True):
                row = ids[request.row][mask[request.row].bool()]
                largest = max(largest, difference_to_slow(whole, row, request, signals))
            print(f"\ndiffer {rank} {family} {packed} {largest:.2e}", flush=True)


def difference_to_slow(model, row, request, signals):
    """The largest difference between a response's signals and those of the slow way."""
    from openrlhf_swap.scoring.answer import read_per_prefix
    from support.hidden_steps import slow_needs

    lengths = [end + 1 for end in request.prefix_ends]
    scores = read_per_prefix(model, row, lengths, request.branch)
    differences = [signals["answer_logprobs"] - scores]
    if "need" in request.wanted:
        differences.append(signals["need"] - slow_needs(model, row, request))
    return torch.cat(differences).abs().max().item()


def rows_of(rank):
    """The ids of a rank's tokens and the weights of their loss.

    In chunks of seven tokens, rank 0 has eight and rank 1 three.
    """
    torch.manual_seed(rank + 1)
    tokens = (50, 19)[rank]
    return torch.randint(300, (1, tokens)), torch.randn(1, tokens - 1)


def compare_gradients(rank, tied):
    """Compare gradients of log-probabilities in chunks, where the head's weight is sharded."""
    import deepspeed
    from deepspeed.utils import safe_get_full_grad
    from transformers import AutoModelForCausalLM, Qwen2Config

    from openrlhf_swap.integration.policy.chunked_actor import ChunkedActor

    config = Qwen2Config(
        tie_word_embeddings=tied,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        vocab_size=300,
        num_attention_heads=4,
        num_key_value_heads=2,
        use_cache=False,
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    plain = copy.deepcopy(model)
    for other in (0, 1):
        ids, weights = rows_of(other)
        logits = plain(ids).logits / 0.6
        log_probs = logits.log_softmax(-1)[:, :-1]
        taken = log_probs.gather(-1, ids[:, 1:, None]).squeeze(-1)
        (taken * weights).sum().div(2).backward()  # DeepSpeed averages over the ranks
    zero = {"stage": 3, "stage3_param_persistence_threshold": 0}
    adam = {"type": "AdamW", "params": {"lr": 1e-6, "torch_adam": True}}
    options = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": zero, "optimizer": adam}
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=options
    )
    actor = ChunkedActor(engine)
    actor.packing_samples = False
    actor.temperature = 0.6
    assert actor.hold_logits_of(7) is None
    assert model.lm_head.weight.numel() == 0  # sharded
    ids, weights = rows_of(rank)
    ones = torch.ones_like(ids)
    log_probs, _ = actor(ids, ones[:, 1:], ones, return_output=True)
    engine.backward((log_probs * weights).sum())
    pairs = list(zip(model.named_parameters(), plain.named_parameters(), strict=True))
    for (name, weight), (_, expected) in pairs:
        found = safe_get_full_grad(weight)
        error = (found - expected.grad).norm()
        assert error <= 1e-5 * max(expected.grad.norm(), 1e-2), name
    print(f"\nequal {rank} {len(pairs)}", flush=True)


if __name__ == "__main__":
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517", "DS_ACCELERATOR": "cpu"}
    torch.multiprocessing.spawn(rank_main, args=(2, sys.argv[1:] or FAMILIES), nprocs=2)

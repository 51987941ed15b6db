"""Two ZeRO-3 ranks that score different numbers of responses: how far they are from one forward per
prefix.

    python -m support.scoring_ranks FAMILY [...]

Both ranks print one line per family: `differ RANK FAMILY PACKED VALUE`.
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
    from openrlhf_swap.scoring.answer import AnswerBranch, ScoreRequest, score_per_prefix
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
        model.config.use_cache = (
            False  # as in OpenRLHF's actor: with a cache, packed responses are not kept apart
        )
        whole = copy.deepcopy(model)
        settings = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}
        engine, *_ = deepspeed.initialize(model=model, config=settings)
        for packed in (False, True)[
            : 1 + (family != "qwen3_5_text")
        ]:  # recurrent layers are refused with packing
            actor = ChunkedActor(engine)
            actor.packing_samples, actor.temperature = packed, 1.0
            assert actor.hold_logits_of(7) is None
            scorer = scorer_of(actor, zero_stage=3)
            names = both if family != "qwen3_5_text" else both[:1]  # a recurrent one has no need
            for asked in (wanted, wanted[:1] if rank else []):
                requests = [replace(request, signals=names) for request in asked]
                scored = scorer.forward(ids, mask[:, 1:], mask, requests, names)
                differences = [torch.zeros(1)]
                for request, signals in zip(requests, scored.signals, strict=True):
                    ours = signals["answer_logprobs"]
                    row = ids[request.row][mask[request.row].bool()]
                    reference = score_per_prefix(
                        whole, row, [end + 1 for end in request.prefix_ends], branch
                    )
                    differences.append(ours - reference)
                    if "need" in names:
                        differences.append(signals["need"] - slow_needs(whole, row, request))
                largest = float(torch.cat(differences).abs().max())
                print(f"\ndiffer {rank} {family} {packed} {largest:.2e}", flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517", "DS_ACCELERATOR": "cpu"}
    torch.multiprocessing.spawn(rank_main, args=(2, sys.argv[1:] or FAMILIES), nprocs=2)

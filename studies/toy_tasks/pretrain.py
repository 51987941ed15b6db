r"""Teach an untrained policy its supervised rows in plain PyTorch, in fp32 on one thread; seeded.

    python -m studies.toy_tasks.pretrain --start outputs/base_policy/start \
        --output outputs/base_policy/trained

It reads what make_policy.py wrote.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import Qwen2ForCausalLM, Qwen2Tokenizer

from openrlhf_swap.files import read_rows

# The last tokens of a row hold the answer: few, and what matters most.
ANSWER_TOKENS = 4
ANSWER_WEIGHT = 5.0
WARM_UP = 60  # updates
LEAST_RATE = 0.05  # of the learning rate, at the end
POOL = 16  # batches whose rows are sorted by length together

Row = tuple[list[int], list[int]]  # what is read, and what is taught


def encoded(path: Path, tokenizer: Qwen2Tokenizer) -> list[Row]:
    """The rows of sft.jsonl as tokens."""
    table = pd.DataFrame(read_rows(path))
    given = tokenizer(table["input"].tolist(), add_special_tokens=False)["input_ids"]
    taught = tokenizer(table["output"].tolist(), add_special_tokens=False)["input_ids"]
    return list(zip(given, taught, strict=True))


def batches(rows: list[Row], size: int, rng: random.Random) -> Iterator[list[Row]]:
    """All rows once, in batches of rows of like length, which need little padding."""
    for start in range(0, len(rows), POOL * size):
        pool = sorted(rows[start : start + POOL * size], key=lambda row: len(row[0]) + len(row[1]))
        parts = [pool[i : i + size] for i in range(0, len(pool), size)]
        rng.shuffle(parts)
        yield from parts


def tensors(batch: list[Row], pad: int) -> tuple[Tensor, Tensor]:
    """Token ids, and what each counts in the loss, 0 where it is only read; (rows, longest)."""
    longest = max(len(read) + len(taught) for read, taught in batch)
    ids = torch.full((len(batch), longest), pad)
    weights = torch.zeros(len(batch), longest)
    for row, (read, taught) in enumerate(batch):
        end = len(read) + len(taught)
        ids[row, :end] = torch.tensor(read + taught)
        weights[row, len(read) : end] = 1.0
        weights[row, max(len(read), end - ANSWER_TOKENS) : end] = ANSWER_WEIGHT
    return ids, weights


def rate(update: int, updates: int) -> float:
    """The share of the learning rate: a warm-up, then a half cosine."""
    falling = LEAST_RATE + (1 - LEAST_RATE) * 0.5 * (1 + math.cos(math.pi * update / updates))
    return min(1.0, (update + 1) / WARM_UP) * falling


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--start", type=Path, required=True, help="folder that make_policy.py wrote"
    )
    parser.add_argument(
        "--output", type=Path, required=True, help="folder for the trained policy, in bf16"
    )
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    tokenizer = Qwen2Tokenizer.from_pretrained(args.start)
    model = Qwen2ForCausalLM.from_pretrained(args.start, dtype=torch.float32).train()
    rows = encoded(args.start / "sft.jsonl", tokenizer)
    updates = math.ceil(len(rows) / args.batch_size)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=args.learning_rate, betas=(0.9, 0.98), weight_decay=0.0
    )
    recent: list[float] = []
    for update, batch in enumerate(batches(rows, args.batch_size, random.Random(args.seed))):
        for group in optimizer.param_groups:
            group["lr"] = args.learning_rate * rate(update, updates)
        ids, weights = tensors(batch, tokenizer.pad_token_id)
        logits = model(ids[:, :-1]).logits
        losses = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        loss = (losses * weights[:, 1:].flatten()).sum() / weights[:, 1:].sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        recent.append(loss.item())
        if update % 100 == 99 or update == updates - 1:
            print(
                f"{update + 1} of {updates} updates, loss {sum(recent) / len(recent):.4f}",
                flush=True,
            )
            recent.clear()
    model.to(torch.bfloat16).save_pretrained(args.output)
    tokenizer.save_pretrained(args.output)


if __name__ == "__main__":
    main()

"""What one training step costs the driver while all GPUs wait, against OpenRLHF's own loop over tokens.

    python benchmarks/driver.py --responses 2048 --tokens 6000

Synthetic responses go through the code that the real experience maker runs: rollouts are read and cut into steps, and
cumulative returns are made of the rewards. OpenRLHF's loop is timed on a part of them and scaled up.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from openrlhf_swap.config import SwapConfig
from openrlhf_swap.integration.conversion import read_rollouts
from openrlhf_swap.integration.experience import SwapExperienceMaker
from openrlhf_swap.objectives.registry import build
from openrlhf_swap.rollouts.reader import StepReader

POLICY = Path(__file__).parents[1] / "examples" / "addition" / "policy"
PROMPT = 200  # tokens
LOOPED = 16  # responses that OpenRLHF's loop is timed on


def make_samples(responses: int, tokens: int, vocabulary: int, close_id: int) -> list[Any]:
    """Micro-batches of one response each, half of them correct, their thought closed near the end."""
    from openrlhf.trainer.ppo_utils.experience import Experience

    torch.manual_seed(0)
    samples = []
    for number in range(responses):
        sequences = torch.randint(vocabulary, (1, PROMPT + tokens))
        sequences[0, -tokens // 10] = close_id
        action_mask = torch.zeros(1, PROMPT + tokens - 1, dtype=torch.int64)
        action_mask[0, PROMPT - 1 :] = 1
        samples.append(
            Experience(
                sequences=sequences,
                action_mask=action_mask,
                prompts=["p"],
                labels=["42"],
                rewards=torch.tensor([float(number % 2)]),
                index=[number],
                info={},
            )
        )
    return samples


def seconds(function: Callable[..., Any], arguments: list[tuple[Any, ...]]) -> float:
    """Of one call after the other."""
    start = time.perf_counter()
    for words in arguments:
        function(*words)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--responses", type=int, default=2048)
    parser.add_argument("--tokens", type=int, default=6000)
    args = parser.parse_args()
    from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker

    tokenizer = AutoTokenizer.from_pretrained(POLICY)
    config = SwapConfig()
    reader = StepReader(tokenizer, *config.segmentation)
    (close_id,) = tokenizer("</think>", add_special_tokens=False)["input_ids"]
    samples = make_samples(args.responses, args.tokens, close_id, close_id)
    rewards = torch.zeros(1, PROMPT + args.tokens - 1)
    rewards[0, -1] = 0.5
    objective, maker = build(config), SwapExperienceMaker.__new__(SwapExperienceMaker)

    reading = seconds(read_rollouts, [(sample, objective, reader) for sample in samples])
    returns = [(rewards, sample.action_mask, 1.0) for sample in samples]
    ours = seconds(maker.get_cumulative_returns, returns)
    part = returns[:LOOPED]
    stock = seconds(lambda *words: RemoteExperienceMaker.get_cumulative_returns(None, *words), part)
    stock *= len(returns) / len(part)
    print(f"{args.responses} responses of {args.tokens} tokens, one a micro-batch")
    print(f"reading rollouts and their steps {reading:.2f} s")
    print(f"cumulative returns {ours:.2f} s, OpenRLHF's loop {stock:.0f} s (from {len(part)} responses)")
    print(f"ratio {(reading + stock) / (reading + ours):.0f}")


if __name__ == "__main__":
    main()

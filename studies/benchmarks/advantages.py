"""How long the advantages of one training batch take, against a loop over responses and steps.

python -m studies.benchmarks.advantages --groups 128 --responses 16 --tokens 12000
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

from openrlhf_swap.algorithm.advantages import (
    outcome_advantages,
    process_advantages,
    step_credit,
    unified_advantages,
)
from openrlhf_swap.algorithm.batch import StepBatch
from openrlhf_swap.algorithm.coefficients import Coefficients


def random_batch(groups: int, responses: int, tokens: int, steps: int) -> StepBatch:
    """Responses of up to `tokens` tokens in `steps` even steps, about 60% of them correct."""
    torch.manual_seed(0)
    shape = (groups, responses)
    lengths = torch.randint(tokens // 4, tokens + 1, shape)
    correct = torch.rand(shape) < 0.6
    fractions = torch.arange(1, steps + 1) / steps
    ends = (lengths.unsqueeze(-1) * fractions).long() - 1
    logprobs = torch.randn(*shape, steps + 1, dtype=torch.float64).cumsum(-1) - 5
    scored = correct.unsqueeze(-1).expand(*shape, steps).clone()
    return StepBatch(
        lengths, correct, ends, scored, has_step=scored, signals={"answer_logprobs": logprobs}
    )


def vectorised(batch: StepBatch, numbers: Coefficients, tokens: int) -> torch.Tensor:
    """(G, N, A) float32, as a training step computes them."""
    outcome = outcome_advantages(batch.correct.double(), numbers.eps).float()
    signals = step_credit(batch, numbers)
    process = process_advantages(
        signals.normalised.float(), batch.step_ends, batch.step_mask, tokens
    )
    return unified_advantages(
        outcome.unsqueeze(-1), process, numbers.outcome_weight, numbers.process_weight
    )


def looped(batch: StepBatch, numbers: Coefficients, tokens: int) -> torch.Tensor:
    """The same with one slice assignment a step."""
    outcome = outcome_advantages(batch.correct.double(), numbers.eps).float()
    normalised = step_credit(batch, numbers).normalised.float()
    advantages = (numbers.outcome_weight * outcome).unsqueeze(-1).repeat(1, 1, tokens)
    for g, n in batch.correct.nonzero().tolist():
        for reward, end in zip(
            normalised[g, n].tolist(), batch.step_ends[g, n].tolist(), strict=True
        ):
            advantages[g, n, : end + 1] += numbers.process_weight * reward
    return advantages


def timed(function: Callable, *arguments: object) -> tuple[torch.Tensor, float]:
    """The result, and the best of three times in seconds."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        result = function(*arguments)
        times.append(time.perf_counter() - start)
    return result, min(times)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--groups", type=int, default=128)
    parser.add_argument("--responses", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=12_000)
    parser.add_argument("--steps", type=int, default=25)
    args = parser.parse_args()
    batch = random_batch(args.groups, args.responses, args.tokens, args.steps)
    numbers = Coefficients()
    fast, fast_seconds = timed(vectorised, batch, numbers, args.tokens)
    slow, slow_seconds = timed(looped, batch, numbers, args.tokens)
    print(
        f"{args.groups * args.responses} responses of up to {args.tokens} tokens, {args.steps} "
        "steps each"
    )
    print(f"vectorised {fast_seconds:.2f} s, loop over steps {slow_seconds:.2f} s")
    print(f"largest difference {(fast - slow).abs().max().item():.1e}")
    print(f"ratio {slow_seconds / fast_seconds:.2f}: advantages by a loop over steps, to ours")


if __name__ == "__main__":
    main()

"""What a step has to gain under each normalisation of the step rewards, on a tiny policy.

python -m benchmarks.step_price

The policy may stop before each of eight steps. The first three are essential: a response is correct
with probability .05, .3, .93 and .995 after 0, 1, 2 and 3 of them; the other five change nothing.
Takes two minutes on one core.
"""

from __future__ import annotations

import argparse
from statistics import fmean

import torch
from tabulate import tabulate
from torch import Tensor
from torch.nn.functional import pad

from openrlhf_swap.algorithm.advantages import (
    outcome_advantages,
    process_advantages,
    step_signals,
    unified_advantages,
)
from openrlhf_swap.algorithm.batch import StepBatch
from openrlhf_swap.algorithm.coefficients import Coefficients

STEPS, STEP_TOKENS = 8, 10
CORRECT = torch.tensor([0.05, 0.3, 0.93] + [0.995] * 6)  # by number of steps taken
GROUPS, RESPONSES, LEARNING_RATE = 16, 8, 0.1
SCORE_NOISE = 0.01  # nats
SETUPS = {
    "GRPO": Coefficients(process_weight=0.0),
    "SWAP, mean": Coefficients(),
    "SWAP, zero": Coefficients(step_baseline="zero"),
    "SWAP, value": Coefficients(step_baseline="zero"),
}
Sample = tuple[Tensor, Tensor, Tensor, Tensor]


def sample(logits: Tensor, generator: torch.Generator) -> Sample:
    """Sample steps and scores.

    Returns (G, N, S) whether the policy continues, (G, N) steps taken, (G, N) correct, and (G, N,
    S+1) scores.
    """
    shape = (GROUPS, RESPONSES)
    continues = torch.rand(*shape, STEPS, generator=generator) < torch.sigmoid(logits).detach()
    taken = continues.int().cumprod(-1).sum(-1)
    correct = torch.rand(shape, generator=generator) < CORRECT[taken]
    noise = SCORE_NOISE * torch.randn(*shape, STEPS + 1, generator=generator, dtype=torch.float64)
    return continues, taken, correct, CORRECT.double().log() / 3 + noise


def choice_advantages(name: str, taken: Tensor, correct: Tensor, scores: Tensor) -> Tensor:
    """(G, N, S+1) advantage of what the policy chose before each step, and of stopping."""
    numbers = SETUPS[name]
    ends = torch.arange(1, STEPS + 1).mul(STEP_TOKENS).sub(1).expand(*taken.shape, STEPS)
    mask = (torch.arange(STEPS) < taken.unsqueeze(-1)) & correct.unsqueeze(-1)
    lengths = STEP_TOKENS * taken + 12
    signals = {"answer_logprobs": scores}
    batch = StepBatch(lengths, correct, ends, mask, pad(mask, (1, 0)), signals)
    tokens = STEP_TOKENS * (STEPS + 1)
    outcome = outcome_advantages(correct.double(), numbers.eps).unsqueeze(-1).expand(-1, -1, tokens)
    process = None
    if numbers.needs_scores:
        process = process_advantages(step_signals(batch, numbers).normalised, ends, mask, tokens)
        if name == "SWAP, value":
            process = less_value(process, correct)
    unified = unified_advantages(outcome, process, numbers.outcome_weight, numbers.process_weight)
    return unified[..., ::STEP_TOKENS]


def less_value(process: Tensor, correct: Tensor) -> Tensor:
    """(G, N, A) less the mean of the group's other correct responses at the same token.

    Responses that have ended count, too.
    """
    others = correct.sum(-1)[:, None, None] - 1
    value = torch.where(
        others > 0, (process.sum(1, keepdim=True) - process) / others.clamp(min=1), 0.0
    )
    return torch.where(correct.unsqueeze(-1), process - value, 0.0)


def objective(name: str, logits: Tensor, drawn: Sample) -> Tensor:
    """The policy gradient's objective: a mean over all choices made."""
    continues, taken, correct, scores = drawn
    advantages = choice_advantages(name, taken, correct, scores)
    stopping = advantages.gather(-1, taken.unsqueeze(-1)).expand(-1, -1, STEPS)
    chosen = torch.where(
        torch.arange(STEPS) < taken.unsqueeze(-1), advantages[..., :STEPS], stopping
    )
    logprobs = torch.nn.functional.logsigmoid(torch.where(continues, logits, -logits))
    made = torch.arange(STEPS) <= taken.unsqueeze(-1)
    return (chosen.float() * logprobs * made).sum() / made.sum()


def train(name: str, seed: int, updates: int) -> tuple[list[float], list[float]]:
    """Mean steps and accuracy of each update."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.full((STEPS,), 2.0, requires_grad=True)
    optimizer = torch.optim.AdamW([logits], lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0)
    steps, accuracy = [], []
    for _ in range(updates):
        drawn = sample(logits, generator)
        optimizer.zero_grad()
        (-objective(name, logits, drawn)).backward()
        optimizer.step()
        steps.append(drawn[1].float().mean().item())
        accuracy.append(drawn[2].float().mean().item())
    return steps, accuracy


def gradient_noise(name: str, batches: int = 200) -> float:
    """Norm of the gradient's standard deviation over the norm of its mean, at the start."""
    generator = torch.Generator().manual_seed(0)
    gradients = []
    for _ in range(batches):
        logits = torch.full((STEPS,), 2.0, requires_grad=True)
        objective(name, logits, sample(logits, generator)).backward()
        gradients.append(logits.grad)
    stacked = torch.stack(gradients)
    return (stacked.std(0).norm() / stacked.mean(0).norm()).item()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--updates", type=int, default=250)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name in SETUPS:
        runs = [train(name, seed, args.updates) for seed in range(args.seeds)]
        early, late = (
            fmean(fmean(steps[part]) for steps, _ in runs)
            for part in (slice(15, 25), slice(-20, None))
        )
        endings = [fmean(accuracy[-20:]) for _, accuracy in runs]
        rows.append((name, early, late, fmean(endings), min(endings), gradient_noise(name)))
    headers = (
        "objective",
        "steps after 20 updates",
        "at the end",
        "accuracy",
        "of the worst seed",
        "gradient noise",
    )
    print(
        tabulate(rows, headers, tablefmt="github", floatfmt=("", ".2f", ".2f", ".3f", ".3f", ".2f"))
    )
    for name, _, late, *_ in rows[1:]:
        print(f"ratio {late / rows[0][2]:.2f}: steps at the end with {name}, to GRPO")


if __name__ == "__main__":
    main()

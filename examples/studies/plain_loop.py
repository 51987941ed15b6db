"""Train a world's policy in one process, without Ray, vLLM and DeepSpeed: for questions that need
many seeds.

    export PYTHONPATH=$PWD/examples/worlds:$PWD/examples/studies python
    examples/studies/plain_loop.py --world columns --arms steps.tau1 weights.0.25sd --seeds 1 2 3 \
        --output outputs/loop

What the arms are: `arms.py`. Steps, scores and advantages are the package's own functions. A step
is 8 prompts with 8 responses and one update, so that it is on policy and nothing is clipped;
weights are bfloat16 with float32 masters, as in OpenRLHF. Each run writes a line a step to a file
of its own, and at the end one of 500 held-out problems; finished runs are skipped.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from arms import arm_limit, arm_rewards, arm_settings, arm_signals, share_on_redundant
from decoding import padded_left
from sampling import sample
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer
from world import CLOSE, NAMES, Problem, load, rendered

from openrlhf_swap import StepTrace, SwapConfig
from openrlhf_swap.algorithm.advantages import (
    StepSignals,
    outcome_advantages,
    process_advantages,
    unified_advantages,
)
from openrlhf_swap.algorithm.batch import StepBatch
from openrlhf_swap.objectives.registry import coefficients
from openrlhf_swap.rollouts.rollout import StepReader
from openrlhf_swap.scoring.answer import ScoreRequest, answer_branch
from openrlhf_swap.scoring.shared_prefix import score_shared_prefix

PROMPTS, RESPONSES, PART, HELD_OUT = 8, 8, 32, 500
POLICIES = Path(__file__).parents[1] / "worlds" / "policies"


class Loop:
    """A world's policy, and what a training step does with it."""

    def __init__(self, world: str, **settings: Any) -> None:
        self.world, folder = load(world), POLICIES / world
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
        step = {"step_tokens": self.world.STEP_TOKENS, "close_template": CLOSE}
        self.config = SwapConfig(**step, **settings)
        self.numbers = coefficients(self.config)
        self.reader = StepReader(self.tokenizer, "</think>", *self.config.segmentation)
        # The embedding has a few more entries than the tokenizer, which decode to nothing.
        self.words = self.tokenizer.batch_decode([[i] for i in range(self.model.config.vocab_size)])

    def text(self, ids: Sequence[int]) -> str:
        return "".join(self.words[i] for i in ids)

    def respond(
        self, problems: Sequence[Problem], limit: int = 320
    ) -> tuple[list[list[int]], list[list[int]]]:
        """Of each problem the prompt and a response of at most `limit` tokens, as token ids."""
        prompts = [self.reader.ids(rendered(problem.question)) for problem in problems]
        return prompts, sample(
            self.model, prompts, self.tokenizer.eos_token_id, self.tokenizer.pad_token_id, limit
        )[0]

    def correct(self, problem: Problem, response: Sequence[int]) -> bool:
        return self.text(response).endswith(f"\\boxed{{{problem.answer}}}<|end|>")

    def batch(
        self, problems: Sequence[Problem], prompts: list[list[int]], responses: list[list[int]]
    ) -> StepBatch:
        """Steps and scores of groups; `problems` has one for each response."""
        rows = [(*pair, self.correct(*pair)) for pair in zip(problems, responses, strict=True)]
        traces = [StepTrace(len(response), False) for response in responses]
        right = [i for i, row in enumerate(rows) if row[2] and self.numbers.needs_scores]
        right.sort(key=lambda i: len(prompts[i]) + len(responses[i]))
        for part in (right[start : start + PART] for start in range(0, len(right), PART)):
            ids, mask = padded_right(
                [prompts[i] + responses[i] for i in part], self.tokenizer.pad_token_id
            )
            ends = [self.reader.step_ends(responses[i]) for i in part]
            requests = [
                ScoreRequest(
                    row,
                    (len(prompts[i]) - 1, *(len(prompts[i]) + end for end in ends[row])),
                    answer_branch(self.tokenizer, CLOSE, problems[i].answer),
                )
                for row, i in enumerate(part)
            ]
            scores = score_shared_prefix(self.model, self.model.config, ids, mask, requests)
            for i, own, score in zip(part, ends, scores, strict=True):
                traces[i] = StepTrace(len(responses[i]), True, score.tolist(), own)
        if not self.numbers.needs_scores:
            traces = [StepTrace(len(response), right) for _, response, right in rows]
        return StepBatch.from_traces(
            [traces[i : i + RESPONSES] for i in range(0, len(traces), RESPONSES)]
        )

    def labels(self, problem: Problem, response: Sequence[int]) -> list[str]:
        return self.world.label_lines(problem.question, self.text(response))

    def redundant_steps(
        self, problems: Sequence[Problem], responses: list[list[int]], batch: StepBatch
    ) -> Tensor:
        """(G, N, K) bool: the steps of which every line is redundant."""
        redundant = torch.zeros_like(batch.step_mask)
        rows, ends = redundant.flatten(0, 1), batch.step_ends.flatten(0, 1).tolist()
        for row, (problem, response) in enumerate(zip(problems, responses, strict=True)):
            labels, start = iter(self.labels(problem, response)), 0
            for step in range(int(batch.step_mask.flatten(0, 1)[row].sum())):
                lines = (
                    self.text(response[start : ends[row][step] + 1])
                    .split("</think>")[0]
                    .splitlines()
                )
                own = set(islice(labels, sum(bool(line.strip()) for line in lines)))
                rows[row, step], start = own == {"redundant"}, ends[row][step] + 1
        return redundant

    def advantages(self, batch: StepBatch, signals: StepSignals, rewards: Tensor) -> Tensor:
        """(responses, A) the unified advantage of each token."""
        tokens = int(batch.lengths.max())
        outcome = outcome_advantages(rewards, self.numbers.eps)[..., None].expand(-1, -1, tokens)
        process = process_advantages(signals.normalised, batch.step_ends, batch.step_mask, tokens)
        weights = self.numbers.outcome_weight, self.numbers.process_weight
        return unified_advantages(
            outcome, process if self.numbers.needs_scores else None, *weights
        ).flatten(0, 1)

    def add_gradient(
        self, prompts: list[list[int]], responses: list[list[int]], advantages: Tensor
    ) -> None:
        """Of the policy loss, a mean over all tokens; `advantages` are (responses, A)."""
        tokens = sum(map(len, responses))
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]) + len(responses[i]))
        for part in (order[start : start + PART] for start in range(0, len(order), PART)):
            ids, _ = padded_right(
                [prompts[i] + responses[i] for i in part], self.tokenizer.pad_token_id
            )
            weights = torch.zeros(ids.shape)
            for row, i in enumerate(part):
                place = slice(len(prompts[i]), len(prompts[i]) + len(responses[i]))
                weights[row, place] = advantages[i, : len(responses[i])].float()
            logits = self.model(ids[:, :-1], use_cache=False).logits.float()
            losses = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
            (losses @ weights[:, 1:].flatten() / tokens).backward()

    def measured(self, problems: Sequence[Problem], responses: list[list[int]]) -> dict[str, float]:
        """Accuracy, tokens and lines of each label, means over responses."""
        pairs = list(zip(problems, responses, strict=True))
        labels = [self.labels(*pair) for pair in pairs]
        counts = {name: sum(row.count(name) for row in labels) for name in self.world.LABELS}
        totals = {
            "accuracy": sum(self.correct(*pair) for pair in pairs),
            "tokens": sum(map(len, responses)),
            **counts,
        }
        return {name: total / len(pairs) for name, total in totals.items()}


def padded_right(rows: Sequence[list[int]], pad: int) -> tuple[Tensor, Tensor]:
    """Token ids and attention mask, (rows, longest)."""
    ids, mask = padded_left([row[::-1] for row in rows], pad)
    return ids.flip(-1), mask.flip(-1)


def train(loop: Loop, arm: str, seed: int, steps: int, rate: float, file: Path) -> None:
    """Train, and write a line a step; the last one, of the held-out problems, has no step."""
    torch.manual_seed(seed)
    test = list(islice(loop.world.problems(1), HELD_OUT))
    stream = loop.world.problems(1000 + seed, exclude=frozenset(test))
    weights = list(loop.model.parameters())
    masters = [weight.detach().float() for weight in weights]
    optimizer = torch.optim.AdamW(masters, lr=rate, betas=(0.9, 0.95), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    with file.open("w", encoding="utf-8") as lines:
        for step in range(steps):
            start = time.monotonic()
            problems = [problem for problem in islice(stream, PROMPTS) for _ in range(RESPONSES)]
            prompts, responses = loop.respond(problems, arm_limit(arm))
            batch = loop.batch(problems, prompts, responses)
            redundant = loop.redundant_steps(problems, responses, batch)
            signals = arm_signals(arm, loop.config, batch, redundant)
            loop.model.zero_grad()
            loop.add_gradient(
                prompts, responses, loop.advantages(batch, signals, arm_rewards(arm, batch))
            )
            for master, weight in zip(masters, weights, strict=True):
                master.grad = weight.grad.float()
            torch.nn.utils.clip_grad_norm_(masters, 1.0)
            optimizer.step()
            schedule.step()
            torch._foreach_copy_([weight.data for weight in weights], masters)
            price = {
                "price": signals.price.nanmean().item(),
                "on_redundant": share_on_redundant(signals, redundant),
            }
            row = {"step": step, **loop.measured(problems, responses), **price}
            lines.write(json.dumps({**row, "seconds": round(time.monotonic() - start, 2)}) + "\n")
            lines.flush()
        lines.write(json.dumps({"step": None, **loop.measured(test, loop.respond(test)[1])}) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--world", choices=NAMES, required=True)
    parser.add_argument("--arms", nargs="+", required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--theta", type=float, default=0.3)
    parser.add_argument("--max-steps", type=int, default=25, help="K")
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument(
        "--output", type=Path, required=True, help="folder of WORLD-ARM-THETA-K-SEED.jsonl"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.output.mkdir(parents=True, exist_ok=True)
    for seed in args.seeds:
        for arm in args.arms:
            file = args.output / f"{args.world}-{arm}-{args.theta:g}-{args.max_steps}-{seed}.jsonl"
            if not file.exists() or '"step": null' not in file.read_text(encoding="utf-8"):
                loop = Loop(
                    args.world,
                    process_weight=args.theta,
                    max_steps=args.max_steps,
                    **arm_settings(arm),
                )
                train(loop, arm, seed, args.steps, args.learning_rate, file)
                print(file.name, *file.read_text(encoding="utf-8").splitlines()[-1:], flush=True)


if __name__ == "__main__":
    main()

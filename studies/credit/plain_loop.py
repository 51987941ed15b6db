"""Train a world's policy in one process, without Ray, vLLM and DeepSpeed, for many seeds.

    python -m studies.credit.plain_loop --world columns --arms steps.tau1 weights.0.25sd \
        --seeds 1 2 3 --output outputs/loop

What the arms are: `arms.py`, and `objective.NAME` of `objective_arms.py`. Steps, scores and
advantages are the package's own functions. A step is 8 prompts with 8 responses and one update, so
that it is on policy and nothing is clipped; weights are bfloat16 with float32 masters, as in
OpenRLHF. `--discount` is gamma of A_proc[t], the sum of gamma^n r~ over the steps from the token's
own on: 1 is the paper's, 0 leaves each reward in its step. Each run writes a line a step to a file
of its own, and at the end one of 500 held-out problems; finished runs are skipped. `loop_runs.py`
runs many.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from openrlhf_swap import StepTrace, SwapConfig
from openrlhf_swap.algorithm.advantages import (
    StepCredit,
    outcome_advantages,
    process_advantages,
    unified_advantages,
)
from openrlhf_swap.algorithm.batch import StepBatch
from openrlhf_swap.algorithm.signals import ANSWER_LOGPROBS, NEED
from openrlhf_swap.files import Row
from openrlhf_swap.objectives.registry import coefficients
from openrlhf_swap.quickstart.world import CLOSE, Problem, rendered
from openrlhf_swap.rollouts.reader import StepReader
from openrlhf_swap.scoring.answer import ScoreRequest, answer_branch
from openrlhf_swap.scoring.shared_prefix import read_shared_prefix
from openrlhf_swap.scoring.signals import by_request
from studies.credit.arms import (
    arm_limit,
    arm_rewards,
    arm_settings,
    arm_signals,
    reads_need,
    share_on_redundant,
)
from studies.credit.sampling import sample
from studies.toy_tasks import NAMES, load, policy_of, repeated
from studies.toy_tasks.decoding import padded_left

PROMPTS = 8  # of a step
RESPONSES = 8  # to each
PART = 16  # responses of a pass; all are padded to the longest
HELD_OUT = 500  # problems


@dataclass(frozen=True)
class Lesson:
    """What a step learns from: one response to each of its problems, and how good a token is.

    `trained` are the responses as they are trained on, `advantages` (responses, A) those of their
    tokens; `numbers` are written beside what is measured of the responses.
    """

    prompts: list[list[int]]
    responses: list[list[int]]
    trained: list[list[int]]
    advantages: Tensor
    numbers: dict[str, float]


class Loop:
    """A world's policy, and what a training step does with it."""

    def __init__(self, world: str, reads_need: bool = False, **settings: Any) -> None:
        """Load a world's policy; `settings` are those of SwapConfig."""
        self.reads_need = reads_need
        self.world = load(world)
        self.folder = policy_of(world)
        self.tokenizer = AutoTokenizer.from_pretrained(self.folder)
        self.model = AutoModelForCausalLM.from_pretrained(self.folder, dtype=torch.bfloat16).eval()
        step = {"step_tokens": self.world.STEP_TOKENS, "close_template": CLOSE}
        self.config = SwapConfig(**step, **settings)
        self.numbers = coefficients(self.config)
        self.reader = StepReader(self.tokenizer, "</think>", *self.config.segmentation)
        # The embedding has a few more entries than the tokenizer, which decode to nothing.
        self.words = self.tokenizer.batch_decode([[i] for i in range(self.model.config.vocab_size)])

    def text(self, ids: Sequence[int]) -> str:
        return "".join(self.words[i] for i in ids)

    def respond(
        self, problems: Sequence[Problem], limit: int = 320, suffix: str = ""
    ) -> tuple[list[list[int]], list[list[int]]]:
        """The prompts of problems, and a response of at most `limit` tokens to each, as ids."""
        questions = [problem.question + suffix for problem in problems]
        prompts = [self.reader.ids(rendered(question)) for question in questions]
        end = self.tokenizer.eos_token_id
        sampled = sample(self.model, prompts, end, self.tokenizer.pad_token_id, limit)
        return prompts, sampled.responses

    def lesson(self, arm: str, problems: Sequence[Problem]) -> Lesson:
        """Respond, and say what an arm learns from the responses."""
        prompts, responses = self.respond(problems, arm_limit(arm))
        batch = self.batch(problems, prompts, responses)
        redundant = self.redundant_steps(problems, responses, batch)
        signals = arm_signals(arm, self.config, batch, redundant)
        advantages = self.advantages(batch, signals, arm_rewards(arm, batch))
        numbers = {
            "price": signals.baseline.nanmean().item(),
            "on_redundant": share_on_redundant(signals, redundant),
        }
        return Lesson(prompts, responses, responses, advantages, numbers)

    def correct(self, problem: Problem, response: Sequence[int]) -> bool:
        return self.text(response).endswith(f"\\boxed{{{problem.answer}}}<|end|>")

    def batch(
        self, problems: Sequence[Problem], prompts: list[list[int]], responses: list[list[int]]
    ) -> StepBatch:
        """Steps and scores of groups; `problems` has one for each response."""
        right = list(map(self.correct, problems, responses))
        needs_scores = self.numbers.needs_scores
        traces = []
        for response, correct in zip(responses, right, strict=True):
            traces.append(StepTrace(len(response), correct and not needs_scores))
        scored = [i for i, correct in enumerate(right) if correct and needs_scores]
        scored.sort(key=lambda i: len(prompts[i]) + len(responses[i]))
        for start in range(0, len(scored), PART):
            self.score(scored[start : start + PART], traces, problems, prompts, responses)
        groups = [traces[i : i + RESPONSES] for i in range(0, len(traces), RESPONSES)]
        return StepBatch.from_traces(groups)

    def score(
        self,
        chosen: Sequence[int],
        traces: list[StepTrace],
        problems: Sequence[Problem],
        prompts: list[list[int]],
        responses: list[list[int]],
    ) -> None:
        """Replace the traces of the chosen responses by scored ones."""
        rows = [prompts[i] + responses[i] for i in chosen]
        ids, mask = padded_right(rows, self.tokenizer.pad_token_id)
        all_ends = [self.reader.step_ends(responses[i]) for i in chosen]
        requests = []
        for row, (i, ends) in enumerate(zip(chosen, all_ends, strict=True)):
            first = len(prompts[i])
            prefixes = (first - 1, *(first + end for end in ends))
            branch = answer_branch(self.tokenizer, CLOSE, problems[i].answer)
            names = [ANSWER_LOGPROBS.name]
            if self.reads_need and ends:  # a response without steps needs none
                names.append(NEED.name)
            requests.append(
                ScoreRequest(
                    row,
                    prefixes,
                    branch,
                    wanted=tuple(names),
                    need_window=self.config.need_window,
                    need_every=self.config.need_every,
                )
            )
        found = read_shared_prefix(self.model, ids, mask, requests)
        known = by_request(requests, found)
        for i, ends, signals in zip(chosen, all_ends, known, strict=True):
            scores = signals.pop(ANSWER_LOGPROBS.name).tolist()
            if self.reads_need and not ends:
                signals[NEED.name] = torch.zeros(0)
            traces[i] = StepTrace(len(responses[i]), True, scores, ends, signals)

    def labels(self, problem: Problem, response: Sequence[int]) -> list[str]:
        return self.world.label_lines(problem.question, self.text(response))

    def redundant_steps(
        self, problems: Sequence[Problem], responses: list[list[int]], batch: StepBatch
    ) -> Tensor:
        """(G, N, K) bool: the steps of which every line is redundant."""
        redundant = torch.zeros_like(batch.step_mask)
        rows = redundant.flatten(0, 1)
        counts = batch.step_mask.flatten(0, 1).sum(-1).tolist()
        all_ends = batch.step_ends.flatten(0, 1).tolist()
        for row, (problem, response) in enumerate(zip(problems, responses, strict=True)):
            labels = iter(self.labels(problem, response))
            start = 0
            for step in range(counts[row]):
                end = all_ends[row][step] + 1
                thought = self.text(response[start:end]).split("</think>")[0]
                lines = sum(bool(line.strip()) for line in thought.splitlines())
                rows[row, step] = set(islice(labels, lines)) == {"redundant"}
                start = end
        return redundant

    def advantages(self, batch: StepBatch, signals: StepCredit, rewards: Tensor) -> Tensor:
        """(responses, A) the unified advantage of each token."""
        numbers = self.numbers
        tokens = int(batch.lengths.max())
        outcome = outcome_advantages(rewards, numbers.eps)[..., None].expand(-1, -1, tokens)
        process = None
        if numbers.needs_scores:
            process = process_advantages(
                signals.normalised, batch.step_ends, batch.step_mask, tokens, numbers.step_discount
            )
        unified = unified_advantages(
            outcome, process, numbers.outcome_weight, numbers.process_weight
        )
        return unified.flatten(0, 1)

    def add_gradient(
        self, prompts: list[list[int]], responses: list[list[int]], advantages: Tensor
    ) -> None:
        """Add the gradient of the policy loss, a mean over all tokens.

        `advantages` are (responses, A).
        """
        tokens = sum(map(len, responses))
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]) + len(responses[i]))
        for start in range(0, len(order), PART):
            part = order[start : start + PART]
            rows = [prompts[i] + responses[i] for i in part]
            ids, _ = padded_right(rows, self.tokenizer.pad_token_id)
            weights = torch.zeros(ids.shape)
            for row, i in enumerate(part):
                first = len(prompts[i])
                length = len(responses[i])
                weights[row, first : first + length] = advantages[i, :length].float()
            logits = self.model(ids[:, :-1], use_cache=False).logits.float()
            losses = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
            (losses @ weights[:, 1:].flatten() / tokens).backward()

    def measured(self, problems: Sequence[Problem], responses: list[list[int]]) -> dict[str, float]:
        """Accuracy, tokens and lines of each label, means over responses."""
        pairs = list(zip(problems, responses, strict=True))
        labels = [self.labels(*pair) for pair in pairs]
        counts = Counter(chain.from_iterable(labels))
        totals = {
            "accuracy": sum(self.correct(*pair) for pair in pairs),
            "tokens": sum(map(len, responses)),
            **{name: counts[name] for name in self.world.LABELS},
        }
        return {name: total / len(pairs) for name, total in totals.items()}


def padded_right(rows: Sequence[list[int]], pad: int) -> tuple[Tensor, Tensor]:
    """Token ids and attention mask, (rows, longest)."""
    ids, mask = padded_left([row[::-1] for row in rows], pad)
    return ids.flip(-1), mask.flip(-1)


def train(loop: Loop, arm: str, seed: int, steps: int, rate: float) -> Iterator[Row]:
    """Train, and yield a row a step; the last one, of the held-out problems, has no step."""
    torch.manual_seed(seed)
    test = list(islice(loop.world.problems(1), HELD_OUT))
    stream = loop.world.problems(1000 + seed, exclude=frozenset(test))
    yield from updates(loop, arm, stream, steps, rate)
    yield {"step": None, **loop.measured(test, loop.respond(test)[1])}


def updates(
    loop: Loop, arm: str, stream: Iterator[Problem], steps: int, rate: float
) -> Iterator[Row]:
    """Train on the problems of a stream, at a rate that falls to 0, and yield a row a step."""
    weights = list(loop.model.parameters())
    masters = [weight.detach().float() for weight in weights]
    optimizer = torch.optim.AdamW(masters, lr=rate, betas=(0.9, 0.95), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for step in range(steps):
        start = time.monotonic()
        problems = repeated(islice(stream, PROMPTS), RESPONSES)
        lesson = loop.lesson(arm, problems)
        loop.model.zero_grad()
        loop.add_gradient(lesson.prompts, lesson.trained, lesson.advantages)
        for master, weight in zip(masters, weights, strict=True):
            master.grad = weight.grad.float()
        torch.nn.utils.clip_grad_norm_(masters, 1.0)
        optimizer.step()
        schedule.step()
        torch._foreach_copy_([weight.data for weight in weights], masters)
        yield {
            "step": step,
            **loop.measured(problems, lesson.responses),
            **lesson.numbers,
            "seconds": round(time.monotonic() - start, 2),
        }


def loop_of(world: str, arm: str, settings: dict[str, Any]) -> Loop:
    """The loop that trains an arm."""
    if arm.startswith("objective."):
        from studies.credit.objective_arms import ObjectiveLoop  # which imports this module

        return ObjectiveLoop(world, arm.removeprefix("objective."), **settings)
    return Loop(world, reads_need(arm), **settings, **arm_settings(arm))


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
    parser.add_argument("--discount", type=float, default=1.0, help="gamma (default: 1)")
    name = "WORLD-ARM-THETA-K-SEED.jsonl; after another discount, ARM is ARM+gammaDISCOUNT"
    parser.add_argument("--output", type=Path, required=True, help=f"folder of {name}")
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.output.mkdir(parents=True, exist_ok=True)
    for seed in args.seeds:
        for arm in args.arms:
            label = arm if args.discount == 1 else f"{arm}+gamma{args.discount:g}"
            name = f"{args.world}-{label}-{args.theta:g}-{args.max_steps}-{seed}.jsonl"
            file = args.output / name
            if file.exists() and '"step": null' in file.read_text(encoding="utf-8"):
                continue
            settings = {
                "process_weight": args.theta,
                "max_steps": args.max_steps,
                "step_discount": args.discount,
            }
            loop = loop_of(args.world, arm, settings)
            with file.open("w", encoding="utf-8") as lines:
                for row in train(loop, arm, seed, args.steps, args.learning_rate):
                    lines.write(json.dumps(row) + "\n")
                    lines.flush()
            print(name, json.dumps(row), flush=True)


if __name__ == "__main__":
    main()

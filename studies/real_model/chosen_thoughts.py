r"""Choose correct thoughts out of an evaluation's samples, one a problem.

    openrlhf-swap eval run --model MODEL --benchmarks problems.jsonl --samples 4 --temperature 1 \
        --output outputs/pool
    python -m studies.real_model.chosen_thoughts --model MODEL --evaluation outputs/pool \
        --output outputs/signals/thoughts.jsonl

A thought has at least `--least-steps` steps of about `--step-tokens` tokens and was not cut off.
The problems stand in a random order, so that the first n rows are a random sample, too.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random

from openrlhf_swap.command import Parser, run_command
from openrlhf_swap.config import SwapConfig
from openrlhf_swap.evaluation.samples import graded_benchmarks, key_of
from openrlhf_swap.files import Row, write_rows
from openrlhf_swap.flags.step_tokens import FEWEST_STEPS
from openrlhf_swap.rollouts.families import resolve_thought
from openrlhf_swap.rollouts.reader import StepReader

STEP_TOKENS = 30


def open_reader(model: str, step_tokens: int) -> StepReader:
    """What cuts the responses of a model into steps, as a training would."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    config, _ = resolve_thought(SwapConfig(step_tokens=step_tokens), tokenizer)
    return StepReader(tokenizer, config.end_of_thought, *config.segmentation)


def correct_thoughts(folder: Path, reader: StepReader, least_steps: int) -> dict[str, list[Row]]:
    """By problem, the correct samples with at least so many steps, in the order of their numbers.

    Raises DataError for a folder without graded samples.
    """
    found: dict[str, list[Row]] = defaultdict(list)
    for files in graded_benchmarks(folder):
        problems = files.problems()
        for sample, grade in sorted(files.graded(), key=lambda pair: key_of(pair[0])):
            if not grade["correct"] or sample["truncated"]:
                continue
            ends = reader.step_ends(reader.ids(sample["text"]))
            if len(ends) < least_steps:
                continue
            problem = problems[sample["id"]]
            row = {
                "id": sample["id"],
                "sample": sample["sample"],
                "problem": problem["problem"],
                "answer": problem["answer"],
                "response": sample["text"],
                "step_ends": ends,
            }
            found[sample["id"]].append(row)
    return found


def choose(thoughts: Mapping[str, Sequence[Row]], count: int, seed: int) -> list[Row]:
    """One random thought of each problem, of so many problems in a random order."""
    random = Random(seed)
    problems = sorted(thoughts)
    random.shuffle(problems)
    return [random.choice(thoughts[problem]) for problem in problems[:count]]


def main(argv: list[str]) -> None:
    parser = Parser("chosen_thoughts", __doc__)
    add = parser.add_argument
    add("--model", required=True, help="for its tokenizer: a hub id, or a folder")
    add("--evaluation", type=Path, required=True, help="what openrlhf-swap eval run wrote")
    add("--output", type=Path, required=True, help="JSONL to write")
    add("--count", type=int, default=72, help="thoughts (default: %(default)s)")
    add("--step-tokens", type=int, default=STEP_TOKENS, help="M (default: %(default)s)")
    add("--least-steps", type=int, default=FEWEST_STEPS, help="(default: %(default)s)")
    add("--seed", type=int, default=84, help="of the choice (default: %(default)s)")
    args = parser.parse_args(argv)
    reader = open_reader(args.model, args.step_tokens)
    thoughts = correct_thoughts(args.evaluation, reader, args.least_steps)
    chosen = choose(thoughts, args.count, args.seed)
    args.output.parent.mkdir(parents=True, exist_ok=True)
    write_rows(args.output, chosen)
    steps = sum(len(row["step_ends"]) for row in chosen)
    print(f"{len(chosen)} thoughts with {steps} steps, of {len(thoughts)} problems")


if __name__ == "__main__":
    sys.exit(run_command(main))

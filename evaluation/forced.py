r"""Accuracy when the model is forced to answer after a budget of tokens.

    python -m evaluation.forced outputs/eval/base --budgets 500 1000 2000 4000

Takes the samples of an evaluation. A response longer than the budget is cut there, its thought is closed, and the
model writes an answer; a shorter response counts as is. Writes `<benchmark>.forced.jsonl` (accuracy for each budget)
next to the samples.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from evaluation.samples import (
    asked,
    graded_benchmarks,
    graded_samples,
    no_samples,
    read_problems,
    read_settings,
    task_of,
)
from openrlhf_swap.command import Parser, run_command
from openrlhf_swap.config import AUTO, SwapConfig
from openrlhf_swap.files import Row, write_rows
from openrlhf_swap.rewards import Grader
from openrlhf_swap.rewards.verifiers import MATH
from openrlhf_swap.rollouts.families import resolve_thought
from openrlhf_swap.rollouts.tokenizer import prompt_ids


def main(argv: list[str]) -> None:
    """Write the accuracies of every benchmark; raises DataError for a folder without graded samples."""
    parser = Parser("evaluation.forced", __doc__)
    parser.add_argument("folder", type=Path, help="folder of an evaluation")
    parser.add_argument("--budgets", type=int, nargs="+", required=True, help="tokens after which a response is cut")
    parser.add_argument(
        "--close-template", default=AUTO, help="text that ends the thought; \\n is a newline (auto: the model's)"
    )
    parser.add_argument("--max-model-len", type=int, help="limit for prompt and response; the model's by default")
    args = parser.parse_args(argv)
    names = graded_benchmarks(args.folder)
    if not names:
        raise no_samples(f"{args.folder} holds no graded samples")
    from openrlhf_swap.integration.generation.engine import open_engine

    settings = read_settings(args.folder)
    llm = open_engine(settings["model"], max_model_len=args.max_model_len or None)
    close = args.close_template.replace("\\n", "\n")
    marks = SwapConfig(end_of_thought=settings["end_of_thought"], close_template=close)
    marks, messages = resolve_thought(marks, llm.get_tokenizer())
    print(messages[0])
    for name in names:
        accuracies = force(args.folder, name, args.budgets, llm, marks, settings["suffix"])
        rows = [{"budget": b, "accuracy": accuracy} for b, accuracy in zip(args.budgets, accuracies, strict=True)]
        write_rows(forced_path(args.folder, name), rows)
        for row in rows:
            print(f"{name}: {100 * row['accuracy']:.1f}% correct when forced to answer after {row['budget']} tokens")


def forced_path(folder: Path, benchmark: str) -> Path:
    """The file of the accuracies."""
    return folder / f"{benchmark}.forced.jsonl"


def force(
    folder: Path, benchmark: str, budgets: Sequence[int], llm: Any, marks: SwapConfig, suffix: str
) -> list[float]:
    """Accuracy of a benchmark's samples at each token budget; raises DataError if there is no graded sample.

    `llm` is a vLLM engine, `marks` holds the end of the thought and the text that opens the answer, and `suffix` is
    the text that followed each problem.
    """
    problems = read_problems(folder, benchmark)
    rows = list(graded_samples(folder, benchmark))
    if not rows:
        raise no_samples(f"{folder} holds no graded samples of {benchmark}")
    grader = Grader(verifier=next(iter(problems.values())).get("grader", MATH))
    accuracies = []
    for budget in budgets:
        cut = [(row, problems[row["id"]]) for row, _ in rows if row["tokens"] > budget]
        responses = _answers(llm, cut, budget, marks, suffix)
        tasks = [task_of(problem, response) for response, (_, problem) in zip(responses, cut, strict=True)]
        forced = [grade.correct for grade in grader.grade_many(tasks, marks.end_of_thought)]
        accuracies.append(fmean(forced + [grade["correct"] for row, grade in rows if row["tokens"] <= budget]))
    grader.close()
    return accuracies


def _answers(llm: Any, cut: Sequence[tuple[Row, Row]], budget: int, marks: SwapConfig, suffix: str) -> list[str]:
    """The responses of (sample, problem) pairs when the thought ends after `budget` tokens."""
    from vllm import SamplingParams

    if not cut:
        return []
    tokenizer = llm.get_tokenizer()
    close = marks.close_template
    close_ids = tokenizer(close, add_special_tokens=False)["input_ids"]
    prompts, starts = [], []
    for row, problem in cut:
        ids = tokenizer(row["text"], add_special_tokens=False)["input_ids"][:budget]
        text = tokenizer.decode(ids)
        # Once the thought has ended, only the answer is left to write.
        is_open = marks.end_of_thought not in text
        starts.append(text + close * is_open)
        ids = prompt_ids(tokenizer, asked(problem, suffix)) + ids + close_ids * is_open
        prompts.append({"prompt_token_ids": ids})
    outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=64, skip_special_tokens=False))
    return [start + output.outputs[0].text for start, output in zip(starts, outputs, strict=True)]


if __name__ == "__main__":
    sys.exit(run_command(main))

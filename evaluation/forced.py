r"""Accuracy when the model has to answer after so many tokens of thought.

    python -m evaluation.forced outputs/eval/base --budgets 500 1000 2000 4000

Takes the samples of an evaluation. A response that is longer than a budget is cut there, its thought is closed, and
the model writes an answer; a shorter one counts as it is. Writes `<benchmark>.forced.jsonl` (accuracy for each budget)
next to the samples.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from evaluation.generate import prompt_ids
from evaluation.samples import grades_path, key_of, problems_path, read_rows, samples_path
from openrlhf_swap.answers import END_OF_THOUGHT
from openrlhf_swap.config import R1_CLOSE
from openrlhf_swap.errors import DataError, SwapError
from openrlhf_swap.rewards import Grader


def forced_path(folder: Path, benchmark: str) -> Path:
    """Where the accuracies are."""
    return folder / f"{benchmark}.forced.jsonl"


def force(folder: Path, benchmark: str, budgets: Sequence[int], llm: Any, close: str, suffix: str) -> list[float]:
    """Accuracy of a benchmark's samples at each budget.

    Args:
        folder: of the evaluation.
        benchmark: its name in the files.
        budgets: tokens of a response before it is cut.
        llm: a vLLM engine of the model.
        close: text that ends the thought and opens the answer.
        suffix: text that followed each problem.
    """
    from vllm import SamplingParams

    tokenizer = llm.get_tokenizer()
    problems = {row["id"]: row for row in read_rows(problems_path(folder, benchmark))}
    correct = {key_of(row): row["correct"] for row in read_rows(grades_path(folder, benchmark))}
    rows = [row for row in read_rows(samples_path(folder, benchmark)) if key_of(row) in correct]
    if not rows:
        raise DataError(f"{folder} holds no graded samples of {benchmark}; make them with python -m evaluation.run")
    close_ids = tokenizer(close, add_special_tokens=False)["input_ids"]
    sampling = SamplingParams(temperature=0, max_tokens=64, skip_special_tokens=False)
    accuracies = []
    grader = Grader()
    for budget in budgets:
        cut = [row for row in rows if row["tokens"] > budget]
        prompts, starts = [], []
        for row in cut:
            ids = tokenizer(row["text"], add_special_tokens=False)["input_ids"][:budget]
            text = tokenizer.decode(ids)
            # Past the end of the thought only the answer is open.
            ending = [] if END_OF_THOUGHT in text else close_ids
            starts.append(text + (close if ending else ""))
            prompts.append(
                {"prompt_token_ids": prompt_ids(tokenizer, problems[row["id"]]["problem"] + suffix) + ids + ending}
            )
        outputs = llm.generate(prompts, sampling) if prompts else []
        pairs = [
            (start + output.outputs[0].text, problems[row["id"]]["answer"])
            for row, start, output in zip(cut, starts, outputs, strict=True)
        ]
        right = [grade.correct for grade in grader.grade_many(pairs)]
        right += [correct[key_of(row)] for row in rows if row["tokens"] <= budget]
        accuracies.append(fmean(right))
    grader.close()
    return accuracies


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status: 0, or 2 after a one-line error."""
    parser = argparse.ArgumentParser(
        prog="python -m evaluation.forced", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="of an evaluation")
    parser.add_argument("--budgets", type=int, nargs="+", required=True, help="tokens of a response before it is cut")
    parser.add_argument("--close-template", default=R1_CLOSE, help="text that ends the thought; \\n means a newline")
    parser.add_argument("--max-model-len", type=int, help="longest prompt and response; the model's by default")
    args = parser.parse_args(argv)
    from openrlhf_swap.generation import open_engine

    try:
        names = sorted(path.name.removesuffix(".grades.jsonl") for path in args.folder.glob("*.grades.jsonl"))
        if not names:
            raise DataError(f"{args.folder} holds no graded samples; make them with python -m evaluation.run")
        settings = json.loads((args.folder / "run.json").read_text(encoding="utf-8"))
        llm = open_engine(settings["model"], **({"max_model_len": args.max_model_len} if args.max_model_len else {}))
        close = args.close_template.replace("\\n", "\n")
        for name in names:
            accuracies = force(args.folder, name, args.budgets, llm, close, settings["suffix"])
            with open(forced_path(args.folder, name), "w", encoding="utf-8") as file:
                for budget, accuracy in zip(args.budgets, accuracies, strict=True):
                    file.write(json.dumps({"budget": budget, "accuracy": accuracy}) + "\n")
                    print(f"{name}: {100 * accuracy:.1f}% right when forced to answer after {budget} tokens")
    except SwapError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

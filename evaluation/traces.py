r"""Write an evaluation's responses as traces, the input of `python -m openrlhf_swap.score`.

    python -m evaluation.traces outputs/eval/base --output base.jsonl --samples 1
    python -m openrlhf_swap.score --model MODEL --input base.jsonl --output base.scored.jsonl

One line a response: benchmark, id, sample, problem, answer, response, correct, tokens.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from evaluation.samples import grades_path, key_of, problems_path, read_rows, samples_path


def traces(folder: Path, samples: int | None = None) -> Iterator[dict[str, Any]]:
    """The graded responses of an evaluation, with the problems as they were asked; at most `samples` a problem."""
    suffix = json.loads((folder / "run.json").read_text(encoding="utf-8"))["suffix"]
    for path in sorted(folder.glob("*.grades.jsonl")):
        name = path.name.removesuffix(".grades.jsonl")
        problems = {row["id"]: row for row in read_rows(problems_path(folder, name))}
        correct = {key_of(row): row["correct"] for row in read_rows(grades_path(folder, name))}
        for row in read_rows(samples_path(folder, name)):
            if key_of(row) in correct and (samples is None or row["sample"] < samples):
                yield {
                    "benchmark": name,
                    "id": row["id"],
                    "sample": row["sample"],
                    "problem": problems[row["id"]]["problem"] + suffix,
                    "answer": problems[row["id"]]["answer"],
                    "response": row["text"],
                    "correct": correct[key_of(row)],
                    "tokens": row["tokens"],
                }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m evaluation.traces", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="of an evaluation")
    parser.add_argument("--output", type=Path, required=True, help="JSONL to write")
    parser.add_argument("--samples", type=int, help="at most so many a problem; all by default")
    args = parser.parse_args(argv)
    count = 0
    with open(args.output, "w", encoding="utf-8") as file:
        for row in traces(args.folder, args.samples):
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            count += 1
    if count == 0:
        print(
            f"error: {args.folder} holds no graded samples; make them with python -m evaluation.run", file=sys.stderr
        )
        return 2
    print(f"{count} traces in {args.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

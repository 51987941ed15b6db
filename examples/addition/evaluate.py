r"""Evaluate policies on held-out problems: accuracy, tokens, and which lines they kept.

    python examples/addition/evaluate.py --model examples/addition/policy --problems outputs/data/test.jsonl \
        --output outputs/base.json
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from statistics import fmean, stdev

from task import count_lines

from openrlhf_swap.files import write_rows
from openrlhf_swap.rewards import Grader
from openrlhf_swap.rollouts.tokenizer import prompt_text

GROUP = 8  # responses of a problem that is shown, as in the training


def generate(
    model: str, questions: list[str], samples: list[int], temperature: float, max_tokens: int, opening: str = ""
) -> list[list[dict]]:
    """So many responses to each question with vLLM; the same seeds give the same responses of the same model.

    `opening` begins each thought; it is neither part of a response nor counted.
    """
    from openrlhf_swap.integration.engine import open_engine

    engine = open_engine(model, max_model_len=512)  # closed when nothing refers to it any more

    from vllm import SamplingParams

    parameters = [
        SamplingParams(temperature=temperature, max_tokens=max_tokens, seed=i, n=n, skip_special_tokens=False)
        for i, n in enumerate(samples)
    ]
    tokenizer = engine.get_tokenizer()
    prompts = [prompt_text(tokenizer, question) + opening for question in questions]
    outputs = engine.generate(prompts, parameters)
    return [[{"text": o.text, "tokens": len(o.token_ids)} for o in output.outputs] for output in outputs]


def grade(problems: list[dict], responses: list[list[dict]]) -> None:
    """Say of each response whether it is right, and how many lines of each kind it has."""
    grader = Grader()
    flat = [(r["text"], p["answer"]) for p, group in zip(problems, responses, strict=True) for r in group]
    grades = iter(grader.grade_many(flat))
    grader.close()
    for group in responses:
        for response in group:
            lines = count_lines(response["text"])
            response.update(correct=next(grades).correct, essential=lines.essential, redundant=lines.redundant)


def summarise(responses: list[list[dict]]) -> dict[str, float]:
    """Means over problems, with standard errors over problems for accuracy and tokens."""
    accuracy, tokens, essential, redundant = [], [], [], []
    for group in responses:
        accuracy.append(fmean(r["correct"] for r in group))
        tokens.append(fmean(r["tokens"] for r in group))
        essential.append(fmean(r["essential"] for r in group))
        redundant.append(fmean(r["redundant"] for r in group))
    root = math.sqrt(len(responses))
    return {
        "accuracy": fmean(accuracy),
        "accuracy_stderr": stdev(accuracy) / root,
        "tokens": fmean(tokens),
        "tokens_stderr": stdev(tokens) / root,
        "redundant": fmean(redundant),
        "essential": fmean(essential),
        "problems": len(responses),
        "samples": len(responses[0]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", required=True, help="folders of policies in Hugging Face format")
    parser.add_argument("--problems", type=Path, required=True, help="JSONL of `problem` and `answer`")
    parser.add_argument(
        "--output", type=Path, nargs="+", required=True, help="a JSON for each summary; responses go beside it"
    )
    parser.add_argument("--samples", type=int, default=1, help="responses a problem")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--suffix", default="", help="text after each problem, such as the budget that L1 needs")
    parser.add_argument("--opening", default="", help="text that begins each thought, such as AutoThink's ellipsis")
    parser.add_argument("--max-tokens", type=int, default=320)
    parser.add_argument(
        "--traces",
        type=int,
        default=0,
        help=f"so many first problems get {GROUP} responses, written as traces as well",
    )
    args = parser.parse_args()

    problems = [json.loads(line) for line in args.problems.read_text(encoding="utf-8").splitlines()]
    if len(problems) < 2:
        sys.exit(f"error: --problems {args.problems} has {len(problems)} problems; give at least 2")
    if len(args.model) != len(args.output):
        sys.exit(f"error: --output names {len(args.output)} files for {len(args.model)} policies; name one for each")
    questions = [problem["problem"] + args.suffix for problem in problems]
    # Of a seed the first responses are the same, however many are asked for.
    samples = [max(args.samples, GROUP * (i < args.traces)) for i in range(len(problems))]
    for model, output in zip(args.model, args.output, strict=True):
        responses = generate(model, questions, samples, args.temperature, args.max_tokens, args.opening)
        grade(problems, responses)
        counted = [group[: args.samples] for group in responses]
        summary = summarise(counted)
        write(output, summary, problems, counted)
        if args.traces:
            write_traces(output.with_suffix(".traces.jsonl"), problems, responses[: args.traces])
        print(json.dumps(summary))


def write(output: Path, summary: dict[str, float], problems: list[dict], responses: list[list[dict]]) -> None:
    """The summary, and the responses beside it."""
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    with open(output.with_suffix(".responses.jsonl"), "w", encoding="utf-8") as file:
        for problem, group in zip(problems, responses, strict=True):
            file.writelines(json.dumps({**problem, **response}) + "\n" for response in group)


def write_traces(path: Path, problems: list[dict], responses: list[list[dict]]) -> None:
    """All responses to the first problems, as `python -m openrlhf_swap.score` takes them."""
    rows = [
        {
            "problem": p["problem"],
            "answer": p["answer"],
            "response": r["text"],
            "correct": r["correct"],
            "tokens": r["tokens"],
        }
        for p, group in zip(problems, responses, strict=False)
        for r in group
    ]
    write_rows(path, rows)


if __name__ == "__main__":
    main()

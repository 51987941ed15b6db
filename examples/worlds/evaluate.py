r"""Evaluate policies on held-out problems: accuracy, tokens, and which lines they kept.

    python examples/worlds/evaluate.py --world decomposition \
        --model examples/worlds/policies/decomposition \
        --problems outputs/data/test.jsonl --output outputs/base.json
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev

from world import NAMES, World, counts, load

from openrlhf_swap.files import read_rows, to_line, write_rows, write_text
from openrlhf_swap.rewards import Grader
from openrlhf_swap.rollouts.families import prompt_text

GROUP = 8  # responses per problem shown, as in training


def generate(
    model: str,
    questions: list[str],
    samples: list[int],
    temperature: float,
    max_tokens: int,
    opening: str = "",
) -> list[list[dict]]:
    """`samples[i]` responses to question i with vLLM.

    The same model and seeds give the same responses. `opening` begins each thought; it is neither
    part of a response nor counted.
    """
    from openrlhf_swap.generate import close_engine, open_engine

    engine = open_engine(model, max_model_len=512)

    from vllm import SamplingParams

    parameters = [
        SamplingParams(
            temperature=temperature, max_tokens=max_tokens, seed=i, n=n, skip_special_tokens=False
        )
        for i, n in enumerate(samples)
    ]
    tokenizer = engine.get_tokenizer()
    prompts = [prompt_text(tokenizer, question) + opening for question in questions]
    outputs = engine.generate(prompts, parameters)
    close_engine(engine)
    return [
        [{"text": o.text, "tokens": len(o.token_ids)} for o in output.outputs] for output in outputs
    ]


def grade(world: World, problems: list[dict], responses: list[list[dict]]) -> None:
    """Add to each response whether it is correct, and how many lines of each kind it has."""
    grader = Grader()
    flat = [
        (r["text"], p["answer"])
        for p, group in zip(problems, responses, strict=True)
        for r in group
    ]
    grades = iter(grader.grade_many(flat))
    grader.close()
    for problem, group in zip(problems, responses, strict=True):
        for response in group:
            response.update(
                counts(world, problem["problem"], response["text"]), correct=next(grades).correct
            )


def summarise(responses: list[list[dict]], measures: Sequence[str]) -> dict[str, float]:
    """Means over problems, with standard errors over problems for accuracy and tokens."""
    means = {
        name: [fmean(response[name] for response in group) for group in responses]
        for name in ("correct", "tokens", *measures)
    }
    root = math.sqrt(len(responses))
    return {
        "accuracy": fmean(means["correct"]),
        "accuracy_stderr": stdev(means["correct"]) / root,
        "tokens": fmean(means["tokens"]),
        "tokens_stderr": stdev(means["tokens"]) / root,
        **{name: fmean(means[name]) for name in measures},
        "problems": len(responses),
        "samples": len(responses[0]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--world", choices=NAMES, default=NAMES[0])
    parser.add_argument(
        "--model", nargs="+", required=True, help="policy folders in Hugging Face format"
    )
    parser.add_argument(
        "--problems", type=Path, required=True, help="JSONL of `problem` and `answer`"
    )
    parser.add_argument(
        "--output",
        type=Path,
        nargs="+",
        required=True,
        help="a JSON for each summary; responses go beside it",
    )
    parser.add_argument("--samples", type=int, default=1, help="responses per problem")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument(
        "--suffix", default="", help="text after each problem, such as the budget that L1 needs"
    )
    parser.add_argument(
        "--opening", default="", help="text that begins each thought, such as AutoThink's ellipsis"
    )
    parser.add_argument("--max-tokens", type=int, default=320)
    parser.add_argument(
        "--traces",
        type=int,
        default=0,
        help=f"number of first problems that get {GROUP} responses, also written as traces",
    )
    args = parser.parse_args()

    world = load(args.world)
    problems = list(read_rows(args.problems))
    if len(problems) < 2:
        sys.exit(f"error: --problems {args.problems} has {len(problems)} problems; use at least 2")
    if len(args.model) != len(args.output):
        sys.exit(
            f"error: --output names {len(args.output)} files for {len(args.model)} policies; "
            "name one for each"
        )
    questions = [problem["problem"] + args.suffix for problem in problems]
    # A seed's first responses are the same, however many are requested.
    samples = [max(args.samples, GROUP * (i < args.traces)) for i in range(len(problems))]
    for model, output in zip(args.model, args.output, strict=True):
        responses = generate(
            model, questions, samples, args.temperature, args.max_tokens, args.opening
        )
        grade(world, problems, responses)
        counted = [group[: args.samples] for group in responses]
        summary = summarise(counted, world.MEASURES)
        write(output, summary, problems, counted)
        if args.traces:
            write_traces(output.with_suffix(".traces.jsonl"), problems, responses[: args.traces])
        print(json.dumps(summary))


def write(
    output: Path, summary: dict[str, float], problems: list[dict], responses: list[list[dict]]
) -> None:
    """Write the summary, and the responses beside it."""
    output.parent.mkdir(parents=True, exist_ok=True)
    write_text(output, to_line(summary, indent=2))
    rows = (
        {**problem, **one}
        for problem, group in zip(problems, responses, strict=True)
        for one in group
    )
    write_rows(output.with_suffix(".responses.jsonl"), rows)


def write_traces(path: Path, problems: list[dict], responses: list[list[dict]]) -> None:
    """Write all responses to the first problems in the input format of `openrlhf-swap score`."""
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

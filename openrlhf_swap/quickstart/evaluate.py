"""Evaluate policies on held-out problems: accuracy, tokens, and which lines they kept.

    python -m openrlhf_swap.quickstart.evaluate --model POLICY \
        --problems outputs/data/test.jsonl --output outputs/base.json

`--world` names another module than that of additions.
"""

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from openrlhf_swap.command import Parser, run_command
from openrlhf_swap.errors import ConfigError, DataError
from openrlhf_swap.files import Row, read_rows, to_line, write_rows, write_text
from openrlhf_swap.quickstart.world import ADDITION, World, counts, load_world
from openrlhf_swap.rewards import Grader
from openrlhf_swap.rollouts.families import prompt_text

COMMAND = "python -m openrlhf_swap.quickstart.evaluate"
GROUP = 8  # responses per problem shown, as in training


@dataclass(frozen=True)
class Sampling:
    """How responses are sampled.

    `opening` begins each thought; it is neither part of a response nor counted.
    """

    temperature: float
    max_tokens: int
    opening: str


def generate(
    model: str, questions: Sequence[str], samples: Sequence[int], sampling: Sampling
) -> list[list[Row]]:
    """`samples[i]` responses to question i with vLLM.

    The same model and seeds give the same responses.
    """
    from openrlhf_swap.generate import close_engine, open_engine

    engine = open_engine(model, max_model_len=512)

    from vllm import SamplingParams

    parameters = [
        SamplingParams(
            temperature=sampling.temperature,
            max_tokens=sampling.max_tokens,
            seed=seed,
            n=count,
            skip_special_tokens=False,
        )
        for seed, count in enumerate(samples)
    ]
    tokenizer = engine.get_tokenizer()
    prompts = [prompt_text(tokenizer, question) + sampling.opening for question in questions]
    answered = engine.generate(prompts, parameters)
    close_engine(engine)
    groups = []
    for request in answered:
        group = [{"text": each.text, "tokens": len(each.token_ids)} for each in request.outputs]
        groups.append(group)
    return groups


def grade(world: World, problems: Sequence[Row], responses: Sequence[Sequence[Row]]) -> None:
    """Add to each response whether it is correct, and how many lines of each kind it has."""
    pairs = []
    for problem, group in zip(problems, responses, strict=True):
        pairs += [(response["text"], problem["answer"]) for response in group]
    grader = Grader()
    grades = iter(grader.grade_many(pairs))
    grader.close()
    for problem, group in zip(problems, responses, strict=True):
        for response in group:
            response |= counts(world, problem["problem"], response["text"])
            response["correct"] = next(grades).correct


def summarise(responses: Sequence[Sequence[Row]], measures: Sequence[str]) -> dict[str, float]:
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


def write(
    output: Path,
    summary: dict[str, float],
    problems: Sequence[Row],
    responses: Sequence[Sequence[Row]],
) -> None:
    """Write the summary, and the responses beside it."""
    output.parent.mkdir(parents=True, exist_ok=True)
    write_text(output, to_line(summary, indent=2))
    rows = []
    for problem, group in zip(problems, responses, strict=True):
        rows += [{**problem, **response} for response in group]
    write_rows(output.with_suffix(".responses.jsonl"), rows)


def write_traces(path: Path, problems: Sequence[Row], responses: Sequence[Sequence[Row]]) -> None:
    """Write all responses to the first problems in the input format of `openrlhf-swap score`."""
    rows = []
    for problem, group in zip(problems, responses, strict=False):
        asked = {"problem": problem["problem"], "answer": problem["answer"]}
        for response in group:
            measured = {"correct": response["correct"], "tokens": response["tokens"]}
            rows.append({**asked, "response": response["text"], **measured})
    write_rows(path, rows)


def main(argv: list[str]) -> None:
    parser = Parser(COMMAND, __doc__)
    parser.add_argument("--world", default=ADDITION, help="module of the toy task")
    parser.add_argument(
        "--model", nargs="+", required=True, help="policy folders in Hugging Face format"
    )
    parser.add_argument(
        "--problems", type=Path, required=True, help="JSONL of `problem` and `answer`"
    )
    output_help = "a JSON for each summary; responses go beside it"
    parser.add_argument("--output", type=Path, nargs="+", required=True, help=output_help)
    parser.add_argument("--samples", type=int, default=1, help="responses per problem")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument(
        "--suffix", default="", help="text after each problem, such as the budget that L1 needs"
    )
    parser.add_argument(
        "--opening", default="", help="text that begins each thought, such as AutoThink's ellipsis"
    )
    parser.add_argument("--max-tokens", type=int, default=320)
    traces_help = f"number of first problems that get {GROUP} responses, also written as traces"
    parser.add_argument("--traces", type=int, default=0, help=traces_help)
    args = parser.parse_args(argv)

    world = load_world(args.world)
    problems = list(read_rows(args.problems))
    if len(problems) < 2:
        raise DataError(f"--problems {args.problems} has {len(problems)} problems; use at least 2")
    if len(args.model) != len(args.output):
        raise ConfigError(
            f"--output names {len(args.output)} files for {len(args.model)} policies; "
            "name one for each"
        )
    questions = [problem["problem"] + args.suffix for problem in problems]
    # A seed's first responses are the same, however many are requested.
    samples = [args.samples] * len(problems)
    samples[: args.traces] = [max(args.samples, GROUP)] * len(problems[: args.traces])
    sampling = Sampling(args.temperature, args.max_tokens, args.opening)
    for model, output in zip(args.model, args.output, strict=True):
        responses = generate(model, questions, samples, sampling)
        grade(world, problems, responses)
        counted = [group[: args.samples] for group in responses]
        summary = summarise(counted, world.MEASURES)
        write(output, summary, problems, counted)
        if args.traces:
            write_traces(output.with_suffix(".traces.jsonl"), problems, responses[: args.traces])
        print(json.dumps(summary))


if __name__ == "__main__":
    sys.exit(run_command(main))

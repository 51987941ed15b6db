r"""Evaluate a model on benchmarks.

    openrlhf-swap eval run --model MODEL --benchmarks math500 aime24 --output outputs/eval/base

Writes each sample as it finishes, then grades and prints a table. The same command resumes where it stopped.
`openrlhf-swap eval report` makes tables of any number of evaluations.
"""

import argparse
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import product
from pathlib import Path

from openrlhf_swap.command import Parser, check_writable, counted
from openrlhf_swap.config import AUTO, SwapConfig
from openrlhf_swap.data.benchmarks import BENCHMARKS, PAPER_BENCHMARKS, Problem
from openrlhf_swap.evaluation.generate import MARK, SampleRequest, read_tokenizer, sample
from openrlhf_swap.evaluation.grade import grade_file
from openrlhf_swap.evaluation.measures import measure_evaluation
from openrlhf_swap.evaluation.problems import Problems, load_problems, write_problems
from openrlhf_swap.evaluation.report import evaluation_table
from openrlhf_swap.evaluation.samples import (
    OF_TRAINING,
    asked,
    compare_settings,
    forced_path,
    grades_path,
    key_of,
    read_settings,
    samples_path,
    sort_file,
    write_settings,
)
from openrlhf_swap.files import drop_unfinished_line, read_rows
from openrlhf_swap.flags.configuration import add_rendering, parse_with_settings
from openrlhf_swap.recipes import CONFIG, expand_config
from openrlhf_swap.rewards import Grader
from openrlhf_swap.rewards.answers import SUFFIX
from openrlhf_swap.rollouts.families import resolve_thought
from openrlhf_swap.runs.console import quiet_console
from openrlhf_swap.runs.lock import locked
from openrlhf_swap.runs.model_code import check_model_files
from openrlhf_swap.runs.private_ray import private_ray
from openrlhf_swap.runs.provenance import made_of


def main(argv: list[str]) -> None:
    """Generate what is missing, grade it, print the table.

    Raises:
        ConfigError: for settings that are invalid, or differ from those in the folder.
        DataError: for a benchmark that cannot be used.
    """
    args = parse(expand_config(argv))
    check_model_files("--model", args.model, args.trust_remote_code)
    check_writable("--output", args.output)
    with locked({"--output": args.output}):
        problems = load_problems(args)
        args.end_of_thought = end_of_thought(args)
        origin = made_of("openrlhf-swap eval run", argv, weights=args.model)
        before = compare_settings(args, origin)
        args.output.mkdir(parents=True, exist_ok=True)
        for name, rows in problems.items():
            if args.grade_again:  # now, so that a start that is stopped leaves no grades by earlier answers
                grades_path(args.output, name).unlink(missing_ok=True)
            write_problems(args.output, name, rows, args.limit)
        write_settings(args, origin, before, list(problems))
        console = nullcontext() if args.verbose else quiet_console(args.output / "evaluate.log", MARK, "--verbose")
        with private_ray() if args.engines > 1 else nullcontext(), console:
            sample_and_grade(args, problems)
        print(evaluation_table({args.output.name: measure_evaluation(args.output)}, "terminal"))


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = Parser("openrlhf-swap eval run", __doc__)
    parser.add_argument("--model", required=True, help="hub id, or folder in Hugging Face format")
    parser.add_argument(
        "--benchmarks",
        nargs="+",
        default=list(PAPER_BENCHMARKS),
        help=f"some of {', '.join(BENCHMARKS)}, or JSONL files (docs/use/evaluation.md); the paper's five by default",
    )
    parser.add_argument("--output", type=Path, required=True, help="folder for this evaluation")
    parser.add_argument("--data", type=Path, help="folder with local copies of the benchmarks; the hub by default")
    parser.add_argument("--samples", type=int, default=16, help="responses per problem (default: 16)")
    parser.add_argument("--limit", type=int, help="use only the first LIMIT problems of each benchmark")
    parser.add_argument("--temperature", type=float, default=0.6)
    parser.add_argument("--top-p", type=float, default=0.95)
    parser.add_argument("--max-tokens", type=int, default=32768, help="maximum response length (default: 32768)")
    parser.add_argument("--seed", type=int, default=0, help="every sample's seed is derived from it")
    parser.add_argument(
        "--suffix",
        default=SUFFIX,
        help="text after each problem, as in training; '' for none (default: %(default)r)",
    )
    parser.add_argument(
        "--max-model-len",
        type=int,
        help="limit for prompt and response (default: longest prompt and --max-tokens, at most the model's context)",
    )
    parser.add_argument("--engines", type=int, default=1, help="vLLM engines that share the samples, placed by Ray")
    parser.add_argument("--tensor-parallel-size", type=int, default=1, help="GPUs per engine")
    parser.add_argument(CONFIG, metavar="FILE", help="YAML file of these flags, such as a run.yaml; flags here win")
    add_rendering(parser)
    parser.add_argument("--verbose", action="store_true", help="show library output here, not in evaluate.log")
    parser.add_argument("--grade-again", action="store_true", help="discard the grades and grade the samples again")
    return parse_with_settings(parser, OF_TRAINING, argv)


def end_of_thought(args: argparse.Namespace) -> str:
    """The text that closes a thought: as given, as used for the folder's samples, or from the model's chat template.

    Raises:
        ConfigError: for a tokenizer that cannot be read or does not know the text.
    """
    if args.end_of_thought == AUTO and (before := read_settings(args.output)):
        return str(before["end_of_thought"])
    tokenizer = read_tokenizer(args.model, args.trust_remote_code, vars(args))
    given = SwapConfig(end_of_thought=args.end_of_thought)
    marks, messages = resolve_thought(given, tokenizer)
    print(f"{MARK} {messages[0]}")
    return marks.end_of_thought


def sample_and_grade(args: argparse.Namespace, problems: Problems) -> None:
    """Generate the missing samples of the first --limit problems, then grade what has no grade."""
    first = {name: rows[: args.limit] for name, rows in problems.items()}
    missing = missing_samples(args.output, first, args.samples, args.suffix)
    total = sum(map(len, first.values())) * args.samples
    print(f"{MARK} {total - len(missing)} of {counted(total, 'sample')} already generated", flush=True)
    if missing:
        print(f"{MARK} starting vLLM with {args.model}", flush=True)
        sample(args, missing, total)
    for name, rows in problems.items():
        path = samples_path(args.output, name)
        if empty := sum(row["tokens"] == 0 for row in read_rows(path)):
            print(f"{MARK} {counted(empty, 'sample')} of {name} left empty: the problem does not fit the context")
        sort_file(path, {problem.id: number for number, problem in enumerate(rows)})
        discard_forced(args.output, name)
        grader = Grader(verifier=rows[0].grader)
        grade_file(args.output, name, rows, grader, args.end_of_thought)
        grader.close()


def missing_samples(
    folder: Path, problems: dict[str, list[Problem]], samples: int, suffix: str
) -> list[SampleRequest]:
    """The samples still to generate, benchmark by benchmark."""
    requests = []
    for name, rows in problems.items():
        drop_unfinished_line(samples_path(folder, name))
        done = {key_of(row) for row in read_rows(samples_path(folder, name))}
        requests += [
            SampleRequest(name, problem.id, number, asked(vars(problem), suffix))
            for problem, number in product(rows, range(samples))
            if (problem.id, number) not in done
        ]
    return requests


def discard_forced(folder: Path, name: str) -> None:
    """Remove a benchmark's accuracies at budgets of thought if samples are left to grade, which they do not count."""
    path = forced_path(folder, name)
    if not path.exists():
        return
    graded = {key_of(row) for row in read_rows(grades_path(folder, name))}
    if any(key_of(row) not in graded for row in read_rows(samples_path(folder, name))):
        path.unlink()
        print(f"{MARK} {path.name} removed: there are samples to grade; run openrlhf-swap eval forced again")

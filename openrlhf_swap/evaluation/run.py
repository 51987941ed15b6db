r"""Evaluate a model on benchmarks.

    openrlhf-swap eval run --model MODEL --benchmarks math500 aime24 --output outputs/eval/base

Writes each sample as it finishes, then grades and prints a table. The same command resumes where it
stopped. `openrlhf-swap eval report` makes tables of any number of evaluations.
"""

import argparse
import dataclasses
import json
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import islice, product
from math import inf
from pathlib import Path

from tqdm import tqdm

from openrlhf_swap.command import Parser, check_writable, counted
from openrlhf_swap.config import AUTO, SwapConfig
from openrlhf_swap.data.benchmarks import BENCHMARKS, PAPER_BENCHMARKS, Problem, load_benchmark
from openrlhf_swap.data.rows import TRIED, try_grader
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.evaluation import samples
from openrlhf_swap.evaluation.generate import MARK, SampleRequest, read_tokenizer, sample
from openrlhf_swap.evaluation.measures import measure_evaluation
from openrlhf_swap.evaluation.report import evaluation_table
from openrlhf_swap.files import Row, appending, drop_unfinished_line, read_rows, to_line, write_rows
from openrlhf_swap.flags.configuration import add_rendering, parse_with_settings
from openrlhf_swap.recipes import CONFIG, expand_config
from openrlhf_swap.rewards import Grade, Grader
from openrlhf_swap.rewards.answers import SUFFIX, strip_answer
from openrlhf_swap.rewards.statements import stated_answer, text_after_thought
from openrlhf_swap.rewards.verifiers import find_verifier
from openrlhf_swap.rollouts.families import resolve_thought
from openrlhf_swap.runs.model_code import check_model_files
from openrlhf_swap.runs.process import locked, private_ray, quiet_console
from openrlhf_swap.runs.provenance import made_of

AT_A_TIME = 512  # samples that are graded
Problems = dict[str, list[Problem]]


def main(argv: list[str]) -> None:
    """Generate what is missing, grade it, print the table."""
    args = parse(expand_config(argv))
    check_model_files("--model", args.model, args.trust_remote_code)
    check_writable("--output", args.output)
    with locked({"--output": args.output}):
        problems = load_problems(args)
        args.end_of_thought = end_of_thought(args)
        origin = made_of("openrlhf-swap eval run", argv, weights=args.model)
        before = samples.compare_settings(args, origin)
        args.output.mkdir(parents=True, exist_ok=True)
        for name, rows in problems.items():
            if (
                args.grade_again
            ):  # now, so that a start that is stopped leaves no grades by earlier answers
                samples.rows_path("grades", args.output, name).unlink(missing_ok=True)
            write_problems(args.output, name, rows, args.limit)
        samples.write_settings(args, origin, before, list(problems))
        console = (
            nullcontext()
            if args.verbose
            else quiet_console(args.output / "evaluate.log", MARK, "--verbose")
        )
        with private_ray() if args.engines > 1 else nullcontext(), console:
            sample_and_grade(args, problems)
        print(evaluation_table({args.output.name: measure_evaluation(args.output)}, "terminal"))


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = Parser("openrlhf-swap eval run", __doc__)
    parser.add_argument("--model", required=True, help="hub id, or folder in Hugging Face format")
    known = f"some of {', '.join(BENCHMARKS)}, or JSONL files (docs/use/evaluation.md); the paper's five by default"
    parser.add_argument("--benchmarks", nargs="+", default=list(PAPER_BENCHMARKS), help=known)
    parser.add_argument("--output", type=Path, required=True, help="folder for this evaluation")
    parser.add_argument(
        "--data", type=Path, help="folder with local copies of the benchmarks; the hub by default"
    )
    parser.add_argument(
        "--samples", type=int, default=16, help="responses per problem (default: 16)"
    )
    parser.add_argument(
        "--limit", type=int, help="use only the first LIMIT problems of each benchmark"
    )
    parser.add_argument("--temperature", type=float, default=0.6)
    parser.add_argument("--top-p", type=float, default=0.95)
    parser.add_argument(
        "--max-tokens", type=int, default=32768, help="maximum response length (default: 32768)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="every sample's seed is derived from it"
    )
    parser.add_argument(
        "--suffix", default=SUFFIX, help="text after each problem, as in training (%(default)r)"
    )
    parser.add_argument(
        "--max-model-len", type=int, help="limit for prompt and response (default: the longest one)"
    )
    parser.add_argument(
        "--engines", type=int, default=1, help="vLLM engines that share the samples, placed by Ray"
    )
    parser.add_argument("--tensor-parallel-size", type=int, default=1, help="GPUs per engine")
    parser.add_argument(
        CONFIG, metavar="FILE", help="YAML file of these flags, such as a run.yaml; flags here win"
    )
    add_rendering(parser)
    parser.add_argument(
        "--verbose", action="store_true", help="show library output here, not in evaluate.log"
    )
    parser.add_argument(
        "--grade-again", action="store_true", help="discard the grades and grade the samples again"
    )
    return parse_with_settings(parser, samples.OF_TRAINING, argv)


def end_of_thought(args: argparse.Namespace) -> str:
    """The text that closes a thought: as given, as used for the folder's samples, or from the
    model's chat template.

    Raises ConfigError for a tokenizer that cannot be read or does not know the text.
    """
    if args.end_of_thought == AUTO and (before := samples.read_settings(args.output)):
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
    print(
        f"{MARK} {total - len(missing)} of {counted(total, 'sample')} already generated", flush=True
    )
    if missing:
        print(f"{MARK} starting vLLM with {args.model}", flush=True)
        sample(args, missing, total)
    for name, rows in problems.items():
        path = samples.rows_path("samples", args.output, name)
        if empty := sum(row["tokens"] == 0 for row in read_rows(path)):
            print(
                f"{MARK} {counted(empty, 'sample')} of {name} left empty: the problem does not fit the context"
            )
        samples.sort_file(path, {problem.id: number for number, problem in enumerate(rows)})
        discard_forced(args.output, name)
        grader = Grader(verifier=rows[0].grader)
        grade_file(args.output, name, rows, grader, args.end_of_thought)
        grader.close()


def missing_samples(
    folder: Path, problems: Problems, count: int, suffix: str
) -> list[SampleRequest]:
    """The samples still to generate, benchmark by benchmark; `count` to each problem."""
    requests = []
    for name, rows in problems.items():
        drop_unfinished_line(samples.rows_path("samples", folder, name))
        done = {
            samples.key_of(row) for row in read_rows(samples.rows_path("samples", folder, name))
        }
        requests += [
            SampleRequest(name, problem.id, number, samples.asked(vars(problem), suffix))
            for problem, number in product(rows, range(count))
            if (problem.id, number) not in done
        ]
    return requests


def discard_forced(folder: Path, name: str) -> None:
    """Remove a benchmark's accuracies at budgets of thought if samples are left to grade, which
    they do not count.
    """
    path = samples.rows_path("forced", folder, name)
    if not path.exists():
        return
    graded = {samples.key_of(row) for row in read_rows(samples.rows_path("grades", folder, name))}
    if any(
        samples.key_of(row) not in graded
        for row in read_rows(samples.rows_path("samples", folder, name))
    ):
        path.unlink()
        print(
            f"{MARK} {path.name} removed: there are samples to grade; run openrlhf-swap eval forced again"
        )


def load_problems(args: argparse.Namespace) -> Problems:
    """All problems of each benchmark, whatever --limit is, keyed by the name used in its files.

    Raises ConfigError for a number out of range, an unknown benchmark, two benchmarks with the same
    name, or problems that differ from those of the folder's samples, and DataError for a benchmark
    that cannot be used.
    """
    check_numbers(args)
    if len({Path(name).stem for name in args.benchmarks}) != len(args.benchmarks):
        raise ConfigError(
            f"--benchmarks is {' '.join(args.benchmarks)}; their files need different names"
        )
    find_verifier(args.grader)
    problems = {
        Path(name).stem: load_benchmark(name, args.data, args.grader) for name in args.benchmarks
    }
    for name, rows in problems.items():
        check_unchanged(args, name, rows)
        try_grader(rows[0].grader, [row.reference for row in rows[:TRIED]])
    return problems


def check_numbers(args: argparse.Namespace) -> None:
    """Raise ConfigError for a number out of range, which vLLM would find after minutes, or nobody."""
    counts = {
        name: 1 for name in ("samples", "limit", "max_tokens", "engines", "tensor_parallel_size")
    }
    for name, least in {**counts, "temperature": 0, "top_p": 0}.items():
        value = getattr(args, name)
        if value is not None and not least <= value < inf:
            raise ConfigError(f"{samples.flag_of(name)} is {value}; use at least {least}")
    if not 0 < args.top_p <= 1:
        raise ConfigError(f"--top-p is {args.top_p}; use more than 0 and at most 1")


def check_unchanged(args: argparse.Namespace, name: str, problems: Sequence[Problem]) -> None:
    """Raise ConfigError if a benchmark's samples answer other problems, or were graded otherwise.

    Problems without samples may change, and any number of them may come or go.
    """
    sampled = samples.sampled_ids(args.output, name)
    if unknown := sampled - {problem.id for problem in problems}:
        source = f" in {args.data}" if args.data else ""
        raise ConfigError(
            f"--benchmarks has {name}, which{source} has no problem {min(unknown)!r}, but {args.output} holds samples "
            "of it; use another --output"
        )
    graded = (
        set()
        if args.grade_again
        else {row["id"] for row in read_rows(samples.rows_path("grades", args.output, name))}
    )
    earlier = samples.read_problems(args.output, name)
    for problem in problems:
        if problem.id not in sampled or problem.id not in earlier:
            continue
        now, before = json.loads(to_line(dataclasses.asdict(problem))), earlier[problem.id]
        changed = {
            field for field, value in now.items() if before.get(field, value) != value
        }  # old files lack some
        about = f"--benchmarks has {name}, whose problem {problem.id!r} has another"
        if changed & {"problem", "instructed"}:
            raise ConfigError(
                f"{about} text than its samples in {args.output} answer; use another --output"
            )
        if problem.id in graded and (of_grades := changed & {"answer", "grader", "metadata"}):
            raise ConfigError(
                f"{about} {min(of_grades)} than {args.output} was graded by; add --grade-again"
            )


def write_problems(folder: Path, name: str, problems: Sequence[Problem], limit: int | None) -> None:
    """Write the first `limit` problems, and those that have samples from a start with a higher
    limit.
    """
    sampled = samples.sampled_ids(folder, name)
    kept = [
        *problems[:limit],
        *(problem for problem in problems[len(problems[:limit]) :] if problem.id in sampled),
    ]
    write_rows(samples.rows_path("problems", folder, name), map(dataclasses.asdict, kept))


def grade_file(
    folder: Path, benchmark: str, problems: Sequence[Problem], grader: Grader, end_of_thought: str
) -> None:
    """Grade the samples of a benchmark that have no grade yet.

    Grades the text after the first `end_of_thought`, or the whole response if there is none.
    """
    by_id = {problem.id: problem for problem in problems}
    path = samples.rows_path("grades", folder, benchmark)
    done = {samples.key_of(row) for row in read_rows(path)}
    rows = read_rows(samples.rows_path("samples", folder, benchmark))
    left = (row for row in rows if samples.key_of(row) not in done and row["id"] in by_id)
    with (
        appending(path) as append,
        tqdm(desc=f"[evaluation] grading {benchmark}", unit="sample", leave=False) as bar,
    ):
        while part := list(islice(left, AT_A_TIME)):
            grades = grader.grade_many(
                [(row["text"], by_id[row["id"]].reference) for row in part], end_of_thought
            )
            for row, grade in zip(part, grades, strict=True):
                append(_line(row, grade, end_of_thought))
            bar.update(len(part))


def _line(row: Row, grade: Grade, end_of_thought: str) -> Row:
    """A grade, with the stated answer, which the majority vote counts, and a verifier's own score
    and reason.
    """
    text = stated_answer(text_after_thought(row["text"], end_of_thought))
    stated = None if text is None else strip_answer(text)
    line = {
        "id": row["id"],
        "sample": row["sample"],
        "correct": grade.correct,
        "status": grade.status,
    }
    line |= {"answer": stated if grade.stated is None else grade.stated}
    line |= {"score": grade.score} if grade.score != float(grade.correct) else {}
    return line | ({"why": grade.why} if grade.why else {})

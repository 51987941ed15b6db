r"""Evaluate a model on benchmarks.

    openrlhf-swap eval run --model MODEL --benchmarks math500 aime24 --output outputs/eval/base

Writes each sample as it finishes, then grades and prints a table. The same command resumes where it
stopped. `openrlhf-swap eval report` makes tables of any number of evaluations.
"""

from __future__ import annotations

import dataclasses
import json
from argparse import Namespace
from collections.abc import Sequence
from contextlib import ExitStack, closing
from itertools import islice
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm import tqdm

from openrlhf_swap.command import Parser, check_writable, counted
from openrlhf_swap.config import AUTO, SwapConfig
from openrlhf_swap.data.benchmarks import BENCHMARKS, PAPER_BENCHMARKS, Problem, load_benchmark
from openrlhf_swap.data.references import TRIED_ANSWERS, try_grader
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.evaluation import samples
from openrlhf_swap.evaluation.generate import LOG, MARK, SampleRequest, read_tokenizer, sample
from openrlhf_swap.evaluation.measures import measure_evaluation
from openrlhf_swap.evaluation.report import evaluation_table
from openrlhf_swap.evaluation.samples import SampleFiles, key_of, text_of
from openrlhf_swap.files import Row, appending, drop_unfinished_line, to_line, write_rows
from openrlhf_swap.flags.configuration import add_rendering, parse_with_settings
from openrlhf_swap.generate import add_gpu_share
from openrlhf_swap.process.console import quiet_console
from openrlhf_swap.process.locks import locked
from openrlhf_swap.process.private_ray import private_ray
from openrlhf_swap.recipes import CONFIG, expand_config
from openrlhf_swap.rewards import Grade, Grader
from openrlhf_swap.rewards.answers import SUFFIX
from openrlhf_swap.rewards.verifiers import find_verifier
from openrlhf_swap.rollouts.families import prompt_ids, resolve_thought
from openrlhf_swap.runs.model_code import check_model_files
from openrlhf_swap.runs.provenance import grader_identity, made_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

GRADED_AT_A_TIME = 512  # samples that are graded
# A number's flag -> the least that it may be.
LEAST = {
    "samples": 1,
    "limit": 1,
    "max_tokens": 1,
    "engines": 1,
    "tensor_parallel_size": 1,
    "temperature": 0,
    "top_p": 0,
}
Problems = dict[str, list[Problem]]


def main(argv: list[str]) -> None:
    """Generate what is missing, grade it, print the table."""
    args = parse_flags(expand_config(argv))
    check_model_files("--model", args.model, args.trust_remote_code)
    check_writable("--output", args.output)
    with locked({"--output": args.output}):
        chosen = evaluations(args)
        problems = [prepare(one, argv) for one in chosen]
        with ExitStack() as stack:
            if args.engines > 1:
                stack.enter_context(private_ray())
            if not args.verbose:
                log = args.output / LOG
                stack.enter_context(quiet_console(log, MARK, "--verbose"))
            for one, of_one in zip(chosen, problems, strict=True):
                sample_and_grade(one, of_one)
        measured = {one.output.name: measure_evaluation(one.output) for one in chosen}
        print(evaluation_table(measured, "terminal"))


def evaluations(args: Namespace) -> list[Namespace]:
    """The flags of each evaluation: one for each budget of the thought, in a folder of its own."""
    if args.thought_budgets is None:
        return [args]
    found = []
    for budget in args.thought_budgets:
        folder = args.output / f"budget_{budget}"
        found.append(Namespace(**{**vars(args), "output": folder, "thought_budget": budget}))
    return found


def prepare(args: Namespace, argv: list[str]) -> Problems:
    """Settle an evaluation, and write its problems and settings; `argv` are the command's words."""
    problems = load_problems(args)
    marks = thought_marks(args)
    args.end_of_thought = marks.end_of_thought
    args.close_template = marks.close_template
    origin = made_of("openrlhf-swap eval run", argv, weights=args.model)
    samples.compare_settings(args, origin)
    args.output.mkdir(parents=True, exist_ok=True)
    graders = {name: grader_identity(rows[0].grader) for name, rows in problems.items()}
    for line in samples.set_aside_other_grades(args.output, graders):
        print(f"{MARK} {line}")
    for name, rows in problems.items():
        write_problems(SampleFiles(args.output, name), rows, args.limit)
    samples.write_settings(args, origin, graders)
    return problems


def parse_flags(argv: Sequence[str]) -> Namespace:
    """Parse the command line."""
    parser = Parser("openrlhf-swap eval run", __doc__)
    add = parser.add_argument
    add("--model", required=True, help="hub id, or folder in Hugging Face format")
    known = f"some of {', '.join(BENCHMARKS)}, or JSONL files of problem and answer"
    text = f"{known}; the paper's five by default"
    add("--benchmarks", nargs="+", default=list(PAPER_BENCHMARKS), help=text)
    add("--output", type=Path, required=True, help="folder for this evaluation")
    text = "folder with local copies of the benchmarks; the hub by default"
    add("--data", type=Path, help=text)
    add("--limit", type=int, help="use only the first LIMIT problems of each benchmark")
    add("--samples", type=int, default=16, help="responses per problem (default: %(default)s)")
    text = "of the samples (default: %(default)s)"
    add("--temperature", type=float, default=0.6, help=text)
    text = "probability of the tokens that a sample chooses from (default: %(default)s)"
    add("--top-p", type=float, default=0.95, help=text)
    text = "maximum response length (default: %(default)s)"
    add("--max-tokens", type=int, default=32768, help=text)
    text = "an evaluation for each budget: the most tokens of a thought, which is then closed"
    add("--thought-budgets", type=int, nargs="+", metavar="TOKENS", help=text)
    parser.set_defaults(thought_budget=None)  # that of one evaluation
    text = (
        "every sample's seed is derived from it; none: the samples have no seeds of their own, so "
        "that vLLM draws a batch together, and another run draws others (default: %(default)s)"
    )
    add("--seed", type=seed_or_none, default=0, metavar="SEED", help=text)
    text = "text after each problem, as in training (default: %(default)r)"
    add("--suffix", default=SUFFIX, help=text)
    text = "limit for prompt and response (default: the longest one)"
    add("--max-model-len", type=int, help=text)
    add_rendering(parser)
    text = "vLLM engines that share the samples, placed by Ray"
    add("--engines", type=int, default=1, help=text)
    add("--tensor-parallel-size", type=int, default=1, help="GPUs per engine")
    add_gpu_share(parser)
    text = "YAML file of these flags, such as a run.yaml; flags here win"
    add(CONFIG, metavar="FILE", help=text)
    text = "show library output here, not in evaluate.log"
    add("--verbose", action="store_true", help=text)
    return parse_with_settings(parser, samples.OF_TRAINING, argv)


def seed_or_none(text: str) -> int | None:
    """The value of `--seed`: a whole number, or `none`. Raises ValueError for anything else."""
    return None if text == "none" else int(text)


def thought_marks(args: Namespace) -> SwapConfig:
    """The marks of a thought.

    What closes it is the given text, or the text that the folder's samples were read by, or the
    text of the model's chat template. Raises ConfigError for a tokenizer that cannot be read or
    does not know the text, and for a budget of the thought that cannot work with the model.
    """
    before = samples.read_settings(args.output)
    end = args.end_of_thought
    if before and end == AUTO:
        end = str(before["end_of_thought"])
        if args.thought_budget is None:
            return SwapConfig(end_of_thought=end)
    tokenizer = read_tokenizer(args.model, args.trust_remote_code, vars(args))
    marks, messages = resolve_thought(SwapConfig(end_of_thought=end), tokenizer)
    if not before:
        print(f"{MARK} {messages[0]}")
    if args.thought_budget is not None:
        check_budget(args, marks, tokenizer)
    return marks


def check_budget(args: Namespace, marks: SwapConfig, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise ConfigError for a budget of the thought that cannot work with the model."""
    # They import torch, which an evaluation without a budget does not need here.
    from openrlhf_swap.integration.budget import ThoughtBudget
    from openrlhf_swap.rollouts.reader import ResponseReader

    flag = f"--thought-budgets has {args.thought_budget}"
    prompt = prompt_ids(tokenizer, "?")
    reader = ResponseReader(tokenizer, marks.end_of_thought)
    budget = ThoughtBudget(args.thought_budget, marks.close_template, reader)
    if args.max_tokens < budget.least_limit:
        raise ConfigError(
            f"{flag}, but --max-tokens {args.max_tokens} leaves no room for an answer behind it: "
            f"use at least {budget.least_limit}, or a smaller budget"
        )
    if budget.first_limit(prompt, args.max_tokens) == args.max_tokens:
        raise ConfigError(
            f"{flag}, but the chat template closes the thought: leave it out, or let the model "
            "think by an argument of its template"
        )


def load_problems(args: Namespace) -> Problems:
    """All problems of each benchmark, whatever --limit is, keyed by the name used in its files.

    Raises ConfigError for a number out of range, an unknown benchmark, two benchmarks with the same
    name, or problems that differ from those of the folder's samples, and DataError for a benchmark
    that cannot be used.
    """
    check_numbers(args)
    problems = {}
    for benchmark in args.benchmarks:
        name = Path(benchmark).stem
        if name in problems:
            listed = " ".join(args.benchmarks)
            raise ConfigError(f"--benchmarks is {listed}; their files need different names")
        find_verifier(args.grader)
        problems[name] = load_benchmark(benchmark, args.data, args.grader)
    for name, rows in problems.items():
        check_unchanged(args, name, rows)
        try_grader(rows[0].grader, [row.reference for row in rows[:TRIED_ANSWERS]])
    return problems


def check_numbers(args: Namespace) -> None:
    """Raise ConfigError for a number out of range: vLLM would find it after minutes, or never."""
    for name, least in LEAST.items():
        value = getattr(args, name)
        if value is not None and not least <= value < inf:
            raise ConfigError(f"{samples.flag_of(name)} is {value}; use at least {least}")
    for budget in args.thought_budgets or ():
        if budget < 1:
            raise ConfigError(f"--thought-budgets has {budget}; use at least 1")
    if not 0 < args.top_p <= 1:
        raise ConfigError(f"--top-p is {args.top_p}; use more than 0 and at most 1")


def check_unchanged(args: Namespace, name: str, problems: Sequence[Problem]) -> None:
    """Raise ConfigError if a benchmark's samples answer other problems, or were graded otherwise.

    Problems without samples may change, and any number of them may come or go.
    """
    files = SampleFiles(args.output, name)
    sampled = files.sampled_ids()
    unknown = sampled - {problem.id for problem in problems}
    if unknown:
        source = f" in {args.data}" if args.data else ""
        raise ConfigError(
            f"--benchmarks has {name}, which{source} has no problem {min(unknown)!r}, but "
            f"{args.output} holds samples of it; use another --output"
        )
    graded = {row["id"] for row in files.rows("grades")}
    earlier = files.problems()
    for problem in problems:
        if problem.id not in sampled:
            continue
        changed = changed_fields(problem, earlier.get(problem.id, {}))
        about = f"--benchmarks has {name}, whose problem {problem.id!r} has another"
        if "problem" in changed:
            raise ConfigError(
                f"{about} text than its samples in {args.output} answer; use another --output"
            )
        regraded = changed & {"answer", "grader", "metadata"}
        if regraded and problem.id in graded:
            raise ConfigError(
                f"{about} {min(regraded)} than it was graded by; delete {files.path('grades')} to "
                "grade the samples again"
            )


def changed_fields(problem: Problem, earlier: Row) -> set[str]:
    """The fields in which a problem differs from its earlier row; older rows lack some."""
    now = json.loads(to_line(dataclasses.asdict(problem)))
    return {field for field, value in earlier.items() if now.get(field, value) != value}


def write_problems(files: SampleFiles, problems: Sequence[Problem], limit: int | None) -> None:
    """Write the first `limit` problems, and those that have samples from an earlier start."""
    sampled = files.sampled_ids()
    first = {problem.id for problem in problems[:limit]}
    kept = [problem for problem in problems if problem.id in first | sampled]
    write_rows(files.path("problems"), map(dataclasses.asdict, kept))


def sample_and_grade(args: Namespace, problems: Problems) -> None:
    """Generate the missing samples of the first --limit problems, then grade what has no grade."""
    first = {name: rows[: args.limit] for name, rows in problems.items()}
    missing = missing_samples(args.output, first, args.samples, args.suffix)
    total = sum(map(len, first.values())) * args.samples
    done = total - len(missing)
    print(f"{MARK} {done} of {counted(total, 'sample')} already generated", flush=True)
    if missing:
        print(f"{MARK} starting vLLM with {args.model}", flush=True)
        sample(args, missing, total)
    for name, rows in problems.items():
        files = SampleFiles(args.output, name)
        empty = sum(row["tokens"] == 0 for row in files.rows("samples"))
        if empty:
            reason = "the problem does not fit the context"
            print(f"{MARK} {counted(empty, 'sample')} of {name} left empty: {reason}")
        order = {problem.id: number for number, problem in enumerate(rows)}
        samples.sort_file(files.path("samples"), order)
        with closing(Grader(verifier=rows[0].grader)) as grader:
            grade_file(files, rows, grader, args.end_of_thought)


def missing_samples(
    folder: Path,
    problems: Problems,
    count: int,
    suffix: str,
) -> list[SampleRequest]:
    """The samples still to generate, benchmark by benchmark; `count` to each problem."""
    requests = []
    for name, rows in problems.items():
        files = SampleFiles(folder, name)
        drop_unfinished_line(files.path("samples"))
        done = files.keys("samples")
        for problem in rows:
            text = samples.asked(vars(problem), suffix)
            for number in range(count):
                if (problem.id, number) not in done:
                    requests.append(SampleRequest(name, problem.id, number, text))
    return requests


def grade_file(
    files: SampleFiles,
    problems: Sequence[Problem],
    grader: Grader,
    end_of_thought: str,
) -> None:
    """Grade the samples of a benchmark that have no grade yet.

    Grades the text after the first `end_of_thought`, or the whole response if there is none.
    """
    by_id = {problem.id: problem for problem in problems}
    ungraded = files.keys("samples") - files.keys("grades")
    samples = files.rows("samples")
    left = (row for row in samples if key_of(row) in ungraded and row["id"] in by_id)
    description = f"{MARK} grading {files.benchmark}"
    with (
        appending(files.path("grades")) as append,
        tqdm(desc=description, unit="sample", leave=False) as bar,
    ):
        while part := list(islice(left, GRADED_AT_A_TIME)):
            pairs = []
            for row in part:
                reference = by_id[row["id"]].reference
                pairs.append((text_of(row, end_of_thought), reference))
            grades = grader.grade_many(pairs, end_of_thought)
            for row, grade in zip(part, grades, strict=True):
                append(_graded(row, grade))
            bar.update(len(part))


def _graded(row: Row, grade: Grade) -> Row:
    """The line of a grade.

    It has the stated answer, which the majority vote counts, and a verifier's own score and reason.
    """
    line = {
        "id": row["id"],
        "sample": row["sample"],
        "correct": grade.correct,
        "status": grade.status,
        "answer": grade.stated,
    }
    if grade.score != float(grade.correct):
        line["score"] = grade.score
    if grade.why:
        line["why"] = grade.why
    return line

r"""Turn a data set of maths problems into the prompt set of a training.

    openrlhf-swap prepare --output prompts.jsonl
    openrlhf-swap train --data.prompt_dataset prompts.jsonl --data.input_key problem \
        --data.label_key answer

A problem is a text, or a chat that ends with the user's turn. A key may be a nested field, as in
verl's files:

    openrlhf-swap prepare --input train.parquet --problem-key prompt \
        --answer-key reward_model.ground_truth --output prompts.jsonl

From a worked solution the answer is taken: what follows `####`, or stands in the last box. Rows are
dropped if the problem is empty or states its answer, or if the answer is empty, a sentence, a
picture, a long text, or one that the grader cannot parse; so are duplicates, and exact or near
copies of problems of the five benchmarks. The rest is written in input order as JSONL of problem,
answer and, if there is one, id; the suffix is appended to each problem, so that training asks as
evaluation/eval_benchmarks.sh does. OUTPUT.removed.jsonl lists every dropped row with the reason
and, if there is one, the benchmark problem that it repeats. OUTPUT.source.json records what was
read, with the commit of a hub data set: it may change, and --revision COMMIT reads the same rows
again.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from openrlhf_swap.command import Parser, check_writable, flags_called, run_command
from openrlhf_swap.data.benchmarks import PAPER_BENCHMARKS, load_benchmark, title_of
from openrlhf_swap.data.chats import problem_text, read_chat
from openrlhf_swap.data.clean import SPECIAL, Reason, find_reasons
from openrlhf_swap.data.contamination import BenchmarkIndex
from openrlhf_swap.data.files import DATA_FILES
from openrlhf_swap.data.references import example_answers, read_references
from openrlhf_swap.data.tables import read_table, revision_of, source_rows
from openrlhf_swap.errors import ConfigError, DataError, reader_errors
from openrlhf_swap.files import Row, write_rows
from openrlhf_swap.flags.configuration import parse_with_settings
from openrlhf_swap.rewards.answers import SUFFIX
from openrlhf_swap.rewards.references import Reference
from openrlhf_swap.rewards.verifiers import find_verifier

DATASET = "agentica-org/DeepScaleR-Preview-Dataset"


@dataclass
class Candidate:
    """A row of the data set.

    Attributes:
        row: as it is read.
        chat: its problem as messages, of which the last is the user's; empty for a faulty problem.
        reference: its reference answer.
        reason: why it is dropped; None if it is kept.
    """

    row: Row
    chat: list[Row]
    reference: Reference
    reason: Reason | None = None

    @property
    def problem(self) -> str:
        """The problem as text."""
        return problem_text(self.chat)


def main(argv: list[str]) -> None:
    args = parse_with_settings(_parser(), ("grader",), argv)
    _check(args)
    table = read_table(args.input, args.split, args.revision, args.config)
    rows = source_rows(table, args.input, args.problem_key, args.answer_key, args.grader)
    candidates = _read_candidates(rows, args)
    kept = [each for each in candidates if each.reason is None]
    reasons = [each.reason for each in candidates if each.reason]
    if not kept:
        counts = Counter(reason["reason"] for reason in reasons)
        faults = ", ".join(f"{count} with {reason}" for reason, count in counts.items())
        raise DataError(
            f"--input is {args.input}, of which no row can be used: {faults or 'it is empty'}"
        )
    revision = revision_of(table)
    _write(args, candidates, kept, revision)
    print(f"{len(rows):6} rows read from {args.input}")
    print(*_summary_of_dropped(reasons, args.no_benchmarks), sep="\n")
    dropped = removed_path(args.output)
    print(f"{len(kept):6} rows written to {args.output}; dropped rows: {dropped}")
    _advise(args, kept, revision)


def _advise(args: argparse.Namespace, kept: Sequence[Candidate], revision: str | None) -> None:
    """Print what to know before a training: templates, the data set's revision, and answers."""
    rendered = sum(bool(SPECIAL.search(each.problem)) for each in kept)
    if rendered:
        print(
            f"{rendered} prompts have special tokens of a chat template in their text: train "
            "without --data.apply_chat_template, or give the user's turns alone"
        )
    if revision and revision != args.revision:
        print(f"The data set may change; --revision {revision} reads these rows again.")
    if find_verifier(args.grader).answer_is_text:
        print("Answers as they are graded and scored, for example:")
        for line in example_answers((each.row["answer"], each.reference.answer) for each in kept):
            print(f"  {line}")


def _parser() -> Parser:
    parser = Parser("openrlhf-swap prepare", __doc__)
    add = parser.add_argument
    endings = ", ".join(DATA_FILES)
    text = f"hub data set, or a file that ends in {endings} (default: %(default)s)"
    add("--input", default=DATASET, help=text)
    add("--output", type=Path, required=True, help="JSONL to write")
    text = "configuration of a hub data set that has several, such as main of openai/gsm8k"
    add("--config", help=text)
    add("--split", default="train", help="split of a hub data set (default: %(default)s)")
    add("--revision", help="commit, tag or branch of a hub data set; the newest by default")
    keys = "column of the %s, or a field in it as COLUMN.NAME (default: %%(default)s)"
    add("--problem-key", default="problem", help=keys % "problems, texts or chats")
    add("--answer-key", default="answer", help=keys % "answers")
    compared = parser.add_mutually_exclusive_group()
    text = "folder with local copies of the five; default: the hub"
    compared.add_argument("--benchmarks", type=Path, help=text)
    compared.add_argument("--no-benchmarks", action="store_true", help="keep benchmark problems")
    text = "text appended to each problem, '' for none (default: %(default)r)"
    add("--suffix", default=SUFFIX, help=text)
    return parser


def _check(args: argparse.Namespace) -> None:
    """Raise ConfigError for what would fail, or do harm, after the data set is read."""
    if args.output.suffix != ".jsonl":
        raise ConfigError(
            f"--output is {args.output}; training recognises files by their extension: use .jsonl"
        )
    both_exist = args.output.exists() and Path(args.input).exists()
    if both_exist and args.output.samefile(args.input):
        raise ConfigError(f"--output is {args.output}, which is the input; use another file")
    check_writable("--output", args.output.parent)
    find_verifier(args.grader)


def _read_candidates(rows: list[Row], args: argparse.Namespace) -> list[Candidate]:
    """The rows with their chats, reference answers and the reasons to drop them."""
    source = f"--input is {args.input}"
    references = read_references(rows, "problem", "answer", args.grader, source)
    candidates = []
    faults = []
    for row, reference in zip(rows, references, strict=True):
        messages, fault = read_chat(row["problem"])
        if messages:
            # Without the suffix, so that a prepared file can be prepared again.
            messages[-1]["content"] = messages[-1]["content"].removesuffix(args.suffix)
        candidates.append(Candidate(row, messages, reference))
        faults.append(fault)
    index = None if args.no_benchmarks else _read_benchmarks(args.benchmarks)
    problems = [each.problem for each in candidates]
    reasons = find_reasons(problems, references, index, args.grader, faults)
    for each, reason in zip(candidates, reasons, strict=True):
        each.reason = reason
    return candidates


def _read_benchmarks(folder: Path | None) -> BenchmarkIndex:
    """The paper's benchmarks, from a folder or from the hub."""
    benchmarks = {}
    remedy = "--benchmarks, or keep their problems: --no-benchmarks"
    with flags_called({"--data": remedy}):
        for name in PAPER_BENCHMARKS:
            benchmarks[name] = load_benchmark(name, folder, needs_answers=False)
    return BenchmarkIndex(benchmarks)


def _write(
    args: argparse.Namespace,
    candidates: list[Candidate],
    kept: list[Candidate],
    revision: str | None,
) -> None:
    """Write the prompt set, the dropped rows, and what was read."""
    # For all rows or none: a column has one type.
    as_chats = any(len(each.chat) > 1 for each in kept)
    source = {"input": args.input, "config": args.config, "split": args.split, "revision": revision}
    contents = {
        removed_path(args.output): list(_dropped_rows(candidates)),
        args.output: [_prompt_row(each, args.suffix, as_chats) for each in kept],
        args.output.with_name(args.output.name + ".source.json"): [source],
    }
    args.output.parent.mkdir(parents=True, exist_ok=True)
    for path, content in contents.items():
        message = f"--output needs {path}, which cannot be written ({{reason}}); use another"
        with reader_errors(message, ConfigError):
            write_rows(path, content)


def _prompt_row(candidate: Candidate, suffix: str, as_chat: bool) -> Row:
    *before, last = candidate.chat
    problem = last["content"] + suffix
    row = {**candidate.row, **candidate.reference.metadata}
    row["problem"] = [*before, {"role": "user", "content": problem}] if as_chat else problem
    row["answer"] = candidate.reference.answer
    return row


def _dropped_rows(candidates: Sequence[Candidate]) -> Iterator[Row]:
    """The dropped rows with their reasons; rows are counted from 1."""
    for number, candidate in enumerate(candidates, 1):
        if candidate.reason is None:
            continue
        row: Row = {"row": number}
        if "id" in candidate.row:
            row["id"] = candidate.row["id"]
        row |= candidate.reason
        if "duplicate_of" in row:
            row["duplicate_of"] += 1
        row["problem"] = candidate.problem
        yield row


def _summary_of_dropped(reasons: Sequence[Reason], no_benchmarks: bool) -> Iterator[str]:
    """How many rows are dropped for each reason, and how many repeat each benchmark, in lines."""
    counts = Counter(reason["reason"] for reason in reasons)
    for text, count in counts.most_common():
        yield f"{count:6} dropped: {text}"
    if no_benchmarks:
        yield "       not compared with the benchmarks (--no-benchmarks)"
        return
    repeated = Counter(reason.get("benchmark") for reason in reasons)
    for name in PAPER_BENCHMARKS:
        yield f"{repeated[name]:12} of {title_of(name)}"


def removed_path(output: Path) -> Path:
    """The file that lists the dropped rows."""
    return output.with_name(output.name + ".removed.jsonl")


if __name__ == "__main__":
    sys.exit(run_command(main))

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

The data set is read row by row, twice. About 0.5 kB of a row stay in memory, and its problem in a
temporary file beside OUTPUT.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from openrlhf_swap.command import Parser, check_writable, flags_called, run_command
from openrlhf_swap.data.benchmarks import PAPER_BENCHMARKS, load_benchmark, title_of
from openrlhf_swap.data.chats import problem_text, read_chat
from openrlhf_swap.data.clean import SPECIAL, Reason, find_reasons
from openrlhf_swap.data.contamination import BenchmarkIndex
from openrlhf_swap.data.files import DATA_FILES
from openrlhf_swap.data.references import ExampleAnswers, named_reference
from openrlhf_swap.data.tables import Source, open_source
from openrlhf_swap.errors import ConfigError, DataError, reader_errors
from openrlhf_swap.files import Row, replacing, to_line, write_rows
from openrlhf_swap.flags.configuration import parse_with_settings
from openrlhf_swap.rewards.answers import SUFFIX
from openrlhf_swap.rewards.references import Reference
from openrlhf_swap.rewards.verifiers import find_verifier

DATASET = "agentica-org/DeepScaleR-Preview-Dataset"


@dataclass(frozen=True)
class Candidate:
    """A row of the data set.

    Attributes:
        row: as it is read.
        chat: its problem as messages, of which the last is the user's; empty for a faulty problem.
        reference: its reference answer.
        fault: what is wrong with its chat; None for nothing.
    """

    row: Row
    chat: list[Row]
    reference: Reference
    fault: str | None

    @property
    def problem(self) -> str:
        """The problem as text."""
        return problem_text(self.chat)


def main(argv: list[str]) -> None:
    args = parse_with_settings(_parser(), ("grader",), argv)
    _check(args)
    source = open_source(args.input, args.split, args.revision, args.config)
    args.output.parent.mkdir(parents=True, exist_ok=True)
    choice = _choose(source, args)
    kept = _write(source, args, choice)
    reasons = [reason for reason in choice.reasons if reason]
    print(f"{len(choice.reasons):6} rows read from {args.input}")
    print(*_summary_of_dropped(reasons, args.no_benchmarks), sep="\n")
    dropped = removed_path(args.output)
    print(f"{kept.count:6} rows written to {args.output}; dropped rows: {dropped}")
    _advise(args, kept, source.revision)


@dataclass(frozen=True)
class Choice:
    """Which rows are kept.

    Attributes:
        reasons: why each row is dropped; None for a row that is kept.
        as_chats: whether problems are written as chats: all or none, so that a column has one type.
    """

    reasons: list[Reason | None]
    as_chats: bool


@dataclass
class Kept:
    """What is told about the rows that are kept."""

    count: int = 0
    rendered: int = 0  # those with special tokens of a chat template in their text
    answers: ExampleAnswers = field(default_factory=ExampleAnswers)

    def add(self, candidate: Candidate) -> None:
        self.count += 1
        self.rendered += bool(SPECIAL.search(candidate.problem))
        self.answers.add(candidate.row["answer"], candidate.reference.answer)


def _advise(args: argparse.Namespace, kept: Kept, revision: str | None) -> None:
    """Print what to know before a training: templates, the data set's revision, and answers."""
    if kept.rendered:
        print(
            f"{kept.rendered} prompts have special tokens of a chat template in their text: train "
            "without --data.apply_chat_template, or give the user's turns alone"
        )
    if revision and revision != args.revision:
        print(f"The data set may change; --revision {revision} reads these rows again.")
    if find_verifier(args.grader).answer_is_text:
        print("Answers as they are graded and scored, for example:")
        for line in kept.answers.lines():
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


def _choose(source: Source, args: argparse.Namespace) -> Choice:
    """Read the data set and choose its rows; DataError if none can be used."""
    has_turns = bytearray()  # 1 for a row whose chat has several messages

    def noted() -> Iterator[Candidate]:
        for candidate in _read_candidates(source, args):
            has_turns.append(len(candidate.chat) > 1)
            yield candidate

    index = None if args.no_benchmarks else _read_benchmarks(args.benchmarks)
    with TemporaryDirectory(prefix=".prepare_", dir=args.output.parent) as folder:
        reasons = find_reasons(noted(), index, args.grader, Path(folder))
    if all(reasons):
        counts = Counter(reason["reason"] for reason in reasons if reason)
        faults = ", ".join(f"{count} with {reason}" for reason, count in counts.items())
        raise DataError(
            f"--input is {args.input}, of which no row can be used: {faults or 'it is empty'}"
        )
    of_kept = (turns for turns, reason in zip(has_turns, reasons, strict=True) if not reason)
    return Choice(reasons, any(of_kept))


def _read_candidates(source: Source, args: argparse.Namespace) -> Iterator[Candidate]:
    """The rows with their chats and reference answers."""
    rows = source.rows(args.problem_key, args.answer_key, args.grader)
    for number, row in enumerate(rows, 1):
        called = f"--input is {args.input}, row {number}"
        reference = named_reference(row, "problem", "answer", args.grader, called)
        messages, fault = read_chat(row["problem"])
        if messages:
            # Without the suffix, so that a prepared file can be prepared again.
            messages[-1]["content"] = messages[-1]["content"].removesuffix(args.suffix)
        yield Candidate(row, messages, reference, fault)


def _read_benchmarks(folder: Path | None) -> BenchmarkIndex:
    """The paper's benchmarks, from a folder or from the hub."""
    benchmarks = {}
    remedy = "--benchmarks, or keep their problems: --no-benchmarks"
    with flags_called({"--data": remedy}):
        for name in PAPER_BENCHMARKS:
            benchmarks[name] = load_benchmark(name, folder, needs_answers=False)
    return BenchmarkIndex(benchmarks)


def _write(source: Source, args: argparse.Namespace, choice: Choice) -> Kept:
    """Read the data set again, and write the prompt set, the dropped rows, and what was read."""
    record = {name: getattr(args, name) for name in ("input", "config", "split")}
    kept = Kept()
    candidates = _read_candidates(source, args)
    message = f"--output is {args.output}, which cannot be written ({{reason}}); use another"
    with (
        reader_errors(message, ConfigError),
        replacing(args.output) as prompts,
        replacing(removed_path(args.output)) as removed,
    ):
        for number, candidate in enumerate(candidates):
            reason = choice.reasons[number]
            if reason:
                removed.write(to_line(_dropped_row(candidate, number, reason)))
                continue
            kept.add(candidate)
            prompts.write(to_line(_prompt_row(candidate, args.suffix, choice.as_chats)))
        write_rows(
            args.output.with_name(args.output.name + ".source.json"),
            [{**record, "revision": source.revision}],
        )
    return kept


def _prompt_row(candidate: Candidate, suffix: str, as_chat: bool) -> Row:
    *before, last = candidate.chat
    problem = last["content"] + suffix
    row = {**candidate.row, **candidate.reference.metadata}
    row["problem"] = [*before, {"role": "user", "content": problem}] if as_chat else problem
    row["answer"] = candidate.reference.answer
    return row


def _dropped_row(candidate: Candidate, number: int, reason: Reason) -> Row:
    """A dropped row, whose number counts from 0 here and from 1 in the file, with the reason."""
    row: Row = {"row": number + 1}
    if "id" in candidate.row:
        row["id"] = candidate.row["id"]
    row |= reason
    if "duplicate_of" in row:
        row["duplicate_of"] += 1
    row["problem"] = candidate.problem
    return row


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

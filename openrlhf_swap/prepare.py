r"""Turn a data set of maths problems into the prompt set of a training.

    openrlhf-swap prepare --output prompts.jsonl openrlhf-swap train --data.prompt_dataset
    prompts.jsonl --data.input_key problem --data.label_key answer

A problem is a text, or a chat that ends with the user's turn. A key may be a nested field, as in
verl's files:

    openrlhf-swap prepare --input train.parquet --problem-key prompt --answer-key
        reward_model.ground_truth \ --output prompts.jsonl

From a worked solution the answer is taken: what follows `####`, or stands in the last box. Rows are
dropped if the problem is empty, or if the answer is empty, a sentence, a long text, or one that the
grader cannot parse; so are duplicates, and exact or near copies of problems of the five benchmarks.
The rest is written in input order as JSONL of problem, answer and, if there is one, id; the suffix
is appended to each problem, so that training asks as evaluation/eval_benchmarks.sh does.
OUTPUT.removed.jsonl lists every dropped row with the reason and, if there is one, the benchmark
problem that it repeats. OUTPUT.source.json records what was read, with the commit of a hub data
set: it may change, and --revision COMMIT reads the same rows again.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import starmap
from pathlib import Path

from openrlhf_swap.command import Parser, check_writable, flags_called, run_command
from openrlhf_swap.data.benchmarks import PAPER_BENCHMARKS, load_benchmark, title_of
from openrlhf_swap.data.clean import SPECIAL, BenchmarkIndex, Reason, find_reasons, strip_template
from openrlhf_swap.data.rows import (
    DATA_FILES,
    examples,
    problem_text,
    read_chat,
    read_references,
    read_table,
    revision_of,
    source_rows,
)
from openrlhf_swap.errors import ConfigError, DataError, reader_errors
from openrlhf_swap.files import Row, write_rows
from openrlhf_swap.flags.configuration import parse_with_settings
from openrlhf_swap.rewards.answers import SUFFIX
from openrlhf_swap.rewards.verifiers import find_verifier

SHOWN = 12  # wrappers that the summary names
DATASET = "agentica-org/DeepScaleR-Preview-Dataset"


def main(argv: list[str]) -> None:
    args = parse_with_settings(_parser(), ("grader", "keep_placeholders"), argv)
    _check(args)
    table = read_table(args.input, args.split, args.revision, args.config)
    revision = revision_of(table)
    rows = source_rows(table, args.input, args.problem_key, args.answer_key, args.grader)
    chats, faults = [], []
    for row in rows:
        chat, fault = read_chat(row["problem"])
        if chat:  # without the suffix, so that a prepared file can be prepared again
            text = chat[-1]["content"].removesuffix(args.suffix)
            chat[-1]["content"] = strip_template(text) if args.strip_templates else text
        chats.append(chat)
        faults.append(fault)
    problems = [problem_text(chat) for chat in chats]
    references = read_references(rows, "problem", "answer", args.grader, f"--input is {args.input}")
    index = None
    if not args.no_benchmarks:
        with flags_called({"--data": "--benchmarks"}):
            index = BenchmarkIndex(
                {name: load_benchmark(name, args.benchmarks) for name in PAPER_BENCHMARKS}
            )
    reasons = find_reasons(problems, references, index, args.grader, faults, args.keep_placeholders)
    kept = [number for number, reason in enumerate(reasons) if reason is None]
    dropped = [(number, reason) for number, reason in enumerate(reasons) if reason is not None]
    if not kept:
        counts = Counter(reason["reason"] for _, reason in dropped)
        summary = (
            ", ".join(f"{count} with {reason}" for reason, count in counts.items()) or "it is empty"
        )
        raise DataError(f"--input is {args.input}, of which no row can be used: {summary}")
    is_chat = any(
        len(chats[number]) > 1 for number in kept
    )  # for all rows or none: a column has one type

    def prompt_row(number: int) -> Row:
        *before, last = chats[number]
        text, reference = last["content"] + args.suffix, references[number]
        problem = [*before, {"role": "user", "content": text}] if is_chat else text
        return {
            **rows[number],
            **reference.metadata,
            "problem": problem,
            "answer": reference.answer,
        }

    def dropped_row(number: int, reason: Reason) -> Row:
        own_id = {"id": rows[number]["id"]} if "id" in rows[number] else {}
        earlier = (
            {"duplicate_of": reason["duplicate_of"] + 1} if "duplicate_of" in reason else {}
        )  # from 1, like rows
        return {"row": number + 1, **own_id, **reason, **earlier, "problem": problems[number]}

    source = {"input": args.input, "config": args.config, "split": args.split, "revision": revision}
    contents: dict[Path, Iterable[Row]] = {
        removed_path(args.output): starmap(dropped_row, dropped),
        args.output: map(prompt_row, kept[: args.limit]),
        args.output.with_name(args.output.name + ".source.json"): [source],
    }
    args.output.parent.mkdir(parents=True, exist_ok=True)
    for path, content in contents.items():
        with reader_errors(
            f"--output needs {path}, which cannot be written ({{reason}}); use another", ConfigError
        ):
            write_rows(path, content)
    for line in _summary(args, reasons):
        print(line)
    if rendered := sum(bool(SPECIAL.search(problems[number])) for number in kept):
        print(
            f"{rendered} prompts have special tokens of a chat template in their text; --strip-templates keeps the "
            "user's turn alone, to which training applies the model's template"
        )
    if revision and revision != args.revision:
        print(f"The data set may change; --revision {revision} reads these rows again.")
    if find_verifier(args.grader).answer_is_text:
        print("Answers as they are graded and scored, for example:")
        print(
            "\n".join(
                f"  {line}"
                for line in examples((rows[i]["answer"], references[i].answer) for i in kept)
            )
        )


def _parser() -> Parser:
    parser = Parser("openrlhf-swap prepare", __doc__)
    add, endings = parser.add_argument, ", ".join(DATA_FILES)
    add(
        "--input",
        default=DATASET,
        help=f"hub data set, or a file that ends in {endings} (default: %(default)s)",
    )
    add("--output", type=Path, required=True, help="JSONL to write")
    add(
        "--config",
        help="configuration of a hub data set that has several, such as main of openai/gsm8k",
    )
    add("--split", default="train", help="split of a hub data set (default: %(default)s)")
    add("--revision", help="commit, tag or branch of a hub data set; the newest by default")
    keys = "column of the %s, or a field in it as COLUMN.NAME (default: %%(default)s)"
    add("--problem-key", default="problem", help=keys % "problems, texts or chats")
    add("--answer-key", default="answer", help=keys % "answers")
    compared = parser.add_mutually_exclusive_group()
    compared.add_argument(
        "--benchmarks", type=Path, help="folder with local copies of the five; default: the hub"
    )
    compared.add_argument("--no-benchmarks", action="store_true", help="keep benchmark problems")
    add(
        "--suffix",
        default=SUFFIX,
        help="text appended to each problem, '' for none (default: %(default)r)",
    )
    text = "of prompts rendered with a chat template, keep the user's turn: no system prompt, no special tokens"
    add("--strip-templates", action="store_true", help=text)
    add("--limit", type=int, help="write only the first LIMIT usable rows")
    return parser


def _check(args: argparse.Namespace) -> None:
    """Raise ConfigError for what would fail, or do harm, after the data set is read."""
    if args.limit is not None and args.limit < 1:
        raise ConfigError(f"--limit is {args.limit}; use at least 1, or leave it out for all rows")
    if args.output.suffix != ".jsonl":
        raise ConfigError(
            f"--output is {args.output}; training recognises files by their extension: use .jsonl"
        )
    if args.output.exists() and Path(args.input).exists() and args.output.samefile(args.input):
        raise ConfigError(f"--output is {args.output}, which is the input; use another file")
    check_writable("--output", args.output.parent)
    find_verifier(args.grader)


def _summary(args: argparse.Namespace, reasons: Sequence[Reason | None]) -> Iterator[str]:
    dropped = [reason for reason in reasons if reason]
    kept = len(reasons) - len(dropped)
    counts = Counter(reason["reason"] for reason in dropped)
    yield f"{len(reasons):6} rows read from {args.input}"
    yield from (f"{count:6} dropped: {reason}" for reason, count in counts.most_common())
    if args.no_benchmarks:
        yield "       not compared with the benchmarks (--no-benchmarks)"
    else:
        repeated = Counter(reason.get("benchmark") for reason in dropped)
        yield from (f"{repeated[name]:12} of {title_of(name)}" for name in PAPER_BENCHMARKS)
        wrappers = Counter(
            reason["wrapper"] for reason in dropped if "wrapper" in reason
        ).most_common()
        for wrapper, count in wrappers[:SHOWN]:
            shown = wrapper if len(wrapper) <= 100 else f"{wrapper[:49]}..{wrapper[-49:]}"
            yield f"{count:12} of these inside {shown!r}"
        if len(wrappers) > SHOWN:
            yield f"{sum(count for _, count in wrappers[SHOWN:]):12} of these inside other texts"
    written = min(kept, args.limit or kept)
    if written < kept:
        yield f"{kept - written:6} usable, but left out (--limit)"
    yield f"{written:6} rows written to {args.output}; dropped rows: {removed_path(args.output)}"


def removed_path(output: Path) -> Path:
    """The file that lists the dropped rows."""
    return output.with_name(output.name + ".removed.jsonl")


if __name__ == "__main__":
    sys.exit(run_command(main))

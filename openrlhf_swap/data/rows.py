"""The rows of data files and of data sets on the hub, and their reference answers as the chosen
grader takes them.

Where rows are many and independent (training, evaluation during it, scoring), an unreadable row is
counted, reported and left out; where the whole matters (benchmarks, `prepare`), it is an error.
Either way the message has the file, the row's number from 1, and what is wrong. The loaders of
`datasets` read all of a JSON or CSV file or nothing, so it is read row by row here. Imports nothing
heavy: `train` looks into its data files before anything slow is imported.
"""

import csv
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from itertools import compress, count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tqdm import tqdm

from openrlhf_swap.errors import ConfigError, DataError, reader_errors
from openrlhf_swap.files import (
    Row,
    checked_row,
    decoded,
    parse_row,
    parse_value,
    read_rows,
    write_rows,
)
from openrlhf_swap.rewards import Grader, answers
from openrlhf_swap.rewards.answers import (
    NUMBER,
    UNPARSABLE_ANSWER,
    normal_answer,
    strip_answer,
    visible_fault,
)
from openrlhf_swap.rewards.verifiers import FLAG, MATH, Reference, find_verifier

if TYPE_CHECKING:
    from datasets import Dataset

DATA_FILES = (".jsonl", ".json", ".csv", ".parquet")
LOOKED_AT = 20_000  # rows of a file that are read before anything slow is imported
SHOWN = 3  # unreadable rows that a message names
EMPTY_PROBLEM = "an empty problem, or one that is neither text nor a chat"
_ROLES = {"human": "user", "gpt": "assistant"}  # ShareGPT's
ANSWERS_A_PROCESS = 64  # a grading process that starts for fewer costs more than it saves
GRADED_AT_ONCE = 256
EXAMPLES = 5
TRIED = 3  # reference answers that a verifier is called with before a run starts


class Entry(NamedTuple):
    """A row of a data file: its number from 1, and either its fields or what is wrong with it."""

    number: int
    row: Row | None
    fault: str = ""


def has_rows(path: Path) -> bool:
    return path.suffix.lower() in (".jsonl", ".json", ".csv")


def read_entries(
    path: Path, flag: str = "", at_most: int | None = None, needs_all: bool = False
) -> list[Entry]:
    """The rows of a JSONL, JSON or CSV file, or the first of them, without blank lines. A CSV
    file's fields are texts.

    A file that cannot be read is a DataError, as one without a readable row or, with `needs_all`,
    with another one.
    """
    name = f"{flag} is {path}, which" if flag else str(path)
    with reader_errors(f"{name} cannot be read: {{reason}}"):
        entries = list(islice(_entries(path), at_most))
        rows = readable_rows(entries)
        if not rows or (needs_all and len(rows) < len(entries)):
            raise DataError(describe_faults(entries) or "it has no rows")
    return entries


def readable_rows(entries: Sequence[Entry]) -> list[Row]:
    return [entry.row for entry in entries if entry.row is not None]


def describe_faults(entries: Sequence[Entry]) -> str:
    """The first unreadable rows: "row 3: not JSON (...), row 7: not UTF-8 (...), and 12 more"."""
    wrong = [f"row {entry.number}: {entry.fault}" for entry in entries if entry.row is None]
    return ", ".join(wrong[:SHOWN]) + (
        f", and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
    )


def check_quickly(flag: str, name: str, keys: Mapping[str, str]) -> None:
    """Refuse a local data file by its first rows, if none can be read or has the columns (`keys`:
    flag -> column).
    """
    path = Path(name)
    if has_rows(path) or not path.exists():
        rows = readable_rows(read_entries(path, flag, LOOKED_AT))
        check_columns(dict.fromkeys(column for row in rows for column in row), keys, name)


def check_columns(columns: Iterable[str], keys: Mapping[str, str], source: str) -> None:
    """Raise DataError for a key, by its flag, that is not one of the columns."""
    for flag, key in keys.items():
        if key not in columns:
            raise DataError(
                f"{flag} is {key}, but {source} has no such column; its columns are: {', '.join(columns)}"
            )


def read_table(
    source: str, split: str, revision: str | None, configuration: str | None = None
) -> "Dataset":
    """The data set that `--input` names: a file, a folder, or a hub id; a DataError if any of it
    cannot be read.
    """
    path, kind = Path(source), Path(source).suffix.lower()
    rows = readable_rows(read_entries(path, "--input", needs_all=True)) if has_rows(path) else []
    files = ", ".join(DATA_FILES)
    remedy = (
        f"check the name, --config, --split and the connection, or give a file that ends in {files}"
    )
    with loader_errors(f"--input is {source}, which cannot be loaded ({{reason}}); {remedy}"):
        from datasets import Dataset, load_dataset, load_from_disk

        if (
            rows
        ):  # with the columns of all rows, and with their values: a loader guesses types from texts
            columns = dict.fromkeys(column for row in rows for column in row)
            plain = [
                {**columns, **{name: _fitting(value) for name, value in row.items()}}
                for row in rows
            ]
            return Dataset.from_list(plain, on_mixed_types="use_json")
        if any((path / name).exists() for name in ("dataset_info.json", "dataset_dict.json")):
            table = load_from_disk(source)
            return table[split] if isinstance(table, dict) else table
        if kind in DATA_FILES:
            return load_dataset(kind[1:], data_files=source, split="train")
        return load_dataset(source, configuration, split=split, revision=revision)


def _fitting(value: Any) -> Any:
    # A table cannot hold integers of more than 64 bits.
    return str(value) if isinstance(value, int) and not -(2**63) <= value < 2**63 else value


def source_rows(
    table: "Dataset", source: str, problem_key: str, answer_key: str, grader: str = MATH
) -> list[Row]:
    """The rows of a table as `problem`, `answer` and, if there is one, `id`; a DataError if a key
    names no column.

    For other graders than math-verify also the other columns, except a `problem` or `answer` that
    no key chose. A key may be dotted, such as `reward_model.ground_truth`, for a field inside a
    column.
    """
    columns = {}
    for name, key in (("problem", problem_key), ("answer", answer_key)):
        part = table if key in table.column_names else table.flatten()
        check_columns(part.column_names, {f"--{name}-key": key}, source)
        columns[name] = list(part[key])
    kept = {"id"} if grader == MATH else {*table.column_names} - {problem_key, answer_key, *columns}
    columns |= {name: list(table[name]) for name in table.column_names if name in kept}
    return [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]


def revision_of(table: "Dataset") -> str | None:
    """The commit of the hub data set that a table was read from, online or from the cache; None for
    a file.
    """
    # <cache>/<id>/<configuration>/<version>/<commit>/<file>
    folders = (Path(file["filename"]).parent.name for file in table.cache_files)
    return next((folder for folder in folders if re.fullmatch(r"[0-9a-f]{40}", folder)), None)


@contextmanager
def loader_errors(message: str) -> Iterator[None]:
    """As `reader_errors`, with what a loader of `datasets` failed at: its own message says that an
    error occurred.
    """
    from datasets.exceptions import DatasetGenerationError

    with reader_errors(message):
        try:
            yield
        except DatasetGenerationError as error:
            raise error.__cause__ or error from None


def _entries(path: Path) -> Iterator[Entry]:
    if path.suffix.lower() == ".csv":
        with (
            open(path, encoding="utf-8-sig", errors="surrogateescape", newline="") as table,
            suppress(StopIteration),
        ):
            reader = csv.DictReader(table, strict=True)
            for number in count(1):
                yield _entry(number, _next_fields, reader)
    elif (
        path.suffix.lower() == ".json"
        and (data := path.read_bytes()).lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"["
    ):
        yield from (
            _entry(number, checked_row, value) for number, value in enumerate(parse_value(data), 1)
        )
    else:
        with open(path, "rb") as lines:
            for number, line in enumerate(
                lines, 1
            ):  # not splitlines(), which also splits at separators in a text
                if line.strip():
                    yield _entry(number, parse_row, line)


def _entry(number: int, read: Callable[[Any], Row], raw: Any) -> Entry:
    try:
        return Entry(number, read(raw))
    except DataError as error:
        return Entry(number, None, str(error))


def _next_fields(reader: "csv.DictReader[str]") -> Row:
    """The next row of a CSV file; pandas would drop a row that is too long, and fill up one that is
    too short.
    """
    try:
        row = next(reader)
    except csv.Error as error:
        raise DataError(f"not CSV ({error})") from error
    if (
        None in row or None in row.values()
    ):  # extra fields have None as their key, missing ones as value
        raise DataError("more or fewer fields than the header")
    text = "".join(row.values())
    if "\0" in text:
        raise DataError("zero bytes, as a crash leaves them")
    decoded(text.encode(errors="surrogateescape"))
    return row


def read_references(
    rows: list[Row], problem_key: str, answer_key: str, grader: str, source: str
) -> list[Reference]:
    """The `read_reference` of each row; a DataError that begins with `source` and the row's number
    instead of its.
    """
    references = []
    message = "the answer begins as a label and cannot be read ({reason}); give the reference answer alone"
    for number, row in enumerate(rows, 1):
        with reader_errors(f"{source}, row {number}: {message}"):
            references.append(read_reference(row, problem_key, answer_key, grader))
    return references


def read_reference(
    row: Mapping[str, Any], problem_key: str, answer_key: str, grader: str
) -> Reference:
    """The reference answer in a row, cleaned; for other graders than math-verify with problem and
    other columns.

    An answer that no response could state, such as unit tests, stays as it is, and so does an
    object (as JSON). The answer may be a label, as in `prompts.jsonl` of a run; a ValueError if it
    begins as one and is none.
    """
    given = row[answer_key]
    label = Reference.parse(given)
    is_json = isinstance(given, list | dict)
    answer = json.dumps(given, ensure_ascii=False, default=str) if is_json else label.answer
    if find_verifier(grader).answer_is_text:
        normal = normal_answer(label.answer if isinstance(given, str) else given)
        answer = normal or ("" if grader == MATH else answer)
    if grader == MATH:
        return Reference(answer)
    others = {name: value for name, value in row.items() if name not in (problem_key, answer_key)}
    return Reference(
        answer, label.problem or problem_text(row[problem_key]), {**others, **label.metadata}
    )


def labelled(row: Row, reference: Reference, problem_key: str, answer_key: str) -> Row:
    """The row as OpenRLHF reads it: what the grader may look at travels in the answer column."""
    source = {"datasource": row["datasource"]} if "datasource" in row else {}
    return {problem_key: row[problem_key], answer_key: reference.label(), **source}


def read_chat(problem: object) -> tuple[list[Row], str | None]:
    """A problem as a chat that ends with the user's turn, and what is wrong with it, to follow
    "dropped with".

    It is a text, or a list of messages: of `role` and `content` (text or parts), or ShareGPT's,
    less a last answer.
    """
    if isinstance(problem, str) and problem.strip():
        return [{"role": "user", "content": problem}], None
    if not isinstance(problem, list) or not problem:
        return [], EMPTY_PROBLEM
    chat = []
    for message in problem:
        named = message if isinstance(message, dict) else {}
        role, content = (
            named.get("role", named.get("from")),
            named.get("content", named.get("value")),
        )
        if isinstance(content, list) and all(isinstance(part, dict) for part in content):
            texts = [part.get("text") for part in content]
            content = None if None in texts else "\n".join(map(str, texts))
        if not isinstance(role, str) or not isinstance(content, str) or not content:
            keys = ", ".join(map(str, named)) or type(message).__name__
            return (
                [],
                f"a chat whose messages are no texts with role and content (they have {keys})",
            )
        chat.append({"role": _ROLES.get(role, role), "content": content})
    if "from" in problem[0] and len(chat) > 1 and chat[-1]["role"] == "assistant":
        chat.pop()
    return (
        (chat, None)
        if chat[-1]["role"] == "user"
        else ([], f"a chat that ends with the {chat[-1]['role']}'s turn")
    )


def problem_text(problem: object) -> str:
    if not isinstance(problem, list):
        return str(problem)
    messages = [
        message
        for message in problem
        if isinstance(message, dict) and message.get("role") == "user"
    ]
    return "\n".join(str(message.get("content", "")) for message in messages)


def find_faults(
    references: Sequence[Reference], grader: str, command: str, keeps_placeholders: bool = False
) -> list[str | None]:
    """What is wrong with each reference answer, to follow "dropped with"; the progress bar names
    the command.
    """
    if grader != MATH:
        find_fault = find_verifier(grader).find_fault
        return [find_fault(reference.answer, reference.metadata) for reference in references]
    faults = {
        reference.answer: visible_fault(reference.answer, keeps_placeholders)
        for reference in references
    }
    good = find_gradable((answer for answer, fault in faults.items() if fault is None), command)
    faults |= {
        answer: fault or UNPARSABLE_ANSWER for answer, fault in faults.items() if answer not in good
    }
    return [faults[reference.answer] for reference in references]


def try_grader(grader: str, references: Sequence[Reference]) -> None:
    """Raise ConfigError for a function that fails at once: on empty responses to the first
    problems.
    """
    if grader == MATH:
        return
    pool = Grader(processes=1, verifier=grader)
    grades = pool.grade_many([("", reference) for reference in references[:TRIED]])
    pool.close()
    for number, grade in enumerate(grades, 1):
        if grade.status in ("error", "timeout"):
            reason = grade.why or grade.status
            raise ConfigError(
                f"{FLAG} is {grader}, which fails on an empty response to row {number}: {reason}"
            )


def find_gradable(given: Iterable[str], label: str) -> set[str]:
    """The answers that math-verify can grade against; each is tried once, on all cores, with a
    progress bar.

    Good answers are remembered for later calls, in other processes too; the others are tried again.
    """
    distinct, memory = set(given), remembered_file()
    known = set(map(str, read_rows(memory)))
    simple = {answer for answer in distinct if NUMBER.fullmatch(answer)}
    new = sorted(distinct - known - simple)
    grader = Grader(processes=min(len(os.sched_getaffinity(0)), 1 + len(new) // ANSWERS_A_PROCESS))
    good: set[str] = set()
    starts = range(0, len(new), GRADED_AT_ONCE)
    for start in tqdm(
        starts, desc=f"[{label}] parsing answers", unit=f"{GRADED_AT_ONCE} answers", leave=False
    ):
        part = new[start : start + GRADED_AT_ONCE]
        good.update(compress(part, grader.is_gradable(part)))
    grader.close()
    if good:
        remember(memory, sorted(known | good))
    return (known | good | simple) & distinct


def remember(path: Path, rows: Iterable[object]) -> None:
    """Write what the next start need not find out again, if the disk lets us."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_rows(path, rows)


def remembered_file() -> Path:
    """Where good answers are remembered: one file for each version of the grader."""
    home = Path(answers.__file__).parent
    code = [(home / f"{name}.py").read_bytes() for name in ("grading", "answers", "statements")]
    grader = hashlib.sha256(b"".join([*code, version("math-verify").encode()])).hexdigest()[:16]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return folder / "openrlhf_swap" / f"answers_{grader}.jsonl"


def examples(pairs: Iterable[tuple[object, str]]) -> list[str]:
    """Answers of a data set, one line each, as they are graded and scored and as they were given:
    odd ones first.
    """
    texts = ((str(given), strip_answer(answer)) for given, answer in pairs)
    distinct = dict.fromkeys(
        (text if len(text) <= 40 else "..." + text[-36:], answer) for text, answer in texts
    )
    odd = [pair for pair in distinct if pair[0].strip("$") != pair[1]][: EXAMPLES - 2]
    shown = [*odd, *(pair for pair in distinct if pair not in odd)][:EXAMPLES]
    return [
        f"{answer!r}" + (f" (from {given!r})" if given != answer else "") for given, answer in shown
    ]

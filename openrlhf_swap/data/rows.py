"""The rows of data files and of data sets on the hub, with their reference answers.

Where rows are many and independent (training, evaluation during it, scoring), an unreadable row is
counted, reported and left out; where the whole matters (benchmarks, `prepare`), it is an error.
Either way the message has the file, the row's number from 1, and what is wrong. The loaders of
`datasets` read all of a JSON or CSV file or nothing, so it is read row by row here. Imports nothing
heavy: `train` looks into its data files before anything slow is imported.
"""

import ast
import csv
import hashlib
import io
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from decimal import Decimal
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
ANSWERS_A_PROCESS = 64  # a grading process that starts for fewer costs more than it saves
GRADED_AT_ONCE = 256
EXAMPLES = 5
TRIED = 3  # reference answers that a verifier is called with before a run starts
STATED_ANSWER = "a problem that states its answer"
# What stands before an answer.
_ANNOUNCED = re.compile(
    r"\\boxed\s*\{|####|\banswers?(?:\s+is)?\s*[:=]|\banswer\s+is\b|答案\s*[是为]?\s*[:\uff1a]?",
    re.IGNORECASE,
)
_LONGER = re.compile(r"\w|[.,]\d|\s*(?:[-+/^_=]|\*(?!\*))")  # as an answer that goes on begins


class Entry(NamedTuple):
    """A row of a data file: its number from 1, and either its fields or what is wrong with it."""

    number: int
    row: Row | None
    fault: str = ""


def has_rows(path: Path) -> bool:
    return path.suffix.lower() in (".jsonl", ".json", ".csv")


def read_entries(
    path: Path,
    flag: str = "",
    at_most: int | None = None,
    needs_all: bool = False,
) -> list[Entry]:
    """The rows of a JSONL, JSON or CSV file without blank lines, all or the first `at_most`.

    A CSV file's fields are texts. Raises DataError for a file that cannot be read or has no
    readable row; with `needs_all`, for one that has an unreadable row.
    """
    name = f"{flag} is {path}, which" if flag else str(path)
    with reader_errors(f"{name} cannot be read: {{reason}}"):
        entries = list(islice(_entries(path), at_most))
        rows = readable_rows(entries)
        faulty = len(rows) < len(entries)
        if not rows or (needs_all and faulty):
            raise DataError(describe_faults(entries) or "it has no rows")
    return entries


def readable_rows(entries: Sequence[Entry]) -> list[Row]:
    return [entry.row for entry in entries if entry.row is not None]


def describe_faults(entries: Sequence[Entry]) -> str:
    """The first unreadable rows: "row 3: not JSON (...), row 7: not UTF-8 (...), and 12 more"."""
    wrong = [f"row {entry.number}: {entry.fault}" for entry in entries if entry.row is None]
    shown = wrong[:SHOWN]
    if len(wrong) > SHOWN:
        shown.append(f"and {len(wrong) - SHOWN} more")
    return ", ".join(shown)


def check_quickly(
    flag: str,
    name: str,
    keys: Mapping[str, str],
) -> None:
    """Refuse a local data file by its first rows.

    Raises DataError if none can be read or has the columns of `keys` (flag -> column).
    """
    path = Path(name)
    if has_rows(path) or not path.exists():
        rows = readable_rows(read_entries(path, flag, LOOKED_AT))
        check_columns(columns_in(rows), keys, name)


def columns_in(rows: Iterable[Row]) -> dict[str, None]:
    """The columns of all rows, in their order, without values."""
    return dict.fromkeys(column for row in rows for column in row)


def check_columns(
    columns: Iterable[str],
    keys: Mapping[str, str],
    source: str,
) -> None:
    """Raise DataError for a key, by its flag, that is not one of the columns."""
    for flag, key in keys.items():
        if key not in columns:
            raise DataError(
                f"{flag} is {key}, but {source} has no such column; "
                f"its columns are: {', '.join(columns)}"
            )


def read_table(
    source: str,
    split: str,
    revision: str | None,
    configuration: str | None = None,
) -> "Dataset":
    """The data set that `--input` names: a file, a folder, or a hub id.

    Raises DataError if any of it cannot be read.
    """
    path = Path(source)
    kind = path.suffix.lower()
    rows: list[Row] = []
    if has_rows(path):
        rows = readable_rows(read_entries(path, "--input", needs_all=True))
    remedy = (
        "check the name, --config, --split and the connection, "
        f"or give a file that ends in {', '.join(DATA_FILES)}"
    )
    with loader_errors(f"--input is {source}, which cannot be loaded ({{reason}}); {remedy}"):
        from datasets import Dataset, load_dataset, load_from_disk

        if rows:
            # With the columns of all rows, and with their values: a loader guesses types from
            # texts.
            columns = columns_in(rows)
            plain = [{**columns, **_fitting(row)} for row in rows]
            return Dataset.from_list(plain, on_mixed_types="use_json")
        if (path / "dataset_dict.json").exists():
            return load_from_disk(source)[split]
        if (path / "dataset_info.json").exists():
            return load_from_disk(source)
        if kind in DATA_FILES:
            return load_dataset(kind[1:], data_files=source, split="train")
        return load_dataset(source, configuration, split=split, revision=revision)


def _fitting(row: Row) -> Row:
    """The row as a table can hold it: integers of more than 64 bits become text."""
    fitting = dict(row)
    for name, value in row.items():
        if isinstance(value, int) and abs(value) >= 2**63:
            fitting[name] = str(value)
    return fitting


def source_rows(
    table: "Dataset",
    source: str,
    problem_key: str,
    answer_key: str,
    grader: str = MATH,
) -> list[Row]:
    """The rows of a table as `problem`, `answer` and, if there is one, `id`.

    For other graders than math-verify they also have the other columns, except a `problem` or
    `answer` that no key chose. A key may be dotted, such as `reward_model.ground_truth`, for a
    field inside a column. Raises DataError if a key names no column.
    """
    columns = {}
    keys = {"problem": problem_key, "answer": answer_key}
    for name, key in keys.items():
        part = table if key in table.column_names else table.flatten()
        check_columns(part.column_names, {f"--{name}-key": key}, source)
        columns[name] = part[key]
    for name in table.column_names:
        if name == "id" or (grader != MATH and name not in {*keys, *keys.values()}):
            columns[name] = table[name]
    rows = zip(*columns.values(), strict=True)
    return [dict(zip(columns, values, strict=True)) for values in rows]


def revision_of(table: "Dataset") -> str | None:
    """The commit of the hub data set that a table was read from; None for a file."""
    # <cache>/<id>/<configuration>/<version>/<commit>/<file>
    for file in table.cache_files:
        folder = Path(file["filename"]).parent.name
        if re.fullmatch(r"[0-9a-f]{40}", folder):
            return folder
    return None


@contextmanager
def loader_errors(message: str) -> Iterator[None]:
    """As `reader_errors`, with the cause of an error of `datasets`, whose message names none."""
    from datasets.exceptions import DatasetGenerationError

    with reader_errors(message):
        try:
            yield
        except DatasetGenerationError as error:
            raise error.__cause__ or error from None


def _entries(path: Path) -> Iterator[Entry]:
    kind = path.suffix.lower()
    if kind == ".csv":
        yield from _csv_entries(path)
        return
    if kind == ".json":
        data = path.read_bytes()
        if data.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["):
            for number, value in enumerate(parse_value(data), 1):
                yield _entry(number, checked_row, value)
            return
    with open(path, "rb") as lines:
        # Not splitlines(), which also splits at separators in a text.
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield _entry(number, parse_row, line)


def _csv_entries(path: Path) -> Iterator[Entry]:
    text = path.read_bytes().decode("utf-8-sig", "surrogateescape")
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    with suppress(StopIteration):
        names = reader.fieldnames or []
        for name in names:
            if names.count(name) > 1:
                raise DataError(f"it has the column {name} more than once; rename one of them")
        for number in count(1):
            yield _entry(number, _next_fields, reader)


def _entry(
    number: int,
    read: Callable[[Any], Row],
    raw: Any,
) -> Entry:
    try:
        return Entry(number, read(raw))
    except DataError as error:
        return Entry(number, None, str(error))


def _next_fields(reader: "csv.DictReader[str]") -> Row:
    """The next row of a CSV file.

    pandas would drop a row that is too long, and fill up one that is too short.
    """
    try:
        row = next(reader)
    except csv.Error as error:
        raise DataError(f"not CSV ({error})") from error
    # Extra fields have None as their key, missing ones as value.
    if None in row or None in row.values():
        raise DataError("more or fewer fields than the header")
    text = "".join(row.values())
    if "\0" in text:
        raise DataError("zero bytes, as a crash leaves them")
    decoded(text.encode(errors="surrogateescape"))
    return row


def read_references(
    rows: list[Row],
    problem_key: str,
    answer_key: str,
    grader: str,
    source: str,
) -> list[Reference]:
    """The `read_reference` of each row; its errors become a DataError with source and row."""
    references = []
    fault = "the answer begins as a label and cannot be read ({reason})"
    for number, row in enumerate(rows, 1):
        with reader_errors(f"{source}, row {number}: {fault}; give the reference answer alone"):
            references.append(read_reference(row, problem_key, answer_key, grader))
    return references


def read_reference(
    row: Row,
    problem_key: str,
    answer_key: str,
    grader: str,
) -> Reference:
    """The reference answer in a row, cleaned.

    For other graders than math-verify it has the problem and the other columns, too. An answer that
    no response could state stays as it is, and so does an object (as JSON).
    The answer may be a label, as in `prompts.jsonl` of a run.

    Raises ValueError for an answer that begins as a label and is none.
    """
    given = row[answer_key]
    if isinstance(given, Decimal):
        is_whole = given.is_finite() and given == int(given)
        given = str(int(given) if is_whole else given)
    label = Reference.parse(given)
    answer = label.answer
    if isinstance(given, list | dict):
        answer = json.dumps(given, ensure_ascii=False, default=str)
    if find_verifier(grader).answer_is_text:
        normal = normal_answer(label.answer if isinstance(given, str) else given)
        if normal or grader == MATH:
            answer = normal
    if grader == MATH:
        return Reference(answer)
    keys = (problem_key, answer_key)
    others = {name: value for name, value in row.items() if name not in keys}
    problem = label.problem or problem_text(row[problem_key])
    return Reference(answer, problem, {**others, **label.metadata})


def read_chat(problem: object) -> tuple[list[Row], str | None]:
    """A problem as a chat that ends with the user's turn, and what is wrong with it.

    The problem is a text, or a list of messages (perhaps as text) of `role` and `content` (text or
    parts). What is wrong follows "dropped with".
    """
    messages = _listed_chat(problem) if isinstance(problem, str) else problem
    if isinstance(messages, str) and messages.strip():
        return [{"role": "user", "content": messages}], None
    if not isinstance(messages, list) or not messages:
        return [], EMPTY_PROBLEM
    chat = []
    for message in messages:
        turn = _read_turn(message)
        if turn is None:
            return [], "a chat whose messages are no texts with role and content"
        chat.append(turn)
    last = chat[-1]["role"]
    if last != "user":
        return [], f"a chat that ends with the {last}'s turn"
    return chat, None


def _listed_chat(text: str) -> object:
    """The messages of a chat that JSON or Python wrote as text; any other text as it is."""
    if re.match(r"\s*\[\s*\{\s*[\"'](?:role|content)[\"']\s*:", text):
        for read in (json.loads, ast.literal_eval):
            with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
                return read(text.strip())
    return text


def _read_turn(message: object) -> Row | None:
    """A message of a chat as `role` and `content`; None unless both are texts."""
    if not isinstance(message, dict):
        return None
    role = message.get("role")
    content = message.get("content")
    if isinstance(content, list):
        content = _join_parts(content)
    if not isinstance(role, str) or not isinstance(content, str) or not content:
        return None
    return {"role": role, "content": content}


def _join_parts(parts: list[object]) -> str:
    """The parts of a message's content as one text; "" if one has no text."""
    texts = [part.get("text") if isinstance(part, dict) else None for part in parts]
    return "" if None in texts else "\n".join(map(str, texts))


def problem_text(problem: object) -> str:
    """A problem as text: of a chat, what its user says."""
    if not isinstance(problem, list):
        return str(problem)
    texts = []
    for message in problem:
        if isinstance(message, dict) and message.get("role") == "user":
            texts.append(str(message.get("content", "")))
    return "\n".join(texts)


def states_answer(problem: str, answer: str) -> bool:
    r"""Whether a problem ends with its answer, as `Answer: 5`, `#### 5` or `\boxed{5}`."""
    announced = [found.end() for found in _ANNOUNCED.finditer(problem)]
    bare = strip_answer(answer)
    if not announced or not bare:
        return False
    stated = problem[announced[-1] :].lstrip(" $*:({\n")
    return stated.startswith(bare) and not _LONGER.match(stated, len(bare))


def find_faults(
    references: Sequence[Reference],
    grader: str,
    command: str,
) -> list[str | None]:
    """What is wrong with each reference answer, to follow "dropped with".

    The progress bar names the command.
    """
    if grader != MATH:
        find_fault = find_verifier(grader).find_fault
        return [find_fault(reference.answer, reference.metadata) for reference in references]
    faults: dict[str, str | None] = {}
    for reference in references:
        faults[reference.answer] = visible_fault(reference.answer)
    tried = [answer for answer, fault in faults.items() if fault is None]
    good = find_gradable(tried, command)
    for answer in tried:
        if answer not in good:
            faults[answer] = UNPARSABLE_ANSWER
    return [faults[reference.answer] for reference in references]


def try_grader(grader: str, references: Sequence[Reference]) -> None:
    """Raise ConfigError for a grader that fails on empty responses to the first problems."""
    if grader == MATH:
        return
    pool = Grader(processes=1, verifier=grader)
    tried = [("", reference) for reference in references[:TRIED]]
    grades = pool.grade_many(tried)
    pool.close()
    for number, grade in enumerate(grades, 1):
        if grade.status in ("error", "timeout"):
            raise ConfigError(
                f"{FLAG} is {grader}, which fails on an empty response to row {number}: "
                f"{grade.why or grade.status}"
            )


def find_gradable(given: Iterable[str], label: str) -> set[str]:
    """The answers that math-verify can grade against.

    Each is tried once, on all cores, with a progress bar. Good answers are remembered for later
    calls, in other processes too; the others are tried again.
    """
    distinct = set(given)
    memory = remembered_file()
    known = set(map(str, read_rows(memory)))
    simple = {answer for answer in distinct if NUMBER.fullmatch(answer)}
    new = sorted(distinct - known - simple)
    cores = len(os.sched_getaffinity(0))
    grader = Grader(processes=min(cores, 1 + len(new) // ANSWERS_A_PROCESS))
    good: set[str] = set()
    starts = range(0, len(new), GRADED_AT_ONCE)
    unit = f"{GRADED_AT_ONCE} answers"
    title = f"[{label}] parsing answers"
    for start in tqdm(starts, desc=title, unit=unit, leave=False, disable=not new):
        part = new[start : start + GRADED_AT_ONCE]
        good.update(compress(part, grader.is_gradable(part)))
    grader.close()
    if good:
        with suppress(OSError):  # the disk need not let us
            memory.parent.mkdir(parents=True, exist_ok=True)
            write_rows(memory, sorted(known | good))
    return (known | good | simple) & distinct


def remembered_file() -> Path:
    """Where good answers are remembered: one file for each version of the grader."""
    code = hashlib.sha256(version("math-verify").encode())
    for file in sorted(Path(answers.__file__).parent.glob("*.py")):
        code.update(file.read_bytes())
    folder = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(folder) / "openrlhf_swap" / f"answers_{code.hexdigest()[:16]}.jsonl"


def examples(pairs: Iterable[tuple[object, str]]) -> list[str]:
    """Answers of a data set, one line each, as graded and as given: changed ones first."""
    changed: dict[str, None] = {}
    same: dict[str, None] = {}
    for given, answer in pairs:
        text = str(given)
        bare = strip_answer(answer)
        if len(text) > 40:
            text = "..." + text[-36:]
        if text.strip("$") == bare:
            same[repr(bare)] = None
        else:
            changed[f"{bare!r} (from {text!r})"] = None
    return [*changed, *same][:EXAMPLES]

"""The reference answers of data sets: read from a row, and checked before anything is trained."""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from decimal import Decimal
from importlib.metadata import version
from itertools import compress
from pathlib import Path

from tqdm import tqdm

from openrlhf_swap.data.chats import problem_text
from openrlhf_swap.errors import ConfigError, reader_errors
from openrlhf_swap.files import Row, read_rows, write_rows
from openrlhf_swap.rewards import Grader, answers
from openrlhf_swap.rewards.answers import (
    NUMBER,
    UNPARSABLE_ANSWER,
    normal_answer,
    strip_answer,
    visible_fault,
)
from openrlhf_swap.rewards.references import Reference
from openrlhf_swap.rewards.verifiers import GRADER_FLAG, MATH, find_verifier

ANSWERS_A_PROCESS = 64  # a grading process that starts for fewer costs more than it saves
GRADED_AT_ONCE = 256
EXAMPLES = 5
LONGEST_SHOWN = 40  # characters of an answer in a message
TRIED_ANSWERS = 3  # reference answers that a verifier is called with before a run starts
STATED_ANSWER = "a problem that states its answer"
# What stands before an answer.
_ANNOUNCED = re.compile(
    r"\\boxed\s*\{|####|\banswers?(?:\s+is)?\s*[:=]|\banswer\s+is\b|答案\s*[是为]?\s*[:\uff1a]?",
    re.IGNORECASE,
)
_LONGER = re.compile(r"\w|[.,]\d|\s*(?:[-+/^_=]|\*(?!\*))")  # as an answer that goes on begins


def read_references(
    rows: Iterable[Row], problem_key: str, answer_key: str, grader: str, source: str
) -> Iterator[Reference]:
    """The reference in each row; the error for a bad row names the source and its number."""
    for number, row in enumerate(rows, 1):
        yield named_reference(row, problem_key, answer_key, grader, f"{source}, row {number}")


def named_reference(
    row: Row, problem_key: str, answer_key: str, grader: str, called: str
) -> Reference:
    """The reference in a row; its errors become a DataError with what the row is called."""
    fault = "the answer begins as a label and cannot be read ({reason})"
    with reader_errors(f"{called}: {fault}; give the reference answer alone"):
        return read_reference(row, problem_key, answer_key, grader)


def read_reference(row: Row, problem_key: str, answer_key: str, grader: str) -> Reference:
    """The reference in a row, with its answer in normal form.

    For another grader than math-verify it has the problem and the other columns, too. Such a
    grader's answer stays as it is if no response could state it, or if it has no normal form; a
    list or an object becomes JSON. The answer may be a label, as in `prompts.jsonl` of a run.

    Raises ValueError for an answer that begins as a label and is none.
    """
    given = row[answer_key]
    if isinstance(given, Decimal):
        given = _decimal_text(given)
    label = Reference.parse(given)
    if grader == MATH:
        return Reference(normal_answer(label.answer if isinstance(given, str) else given))
    answer = label.answer
    if isinstance(given, list | dict):
        answer = json.dumps(given, ensure_ascii=False, default=str)
    if find_verifier(grader).answer_is_text:
        answer = normal_answer(label.answer if isinstance(given, str) else given) or answer
    keys = (problem_key, answer_key)
    others = {name: value for name, value in row.items() if name not in keys}
    problem = label.problem or problem_text(row[problem_key])
    return Reference(answer, problem, {**others, **label.metadata})


def _decimal_text(number: Decimal) -> str:
    """A decimal as text; 10.00 as 10."""
    is_whole = number.is_finite() and number == int(number)
    return str(int(number) if is_whole else number)


def states_answer(problem: str, answer: str) -> bool:
    r"""Whether a problem ends with its answer, as `Answer: 5`, `#### 5` or `\boxed{5}`."""
    announced = [found.end() for found in _ANNOUNCED.finditer(problem)]
    bare = strip_answer(answer)
    if not announced or not bare:
        return False
    stated = problem[announced[-1] :].lstrip(" $*:({\n")
    return stated.startswith(bare) and not _LONGER.match(stated, len(bare))


def find_faults(references: Sequence[Reference], grader: str, command: str) -> list[str | None]:
    """What is wrong with each reference answer, worded to follow "dropped with"; None for nothing.

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
    tried = [("", reference) for reference in references[:TRIED_ANSWERS]]
    grades = pool.grade_many(tried)
    pool.close()
    for number, grade in enumerate(grades, 1):
        if grade.status in ("error", "timeout"):
            raise ConfigError(
                f"{GRADER_FLAG} is {grader}, which fails on an empty response to row {number}: "
                f"{grade.why or grade.status}"
            )


def find_gradable(given: Iterable[str], command: str) -> set[str]:
    """The answers that math-verify can grade against.

    Good answers are remembered for later calls, in other processes too; the others are tried again.
    The progress bar names the command.
    """
    distinct = set(given)
    numbers = {answer for answer in distinct if NUMBER.fullmatch(answer)}
    memory = remembered_file()
    remembered = set(map(str, read_rows(memory)))
    found = _try_answers(sorted(distinct - remembered - numbers), command)
    if found:
        with suppress(OSError):  # the disk need not let us
            memory.parent.mkdir(parents=True, exist_ok=True)
            write_rows(memory, sorted(remembered | found))
    return (remembered | found | numbers) & distinct


def _try_answers(tried: Sequence[str], command: str) -> set[str]:
    """Those of the answers that math-verify can grade against, tried once each on all cores."""
    cores = len(os.sched_getaffinity(0))
    grader = Grader(processes=min(cores, 1 + len(tried) // ANSWERS_A_PROCESS))
    found: set[str] = set()
    starts = tqdm(
        range(0, len(tried), GRADED_AT_ONCE),
        desc=f"[{command}] parsing answers",
        unit=f"{GRADED_AT_ONCE} answers",
        leave=False,
        disable=not tried,
    )
    for start in starts:
        part = tried[start : start + GRADED_AT_ONCE]
        found.update(compress(part, grader.is_gradable(part)))
    grader.close()
    return found


def remembered_file() -> Path:
    """Where good answers are remembered: one file for each version of the grader."""
    code = hashlib.sha256(version("math-verify").encode())
    for file in sorted(Path(answers.__file__).parent.iterdir()):
        if file.suffix in (".py", ".yaml"):
            code.update(file.read_bytes())
    folder = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(folder) / "openrlhf_swap" / f"answers_{code.hexdigest()[:16]}.jsonl"


def example_answers(pairs: Iterable[tuple[object, str]]) -> list[str]:
    """The `ExampleAnswers` of pairs of an answer as it is given and as it is graded."""
    examples = ExampleAnswers()
    for given, answer in pairs:
        examples.add(given, answer)
    return examples.lines()


class ExampleAnswers:
    """Some answers of a data set for the console: the first distinct ones."""

    def __init__(self) -> None:
        # Dictionaries as ordered sets.
        self._changed: dict[str, None] = {}
        self._same: dict[str, None] = {}

    def add(self, given: object, answer: str) -> None:
        """Take an answer as the data set gives it and as it is graded."""
        bare = strip_answer(answer)
        text = str(given)
        if len(text) > LONGEST_SHOWN:
            dots = "..."
            text = dots + text[len(dots) - LONGEST_SHOWN :]
        if text.strip("$") == bare:
            lines = self._same
            line = quoted(bare)
        else:
            lines = self._changed
            line = f"{quoted(bare)} (from {quoted(text)})"
        if len(lines) < EXAMPLES:
            lines[line] = None

    def lines(self) -> list[str]:
        """A line for each, changed ones first. If there are unchanged ones, the last is of them."""
        changed = [*self._changed]
        if self._same:
            changed = changed[: EXAMPLES - 1]
        return [*changed, *self._same][:EXAMPLES]


def quoted(text: str) -> str:
    r"""A text in quotes, with line ends as \n and the backslashes of LaTeX once."""
    return repr(text).replace("\\\\", "\\")

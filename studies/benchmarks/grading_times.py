"""Milliseconds that one grading takes: median of the tests' pairs, and worst of hostile responses.

    python -m studies.benchmarks.grading_times [--beside OTHER_CHECKOUT ...]

Each checkout grades the same texts in a process of its own, one after the other, after one round
that is not counted. CPU time counts, and a grading that reaches ten seconds ends there.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

from tabulate import tabulate

from openrlhf_swap.command import run_command

ROOT = Path(__file__).parents[2]
PAIRS = ROOT / "tests" / "stack" / "grading_pairs.jsonl"
HOSTILE = (
    *("1", ".", "√", "°", "。", "\n", "$", "{", "}", "(", r"\boxed{", r"\boxed{1} ", r"\bm{"),
    *("answer: ", "the answer is ", "is not ", "**\n", r"1\,000", "8 1/2, ", r"\sin 1^\circ"),
)
LENGTHS = (990, 100_000)  # characters; the first are taken apart
TIMER = r"""
import json, signal, sys, time
from openrlhf_swap.rewards.mathematics import verify
from openrlhf_swap.rewards.graded_text import text_after_thought

class Late(BaseException):
    pass

def late(number, frame):
    raise Late

def milliseconds(answer, response):
    metadata = {"thought_closed": "</think>" in response}
    started = time.process_time()
    signal.setitimer(signal.ITIMER_PROF, 10)
    try:
        verify("", answer, text_after_thought(response, "</think>"), metadata)
    except (Exception, Late):
        pass
    signal.setitimer(signal.ITIMER_PROF, 0)
    return 1000 * (time.process_time() - started)

signal.signal(signal.SIGPROF, late)
pairs, hostile = json.load(sys.stdin)
for pair in pairs[:100]:
    milliseconds(*pair)
print(json.dumps([[milliseconds(*pair) for pair in part] for part in (pairs, hostile)]))
"""


def main(argv: list[str]) -> None:
    """Print a table with a row for each checkout."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--beside", type=Path, nargs="*", default=[], metavar="CHECKOUT")
    checkouts = [ROOT, *parser.parse_args(argv).beside]
    rows = [json.loads(line) for line in PAIRS.read_text(encoding="utf-8").splitlines()]
    pairs = [(row["answer"], row["response"]) for row in rows]
    hostile = []
    for part in HOSTILE:
        for length in LENGTHS:
            text = part * (length // len(part))
            hostile += [("12", f"</think>{text}1"), ("12", f"</think>\\boxed{{2{text}}}")]
    table = []
    for checkout in checkouts:
        usual, worst = _time(checkout, pairs, hostile)
        slowest = hostile[worst.index(max(worst))][1]
        table.append([checkout.name, median(usual), max(usual), max(worst), repr(slowest[:40])])
    names = ("checkout", "median", "slowest pair", "slowest hostile", "which begins")
    print(tabulate(table, names, floatfmt=".2f"))


def _time(checkout: Path, *parts: list[tuple[str, str]]) -> list[list[float]]:
    """The milliseconds of each answer and response, by a checkout's grader."""
    done = subprocess.run(
        [sys.executable, "-c", TIMER],
        input=json.dumps(parts),
        env={**os.environ, "PYTHONPATH": str(checkout.absolute())},
        cwd=checkout,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    times: list[list[float]] = json.loads(done.stdout.splitlines()[-1])
    return times


if __name__ == "__main__":
    sys.exit(run_command(main))

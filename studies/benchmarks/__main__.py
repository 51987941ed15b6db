r"""Run all benchmarks at a small size and print their ratios in one table.

    python -m studies.benchmarks                    # a few minutes on two cores
    python -m studies.benchmarks driver logits      # only these
    python -m studies.benchmarks --whole            # each with its own defaults, as \
        studies/records/measurements.md has them

Each ratio is listed with what it compares; both sides are timed in one process. The benchmarks' own
output goes to stderr.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time

from tabulate import tabulate

# Flags that make each of them small.
SMALL = {
    "advantages": "--groups 32 --tokens 4000",
    "allocator": "--tokens 400 --layers 4 --repeats 2",
    "beside_trl": "--steps 2 --prompts 4 --responses 4 --tokens 100 --rows 8",
    "bfloat16": "--repeats 3",
    "drawing": "--repeats 5",
    "driver": "--responses 256 --tokens 3000",
    "evaluation": "--problems 50 --repeats 2",
    "grading_times": "",
    "logits": "--tokens 1500 --layers 4 --repeats 2",
    "need": "--lengths 1000 --layers 4 --repeats 2",
    "objectives": "--responses 128 --tokens 1000 --rounds 3",
    "policy_step": "",
    "scoring": "--lengths 2000 --layers 4 --repeats 2",
}
_RATIO = re.compile(r"^ratio ([\d.]+): (.*)$", re.MULTILINE)


def run(name: str, options: str) -> list[list[str]]:
    """Run a benchmark; returns rows of benchmark, ratio, meaning and the seconds that it took."""
    command = [sys.executable, "-W", "ignore", "-m", f"studies.benchmarks.{name}"]
    command += options.split()
    start = time.perf_counter()
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    seconds = f"{time.perf_counter() - start:.0f}"
    print(result.stdout, file=sys.stderr, flush=True)
    if result.returncode:
        return [[name, "-", f"failed with status {result.returncode}", seconds]]
    return [[name, ratio, meaning, seconds] for ratio, meaning in _RATIO.findall(result.stdout)]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"any of {', '.join(SMALL)} (default: all)"
    )
    parser.add_argument("--whole", action="store_true", help="run each at its default size")
    args = parser.parse_args()
    unknown = sorted(set(args.names) - set(SMALL))
    if unknown:
        parser.error(f"{unknown[0]} is not a benchmark; use any of {', '.join(SMALL)}")
    rows = []
    for name in args.names or SMALL:
        rows += run(name, "" if args.whole else SMALL[name])
    header = ["benchmark", "ratio", "of what to what", "seconds"]
    print(tabulate(rows, header, tablefmt="github", disable_numparse=True))
    return int(any(row[1] == "-" for row in rows))


if __name__ == "__main__":
    sys.exit(main())

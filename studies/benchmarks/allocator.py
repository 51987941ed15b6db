"""Passes on a CPU where freed memory stays with the process, against glibc's own defaults.

    python -m studies.benchmarks.allocator

A training on a CPU starts its processes with the first (`KEEPS_FREED_BLOCKS` in
`openrlhf_swap/integration/patches.py`). glibc reads these variables when a process starts, so each
side has a process of its own; the two take turns. Each makes updates and log-probability passes of
a random model with the sizes of SmolLM2-135M and a vocabulary of 151,936 words.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from dataclasses import asdict, dataclass
from statistics import median

from openrlhf_swap.integration.patches import KEEPS_FREED_BLOCKS
from studies.benchmarks.logits import make_model, make_step, peak_gib, seconds_of

SIDES = {"glibc's defaults": {}, "freed blocks stay": KEEPS_FREED_BLOCKS}
PASSES = ("update", "log-probabilities")


@dataclass(frozen=True)
class Measured:
    """A pass of one process."""

    seconds: float
    page_faults: int  # pages that the kernel filled with zeros
    peak_gib: float  # of the process since its start


def serve(args: argparse.Namespace) -> None:
    """Run the pass that each line of stdin names, and answer with a line of JSON."""
    model = make_model(args.vocabulary, args.layers)
    passes = dict(zip(PASSES, make_step(model, args.chunk, args.tokens), strict=True))
    for line in sys.stdin:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        seconds = seconds_of(passes[line.strip()])
        after = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        measured = Measured(seconds, after - before, peak_gib())
        print(json.dumps(asdict(measured)), flush=True)


def start(variables: dict[str, str]) -> subprocess.Popen[str]:
    """Start a process that serves passes, with these variables and none of the others."""
    inherited = {name: value for name, value in os.environ.items() if "MALLOC_" not in name}
    return subprocess.Popen(
        [sys.executable, "-m", "studies.benchmarks.allocator", *sys.argv[1:], "--serve"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=inherited | variables,
    )


def ask(process: subprocess.Popen[str], name: str) -> Measured:
    """Let a process run the pass of this name once."""
    assert process.stdin and process.stdout
    print(name, file=process.stdin, flush=True)
    return Measured(**json.loads(process.stdout.readline()))


def main() -> None:
    """Measure both sides in turn, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=1600)
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--chunk", type=int, default=256, help="tokens of a chunk of logits")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args)
        return
    processes = {side: start(variables) for side, variables in SIDES.items()}
    print("| pass | side | s | page faults | peak GiB |")
    print("|---|---|---|---|---|")
    ratios = {}
    for name in PASSES:
        results: dict[str, list[Measured]] = {side: [] for side in SIDES}
        for repeat in range(args.repeats + 1):
            for side, process in processes.items():
                measured = ask(process, name)
                if repeat:  # the first round warms up
                    results[side].append(measured)
        medians = []
        for side, measured_of_side in results.items():
            seconds = median(measured.seconds for measured in measured_of_side)
            faults = median(measured.page_faults for measured in measured_of_side)
            peak = measured_of_side[-1].peak_gib
            print(f"| {name} | {side} | {seconds:.2f} | {faults:,.0f} | {peak:.2f} |", flush=True)
            medians.append(seconds)
        default, kept = medians
        ratios[name] = default / kept
    for process in processes.values():
        process.communicate()  # ends at the end of its input
    for name, ratio in ratios.items():
        print(f"ratio {ratio:.2f}: glibc's defaults / freed blocks stay, {name} on a CPU")


if __name__ == "__main__":
    main()

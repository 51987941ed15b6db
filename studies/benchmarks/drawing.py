"""Drawing tokens on a CPU by one number each, against vLLM's exponential numbers.

    python -m studies.benchmarks.drawing

Both draw a token for each of as many responses as a step of `scripts/instruct.yaml` has, from the
logits of a vocabulary of 151,936 words, in turn in one process; with a generator for each row, as
`eval run` has them, and without.
"""

from __future__ import annotations

import argparse
import time
from statistics import median

import torch

from openrlhf_swap.integration.patches import CPU_COMMAND, install


def main() -> None:
    """Measure both sides in turn, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--repeats", type=int, default=15)
    args = parser.parse_args()
    install(CPU_COMMAND)  # before vLLM is imported, as in a run

    from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler

    from openrlhf_swap.integration.engine.drawing import draw_tokens

    sides = {"vLLM's": TopKTopPSampler.forward_cpu, "ours": draw_tokens}
    sampler = TopKTopPSampler("raw_logprobs")
    logits = torch.randn(args.rows, args.vocabulary, generator=torch.Generator().manual_seed(0))
    seeds = {row: torch.Generator().manual_seed(row) for row in range(args.rows)}
    ratios = {}
    print("| draws | side | s |")
    print("|---|---|---|")
    for name, generators in {"without seeds": {}, "with seeds": seeds}.items():
        seconds: dict[str, list[float]] = {side: [] for side in sides}
        for repeat in range(args.repeats + 1):
            for side, draw in sides.items():
                start = time.perf_counter()
                draw(sampler, logits, generators, None, None)
                if repeat:  # the first round warms up
                    seconds[side].append(time.perf_counter() - start)
        medians = {side: median(values) for side, values in seconds.items()}
        for side, value in medians.items():
            print(f"| {name} | {side} | {value:.3f} |")
        ratios[name] = medians["vLLM's"] / medians["ours"]
    for name, ratio in ratios.items():
        print(f"ratio {ratio:.2f}: vLLM's sampler / ours, {args.rows} tokens {name} on a CPU")


if __name__ == "__main__":
    main()

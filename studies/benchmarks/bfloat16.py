"""A forward and backward pass in bfloat16 on the CPU: torch's matrix products against ours.

    python -m studies.benchmarks.bfloat16

The quickstart's policy reads responses of 100 tokens, with torch's kernels and with those of
`openrlhf_swap.packages.kernels` in turn. A run takes ours only on a processor without instructions
for bfloat16 products; the first line says whether this one has them.
"""

from __future__ import annotations

import argparse
import time
from statistics import median

import torch
from transformers import AutoModelForCausalLM

from openrlhf_swap.packages.kernels import has_fast_products, widened_products
from openrlhf_swap.quickstart import POLICY


def update(model: torch.nn.Module, tokens: torch.Tensor) -> float:
    """Seconds of a forward and a backward pass."""
    start = time.perf_counter()
    model(input_ids=tokens, labels=tokens).loss.backward()
    return time.perf_counter() - start


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--responses", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(POLICY, dtype=torch.bfloat16)
    tokens = torch.randint(3, len(model.get_input_embeddings().weight), (args.responses, 100))
    seconds: dict[str, list[float]] = {"torch": [], "ours": []}
    update(model, tokens)
    for _ in range(args.repeats):
        seconds["torch"].append(update(model, tokens))
        library = widened_products()
        seconds["ours"].append(update(model, tokens))
        library._destroy()
    theirs, ours = (median(values) for values in seconds.values())
    print(
        f"this processor has {'' if has_fast_products() else 'no '}instructions for bfloat16 "
        "products; one thread"
    )
    print(f"torch's {theirs:.3f} s, ours {ours:.3f} s")
    print(
        f"ratio {theirs / ours:.2f}: torch's bfloat16 products / ours, forward and backward of "
        "the quickstart's policy"
    )


if __name__ == "__main__":
    main()

"""What scoring every prefix costs: per prefix, and with the shared prefix, against the plain forward.

    python benchmarks/scoring.py --lengths 1000 4000 12000

Builds a random model of the given shape (Qwen2), runs all three on the same response in one process and prints, for
each length: seconds of the plain forward that OpenRLHF's actor runs anyway (all logits), of the scoring on top of it,
of the per-prefix reference, the largest difference between the two scorers, and the memory at the peak.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from openrlhf_swap.scoring.answer import AnswerBranch
from openrlhf_swap.scoring.per_prefix import score_per_prefix
from openrlhf_swap.scoring.shared_prefix import ScoreRequest, score_branches

PROMPT_TOKENS = 100
ANSWER_TOKENS = 6


def build_model(args: argparse.Namespace, device: str) -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=args.vocabulary,
        hidden_size=args.hidden,
        intermediate_size=args.intermediate,
        num_hidden_layers=args.layers,
        num_attention_heads=args.heads,
        num_key_value_heads=args.kv_heads,
        max_position_embeddings=65536,
        tie_word_embeddings=True,
    )
    with torch.device(device):
        model = Qwen2ForCausalLM(config)
    model.set_attn_implementation("sdpa")
    return model.to(getattr(torch, args.dtype)).eval()


def best_seconds(functions: list[Callable[[], object]], device: str, repeats: int) -> list[float]:
    """The best of `repeats` times of each function, after a round to warm up; the rounds are interleaved."""
    best = [float("inf")] * len(functions)
    for repeat in range(repeats + 1):
        for number, function in enumerate(functions):
            if device == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
            function()
            if device == "cuda":
                torch.cuda.synchronize()
            if repeat > 0:
                best[number] = min(best[number], time.perf_counter() - start)
    return best


def measure(model: Qwen2ForCausalLM, length: int, args: argparse.Namespace, device: str) -> str:
    """One row of the table."""
    total = PROMPT_TOKENS + length
    ids = torch.randint(0, args.vocabulary, (1, total), device=device)
    ends = [PROMPT_TOKENS - 1 + (k * length) // args.steps for k in range(args.steps + 1)]
    template = args.branch - ANSWER_TOKENS
    branch = AnswerBranch(
        tuple(torch.randint(0, args.vocabulary, (args.branch,)).tolist()),
        tuple(position >= template for position in range(args.branch)),
    )
    mask = torch.ones_like(ids)
    request = ScoreRequest(0, tuple(ends), branch)

    with torch.no_grad():
        cache = model(ids, use_cache=True, logits_to_keep=1).past_key_values
        plain, cached, branches = best_seconds(
            [
                lambda: model(ids, use_cache=False),
                lambda: model(ids, use_cache=True),
                lambda: score_branches(model, model.config, cache, ids, mask, [request]),
            ],
            device,
            args.repeats,
        )
        (shared,) = score_branches(model, model.config, cache, ids, mask, [request])
        start = time.perf_counter()
        reference = score_per_prefix(model, ids[0], [end + 1 for end in ends], branch).cpu()
        per_prefix = time.perf_counter() - start
    added = cached - plain + branches
    difference = (shared - reference).abs().max().item()
    if device == "cuda":
        peak = torch.cuda.max_memory_allocated() / 2**30
    else:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return (
        f"| {length} | {plain:.3f} | {added:.3f} ({added / plain:+.1%}) | {per_prefix:.3f} "
        f"({per_prefix / plain:.1f}x) | {per_prefix / (plain + added):.1f}x | {difference:.1e} | {peak:.1f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1000, 4000, 12000], help="response tokens")
    parser.add_argument("--steps", type=int, default=25, help="K")
    parser.add_argument("--branch", type=int, default=24, help="tokens of close template and answer")
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--intermediate", type=int, default=1408)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--kv-heads", type=int, default=2)
    parser.add_argument("--vocabulary", type=int, default=32_000)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = build_model(args, device)
    parameters = sum(p.numel() for p in model.parameters()) / 1e6
    print(
        f"{parameters:.0f}M parameters, {args.dtype}, {device}, {torch.get_num_threads()} threads, "
        f"K = {args.steps}, {args.branch}-token branch"
    )
    print("| tokens | plain forward s | scoring adds s | per prefix s | cheaper | difference | peak GiB |")
    print("|---|---|---|---|---|---|---|")
    for length in args.lengths:
        print(measure(model, length, args, device), flush=True)


if __name__ == "__main__":
    main()

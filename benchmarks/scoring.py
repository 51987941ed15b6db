"""What scoring every prefix costs: per prefix, and with the shared prefix, against the plain forward.

    python -m benchmarks.scoring --families qwen2 gemma3_text qwen3_5_text deepseek_v3 --lengths 4000 12000

Builds a random model of the given width in each family: keys of all tokens (qwen2), windows (gemma3_text), recurrent
layers (qwen3_5_text), latent attention (deepseek_v3). Runs all three on the same response in one process and prints,
for each length: seconds of the plain forward that OpenRLHF's actor runs anyway (all logits), of what the scoring adds
to it, of the per-prefix reference, the largest difference between the two scorers, and the memory at the peak.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedModel

from openrlhf_swap.scoring.answer import AnswerBranch
from openrlhf_swap.scoring.per_prefix import score_per_prefix
from openrlhf_swap.scoring.shared_prefix import ScoreRequest, remembering, score_branches

PROMPT_TOKENS = 100
ANSWER_TOKENS = 6


def family_settings(args: argparse.Namespace) -> dict[str, dict[str, object]]:
    """What each family's configuration takes beside the common sizes."""
    head = args.hidden // args.heads
    kinds = ["full_attention" if layer % 6 == 5 else "sliding_attention" for layer in range(args.layers)]
    return {
        "qwen2": {},
        "gemma3_text": {"head_dim": head, "sliding_window": 1024, "layer_types": kinds},
        "qwen3_5_text": {
            "head_dim": head,
            "linear_num_key_heads": args.heads,
            "linear_num_value_heads": args.heads,
            "linear_key_head_dim": head,
            "linear_value_head_dim": head,
        },
        "deepseek_v3": {
            "num_key_value_heads": args.heads,
            "q_lora_rank": args.hidden // 2,
            "kv_lora_rank": args.hidden // 4,
            "qk_nope_head_dim": head,
            "qk_rope_head_dim": head // 2,
            "v_head_dim": head,
            "n_routed_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": args.intermediate // 4,
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 1,
        },
    }


def build_model(family: str, args: argparse.Namespace, device: str) -> PreTrainedModel:
    torch.manual_seed(0)
    sizes = {
        "vocab_size": args.vocabulary,
        "hidden_size": args.hidden,
        "intermediate_size": args.intermediate,
        "num_hidden_layers": args.layers,
        "num_attention_heads": args.heads,
        "num_key_value_heads": args.kv_heads,
        "max_position_embeddings": 65536,
        "tie_word_embeddings": True,
    }
    config = CONFIG_MAPPING[family](**{**sizes, **family_settings(args)[family]})
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
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


def table_row(model: PreTrainedModel, length: int, args: argparse.Namespace, device: str) -> tuple[str, float]:
    """One row of the table, and the log-probability pass with scores to the plain one."""
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

    def fused() -> list[torch.Tensor]:
        """The plain forward, kept, and the branches."""
        with remembering(model, model.config, mask, [request]) as cache:
            model(ids, attention_mask=mask, use_cache=True, past_key_values=cache)
        return score_branches(model, model.config, cache, ids, mask, [request])

    with torch.no_grad():
        plain, both = best_seconds(
            [lambda: model(ids, attention_mask=mask, use_cache=False), fused], device, args.repeats
        )
        (shared,) = fused()
        start = time.perf_counter()
        reference = score_per_prefix(model, ids[0], [end + 1 for end in ends], branch).cpu()
        per_prefix = time.perf_counter() - start
    difference = (shared - reference).abs().max().item()
    if device == "cuda":
        peak = torch.cuda.max_memory_allocated() / 2**30
    else:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    row = (
        f"| {model.config.model_type} | {length} | {plain:.3f} | {both - plain:.3f} ({both / plain - 1:+.1%}) "
        f"| {per_prefix:.3f} ({per_prefix / plain:.1f}x) | {(plain + per_prefix) / both:.1f}x | {difference:.1e} "
        f"| {peak:.1f} |"
    )
    return row, both / plain


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+", default=["qwen2"], help="of qwen2, gemma3_text, qwen3_5_text, ...")
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
    print(
        f"{args.dtype}, {device}, {torch.get_num_threads()} threads, K = {args.steps}, {args.branch}-token branch, "
        f"best of {args.repeats}"
    )
    print("| family | tokens | plain forward s | scoring adds s | per prefix s | cheaper | difference | peak GiB |")
    print("|---|---|---|---|---|---|---|---|")
    for family in args.families:
        model = build_model(family, args, device)
        for length in args.lengths:
            row, ratio = table_row(model, length, args, device)
            print(row, flush=True)
        print(f"{family}: {sum(weights.numel() for weights in model.parameters()) / 1e6:.0f}M parameters")
        print(f"ratio {ratio:.2f}: log-probabilities with scores, to without, {family}, {length} tokens")


if __name__ == "__main__":
    main()

r"""What scoring every prefix costs: alone and with the shared prefix, against a plain forward.

    python -m studies.benchmarks.scoring --families qwen2 gemma3_text qwen3_5_text deepseek_v3 \
        --lengths 4000 12000
    python -m studies.benchmarks.scoring --lengths 4000 --shares 0.4 0.3 0.2 0.1

Builds a random model of the given width in each family: full attention (qwen2), windows
(gemma3_text), recurrent layers (qwen3_5_text), latent attention (deepseek_v3). Runs all three on
the same response in one process and prints for each length: the seconds of the plain forward that
OpenRLHF's actor runs anyway (all logits), what scoring adds to them (also in CPU time), the seconds
of the per-prefix reference, the largest difference between the two scorers, and the peak memory
without and with scores. With --shares the tokens are split over several responses, both padded in a
batch and packed into one row.
"""

from __future__ import annotations

import argparse
import re
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedModel

from openrlhf_swap.scoring.answer import AnswerBranch, ScoreRequest, read_per_prefix
from openrlhf_swap.scoring.shared_prefix import BranchedRows

PROMPT_TOKENS = 100
ANSWER_TOKENS = 6


def family_settings(args: argparse.Namespace) -> dict[str, dict[str, object]]:
    """Settings of each family's configuration in addition to the common sizes."""
    head = args.hidden // args.heads
    kinds = [
        "full_attention" if layer % 6 == 5 else "sliding_attention" for layer in range(args.layers)
    ]
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


class Seconds(NamedTuple):
    """Medians; CPU time, over all threads, says more on a busy machine."""

    wall: float
    cpu: float


def median_seconds(
    functions: list[Callable[[], object]], device: str, repeats: int
) -> list[Seconds]:
    """Median seconds of `repeats` runs of each function, in turn and in alternating order."""
    times: list[list[Seconds]] = [[] for _ in functions]
    for repeat in range(repeats):
        order = range(len(functions)) if repeat % 2 else reversed(range(len(functions)))
        for number in order:
            if device == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
            cpu = time.process_time()
            functions[number]()
            if device == "cuda":
                torch.cuda.synchronize()
            times[number].append(Seconds(time.perf_counter() - start, time.process_time() - cpu))
    return [Seconds(*map(statistics.median, zip(*each, strict=True))) for each in times]


@dataclass
class Case:
    """Random responses in one batch, padded on the right, each with its prefixes to score.

    Attributes:
        model: of one family.
        ids: (B, T) int64.
        mask: (B, T).
        requests: one per row.
    """

    model: PreTrainedModel
    ids: torch.Tensor
    mask: torch.Tensor
    requests: list[ScoreRequest]

    @classmethod
    def build(
        cls, model: PreTrainedModel, lengths: list[int], args: argparse.Namespace, device: str
    ) -> Case:
        """Build responses of these lengths; a shorter one has fewer steps."""
        rows = len(lengths)
        width = PROMPT_TOKENS + max(lengths)
        template = args.branch - ANSWER_TOKENS
        branch = AnswerBranch(
            tuple(torch.randint(0, args.vocabulary, (args.branch,)).tolist()),
            tuple(position >= template for position in range(args.branch)),
        )
        requests = []
        for row, length in enumerate(lengths):
            steps = max(1, round(args.steps * length / max(lengths)))
            ends = [PROMPT_TOKENS - 1 + (k * length) // steps for k in range(steps + 1)]
            requests.append(ScoreRequest(row, tuple(ends), branch))
        counts = torch.tensor(lengths, device=device).unsqueeze(-1) + PROMPT_TOKENS
        mask = (torch.arange(width, device=device) < counts).long()
        return cls(
            model, torch.randint(0, args.vocabulary, (rows, width), device=device), mask, requests
        )

    def _rows(self, packed: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """Token and position ids of the pass."""
        positions = (self.mask.cumsum(-1) - 1).clamp(min=0)
        if packed:
            return self.ids[self.mask.bool()][None], positions[self.mask.bool()][None]
        return self.ids, positions

    def plain(self, packed: bool) -> None:
        """Run the pass that gives the log-probabilities, here with all logits."""
        ids, positions = self._rows(packed)
        self.model(
            ids,
            position_ids=positions,
            attention_mask=None if packed else self.mask,
            use_cache=False,
        )

    def fused(self, packed: bool) -> list[torch.Tensor]:
        """Run the same pass with the branches behind its rows."""
        rows = BranchedRows(self.model, self.mask, self.requests, packed)
        at_rows, columns = rows.predicting
        of_branches, places = columns.unique(return_inverse=True)
        kept = torch.cat([torch.arange(rows.tokens, device=columns.device), of_branches])
        with rows.branching():
            logits = self.model(**rows.inputs(*self._rows(packed)), logits_to_keep=kept).logits
        logits = logits[at_rows, rows.tokens + places].float()
        log_probs = logits.log_softmax(-1).gather(-1, rows.targets[:, None])
        return rows.scores(log_probs.squeeze(-1))

    def per_prefix(self) -> list[torch.Tensor]:
        """Run one forward for each prefix."""
        found = []
        for each in self.requests:
            lengths = [end + 1 for end in each.prefix_ends]
            read = read_per_prefix(self.model, self.ids[each.row], lengths, each.branch)
            found.append(read.cpu())
        return found


def peak_gib(function: Callable[[], object], device: str) -> float:
    """Peak memory while a function runs: of the process, or allocated on the GPU."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        function()
        return torch.cuda.max_memory_allocated() / 2**30
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    function()
    (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(peak) / 2**20


def table_row(case: Case, packed: bool, args: argparse.Namespace, device: str) -> tuple[str, float]:
    """One row of the table, and the time of the pass with scores relative to the plain one."""
    with torch.no_grad():
        Case.build(case.model, [PROMPT_TOKENS], args, device).fused(packed)  # to warm up
        passes = [lambda: case.plain(packed), lambda: case.fused(packed)]
        plain, both = median_seconds(passes, device, args.repeats)
        peaks = [peak_gib(run, device) for run in passes]
        reference = ["-"] * 3
        if not args.without_reference:
            together = torch.cat(case.fused(packed))
            start = time.perf_counter()
            difference = (together - torch.cat(case.per_prefix())).abs().max().item()
            seconds = time.perf_counter() - start
            reference = [
                f"{seconds:.3f} ({seconds / plain.wall:.1f}x)",
                f"{(plain.wall + seconds) / both.wall:.1f}x",
            ]
            reference.append(f"{difference:.1e}")
    tokens = f"{len(case.ids)} {'packed' if packed else 'padded'}: " if len(case.ids) > 1 else ""
    tokens += f"{int(case.mask.sum()) - PROMPT_TOKENS * len(case.ids)}"
    row = (
        f"| {case.model.config.model_type} | {tokens} | {plain.wall:.3f} | "
        f"{both.wall - plain.wall:.3f} "
        f"({both.wall / plain.wall - 1:+.1%}) | {both.cpu / plain.cpu - 1:+.1%} "
        f"| {' | '.join(reference)} | {peaks[0]:.2f} | {peaks[1]:.2f} |"
    )
    return row, both.wall / plain.wall


def model_parser(description: str | None) -> argparse.ArgumentParser:
    """The flags of a random model and its responses."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--lengths", type=int, nargs="+", default=[1000, 4000, 12000], help="response tokens"
    )
    parser.add_argument("--steps", type=int, default=25, help="K of the longest response")
    parser.add_argument(
        "--branch", type=int, default=24, help="tokens of close template and answer"
    )
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--intermediate", type=int, default=1408)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--kv-heads", type=int, default=2)
    parser.add_argument("--vocabulary", type=int, default=32_000)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--repeats", type=int, default=3)
    return parser


def main() -> None:
    parser = model_parser(__doc__)
    parser.add_argument(
        "--families",
        nargs="+",
        default=["qwen2"],
        help="any of qwen2, gemma3_text, qwen3_5_text, ...",
    )
    parser.add_argument(
        "--shares",
        type=float,
        nargs="+",
        default=[1.0],
        help="share of the tokens of each response",
    )
    parser.add_argument(
        "--without-reference", action="store_true", help="do not score prefix by prefix as well"
    )
    args = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(
        f"{args.dtype}, {device}, {torch.get_num_threads()} threads, K = {args.steps}, "
        f"{args.branch}-token branch, "
        f"medians of {args.repeats}"
    )
    print(
        "| family | tokens | plain forward s | scoring adds s | CPU | per prefix s | cheaper | "
        "difference ",
        end="",
    )
    print("| plain peak GiB | with scores |\n|---|---|---|---|---|---|---|---|---|---|")
    for family in args.families:
        model = build_model(family, args, device)
        for length in args.lengths:
            case = Case.build(model, [round(length * share) for share in args.shares], args, device)
            for packed in (False, True)[: len(args.shares)]:
                row, ratio = table_row(case, packed, args, device)
                print(row, flush=True)
        print(
            f"{family}: {sum(weights.numel() for weights in model.parameters()) / 1e6:.0f}M "
            "parameters"
        )
        print(
            f"ratio {ratio:.2f}: log-probabilities with scores, to without, {family}, {length} "
            "tokens"
        )


if __name__ == "__main__":
    main()

"""Score all prefixes of a response in one short forward on top of the usual one.

The K+1 prefixes nest, so one forward over prompt and response computes the keys and values of all of them. A second
forward then runs the K+1 answer branches side by side: branch k sees the response up to e_k and itself, at the
positions that follow e_k.

Each branch starts with a second copy of the prefix's last token. It predicts the branch's first token, so that even
an empty close template needs nothing from the first forward but its keys, values and states.

`branch_attention.py` lets each branch attend to just the keys it sees, and `prefix_cache.py` keeps the states of
recurrent layers there. The branches run in several forwards if they exceed a budget of tokens or of memory.

Shapes: B rows, T tokens a row, R responses of one forward, M branches (prefixes) of each, Q tokens of a branch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig

from openrlhf_swap.scoring.answer import ScoreRequest
from openrlhf_swap.scoring.branch_attention import Branches, attending_branches
from openrlhf_swap.scoring.per_prefix import widen
from openrlhf_swap.scoring.prefix_cache import PrefixCache

MAX_MASK = 2**27  # elements of a forward's attention mask: 256 MiB in bfloat16
# On a GPU one forward of all branches costs less than several, though half of its attention scores are masked. A CPU
# would pay for that half, so there a forward has few branches, and keys up to the longest of their prefixes.
MAX_MASK_ON_CPU = 2**21

Piece = tuple[int, ScoreRequest]  # a request's number, and the request with some of its prefixes


@torch.no_grad()
def score_branches(
    model: Callable[..., Any],
    config: PretrainedConfig,
    cache: PrefixCache,
    sequences: Tensor,
    attention_mask: Tensor,
    requests: Sequence[ScoreRequest],
    agree: Callable[[int], int] = int,
    max_branch_tokens: int = 4096,
) -> list[Tensor]:
    """Score the requests on the cache of a forward that has already run.

    Args:
        model: the causal language model that filled `cache`, or its wrapper, in eval mode.
        config: the language model's own configuration object; its attention is replaced during the second forward.
        cache: of a forward within its `recording` of these requests; not modified.
        sequences: (B, T) int64 token ids, padded on either side.
        attention_mask: (B, T), 1 for tokens.
        requests: at most one per row.
        agree: maps this rank's number of forwards to the largest of all ranks that run in lockstep.
        max_branch_tokens: branch tokens run at a time, or fewer where their attention mask would grow too large.

    Returns:
        One (K+1,) tensor l_0..l_K per request, float32 (float64 for a float64 model), on the CPU.
    """
    if not requests:
        return []
    visible = attention_mask.bool()
    # A forward copies no more keys of a layer than the batch has, or twice as many if those are packed.
    max_keys = 2 * int(visible.sum()) if cache.packed else visible.numel()
    chunks = _chunks(requests, config, sequences.device, max_branch_tokens, max_keys)
    spare = agree(len(chunks)) - len(chunks)  # before the first of them: all ranks must be at the same call
    scored = [_score_chunk(model, config, cache, sequences, visible, chunk) for chunk in chunks]
    for _ in range(spare):
        _score_chunk(model, config, cache, sequences, visible, chunks[-1])
    parts: list[list[Tensor]] = [[] for _ in requests]
    for chunk, scores in zip(chunks, scored, strict=True):
        for (number, piece), row in zip(chunk, scores.cpu(), strict=True):
            parts[number].insert(0, row[: len(piece.prefix_ends)])  # the longest prefixes came first
    return [torch.cat(part) for part in parts]


@torch.no_grad()
def score_shared_prefix(
    model: Callable[..., Any],
    config: PretrainedConfig,
    sequences: Tensor,
    attention_mask: Tensor,
    requests: Sequence[ScoreRequest],
    agree: Callable[[int], int] = int,
    packed: bool = False,
    **options: Any,
) -> list[Tensor]:
    """Run both forwards, for callers that do not need the first one's logits.

    Args and result are those of `score_branches`; with `packed`, the first forward has all rows packed into one.
    """
    positions = (attention_mask.long().cumsum(-1) - 1).clamp(min=0)
    cache = PrefixCache(config, model, packed)
    with cache.recording(attention_mask, requests, agree):
        if packed:
            ids, positions = (part[attention_mask.bool()].unsqueeze(0) for part in (sequences, positions))
            model(ids, position_ids=positions, use_cache=False, logits_to_keep=1)
        else:
            padded = {"attention_mask": attention_mask, "use_cache": True, "past_key_values": cache}
            model(sequences, position_ids=positions, logits_to_keep=1, **padded)
    return score_branches(model, config, cache, sequences, attention_mask, requests, agree, **options)


def _chunks(
    requests: Sequence[ScoreRequest], config: PretrainedConfig, device: torch.device, max_tokens: int, max_keys: int
) -> list[list[Piece]]:
    """What runs in each forward: requests of similar lengths together, and those that are too large in pieces."""
    text = config.get_text_config()
    heads = getattr(text, "num_attention_heads", 1)
    stacked = heads // (getattr(text, "num_key_value_heads", None) or heads)
    max_mask = (MAX_MASK_ON_CPU if device.type == "cpu" else MAX_MASK) // stacked

    def fits(responses: int, branches: int, width: int, reach: int) -> bool:
        own = branches * width
        return responses * own <= max_tokens and responses * own * (reach + own) <= max_mask

    pieces: list[Piece] = []
    for number, request in enumerate(requests):
        ends, width = request.prefix_ends, len(request.branch.ids)
        while ends:
            size = next((size for size in range(len(ends), 1, -1) if fits(1, size, width, ends[-1])), 1)
            pieces.append((number, replace(request, prefix_ends=ends[-size:])))
            ends = ends[:-size]
    chunks: list[list[Piece]] = []
    for piece in sorted(pieces, key=lambda piece: piece[1].prefix_ends[-1], reverse=True):
        together = [request for _, request in [*(chunks[-1] if chunks else []), piece]]
        branches = max(len(request.prefix_ends) for request in together)
        width = max(len(request.branch.ids) for request in together)
        count, reach = len(together), together[0].prefix_ends[-1]
        if count > 1 and count * reach <= max_keys and fits(count, branches, width, reach):
            chunks[-1].append(piece)
        else:
            chunks.append([piece])
    return chunks


def _score_chunk(
    model: Callable[..., Any],
    config: PretrainedConfig,
    cache: PrefixCache,
    sequences: Tensor,
    visible: Tensor,
    chunk: Sequence[Piece],
) -> Tensor:
    """(R, M) scores of the pieces' prefixes, without a meaning where a piece has fewer than M."""
    requests = [request for _, request in chunk]
    prefix_ends = _filled_up([request.prefix_ends for request in requests])
    branch_ids = _filled_up([request.branch.ids for request in requests], 2)  # mixers may run other code for one token
    branch_scored = _filled_up([request.branch.scored for request in requests], 2)
    first_scored = min(row.index(True) for row in branch_scored)
    # Sent to the device once, so that no layer waits for them.
    rows, ends, ids, scored = (
        torch.tensor(values).to(sequences.device, non_blocking=True)
        for values in ([request.row for request in requests], prefix_ends, branch_ids, branch_scored)
    )
    (responses, most), width = ends.shape, ids.shape[1]

    counts, starts = visible.sum(-1), visible.int().argmax(-1)
    origins, starts = (counts.cumsum(-1) - counts - starts)[rows], starts[rows]
    where = (torch.zeros_like(rows), origins) if cache.packed else (rows, torch.zeros_like(rows))
    branches = Branches(cache, *where, starts, [request.prefix_ends for request in requests], ends, width)
    places = [(request.row, end) for request, row in zip(requests, prefix_ends, strict=True) for end in row]

    # The last branch token predicts nothing that is scored; the prefix's last token takes its place in front.
    last_ids = sequences[rows[:, None], ends]
    inputs = torch.cat([last_ids[..., None], ids[:, None, :-1].expand(-1, most, -1)], dim=-1)
    offsets = torch.arange(width, device=ends.device)
    positions = (ends - starts[:, None]).clamp(min=0)[..., None] + offsets
    kept = torch.arange(most, device=ends.device)[:, None] * width + offsets[first_scored:]
    with attending_branches(config, branches), cache.resumed(places, width):
        output = model(
            inputs.flatten(1), position_ids=positions.flatten(1), use_cache=False, logits_to_keep=kept.flatten()
        )
    logits = widen(output.logits.view(responses, most, width - first_scored, -1))
    targets = ids[:, None, first_scored:, None].expand(-1, most, -1, -1)
    logprobs = logits.gather(-1, targets).squeeze(-1) - logits.logsumexp(-1)
    scored = scored[:, None, first_scored:].bool()
    return torch.where(scored, logprobs, 0.0).sum(-1) / scored.sum(-1)


def _filled_up(rows: Sequence[Sequence[int]], least: int = 1) -> list[list[int]]:
    """The rows with zeros behind the shorter ones."""
    width = max(least, *map(len, rows))
    return [[*row, *[0] * (width - len(row))] for row in rows]

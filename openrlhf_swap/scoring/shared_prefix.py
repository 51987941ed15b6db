"""Score all prefixes of a response in one short forward on top of the usual one.

The K+1 prefixes nest, so one forward over prompt and response computes the keys and values of all of them. A second
forward then runs the K+1 answer branches side by side: branch k sees the response up to e_k and itself, at the
positions that follow e_k.

Each branch starts with a second copy of the prefix's last token. It predicts the branch's first token, so that even
an empty close template needs nothing from the first forward but its keys, values and states.

`branch_attention.py` lets each branch attend to just the keys it sees, and `prefix_cache.py` keeps the states of
recurrent layers there. The branches run in chunks if their tokens exceed a budget.

Shapes: B rows, T tokens a row, R responses to score, N branches (prefixes of all responses), Q tokens of a branch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, PretrainedConfig

from openrlhf_swap.scoring.answer import AnswerBranch
from openrlhf_swap.scoring.branch_attention import attending_branches
from openrlhf_swap.scoring.branch_layout import BranchLayout
from openrlhf_swap.scoring.per_prefix import widen
from openrlhf_swap.scoring.prefix_cache import PrefixCache

MOST_MASK = 2**27  # elements of a chunk's attention mask: 256 MiB in bfloat16


@dataclass(frozen=True)
class ScoreRequest:
    """One response to score.

    Attributes:
        row: its row in the batch.
        prefix_ends: K+1 positions in the padded row: the last prompt token's, then each step's last token's.
        branch: template and answer.
    """

    row: int
    prefix_ends: tuple[int, ...]
    branch: AnswerBranch


def unpadded(request: ScoreRequest, sequences: Tensor, attention_mask: Tensor) -> tuple[Tensor, ScoreRequest]:
    """The (1, tokens) row of a request without its padding, and the same request for that row."""
    present = attention_mask[request.row].bool()
    # The request with which an idle rank joins a forward may point at padding: any token will do for it.
    ends = (present.cumsum(-1)[list(request.prefix_ends)] - 1).clamp(min=0)
    return sequences[request.row][present][None], ScoreRequest(0, tuple(ends.tolist()), request.branch)


@contextmanager
def recorded_prefix(
    model: object,
    config: PretrainedConfig,
    attention_mask: Tensor,
    requests: Sequence[ScoreRequest],
    agree: Callable[[int], int] = int,
    packed: bool = False,
) -> Iterator[PrefixCache]:
    """Within it, run one forward over the rows with the cache that it yields; then their branches can be scored.

    Do not pass the cache to a forward over packed rows: position ids keep these apart, and transformers ignores them
    when it is given a cache.

    Args:
        model: the causal language model, or its wrapper.
        config: its configuration.
        attention_mask: (B, T), 1 for tokens.
        requests: for these rows.
        agree: maps this rank's number of calls to the largest of all ranks that run in lockstep.
        packed: whether the forward has all rows packed into one, without padding.
    """
    cache = PrefixCache(config, model, packed)
    places = [(request.row, end) for request in requests for end in request.prefix_ends]
    with cache.capturing() if packed else cache.recording(attention_mask, places, agree):
        yield cache


@torch.no_grad()
def score_branches(
    model: Callable[..., Any],
    config: PretrainedConfig,
    cache: Cache,
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
        cache: as `recorded_prefix` yields it for these requests; any cache will do for a model without windows and
            recurrent layers. Not modified.
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
    packed = isinstance(cache, PrefixCache) and cache.packed
    # Similar lengths are grouped: padded, a group holds less than twice the tokens of the row.
    groups = _alike(requests, 2 * int(visible.sum()) if packed else visible.numel())
    batches = [_Branches.build([requests[n] for n in group], sequences, visible, packed) for group in groups]
    chunks = []
    for branches in batches:
        count, size = len(branches.ends), branches.chunk_size(config, max_branch_tokens)
        chunks += [(branches, start, min(start + size, count)) for start in range(0, count, size)]
    spare = agree(len(chunks)) - len(chunks)  # before the first of them: all ranks must be at the same call
    scored = [_score_chunk(model, config, cache, *chunk) for chunk in chunks]
    for _ in range(spare):
        _score_chunk(model, config, cache, batches[0], 0, 1)
    order = [number for group in groups for number in group]
    values = torch.split(torch.cat(scored).cpu(), [len(requests[number].prefix_ends) for number in order])
    scores = dict(zip(order, values, strict=True))
    return [scores[number] for number in range(len(requests))]


def _alike(requests: Sequence[ScoreRequest], tokens: int) -> list[list[int]]:
    """Group requests by number, longest first: padded to its longest, a group of several takes at most `tokens`.

    With packing, all of them padded to the longest could take many times the tokens of the pass itself.
    """
    groups: list[list[int]] = []
    reaches = [request.prefix_ends[-1] + 1 for request in requests]
    for number in sorted(range(len(requests)), key=lambda n: -reaches[n]):
        if groups and (len(groups[-1]) + 1) * reaches[groups[-1][0]] <= tokens:
            groups[-1].append(number)
        else:
            groups.append([number])
    return groups


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
    """Run both forwards, for callers that do not need the first one's logits; arguments as in the functions above."""
    positions = (attention_mask.long().cumsum(-1) - 1).clamp(min=0)
    with recorded_prefix(model, config, attention_mask, requests, agree, packed) as cache:
        if packed:
            ids, positions = (part[attention_mask.bool()].unsqueeze(0) for part in (sequences, positions))
            model(ids, position_ids=positions, use_cache=False, logits_to_keep=1)
        else:
            padded = {"attention_mask": attention_mask, "use_cache": True, "past_key_values": cache}
            model(sequences, position_ids=positions, logits_to_keep=1, **padded)
    return score_branches(model, config, cache, sequences, attention_mask, requests, agree, **options)


@dataclass(frozen=True)
class _Branches:
    """All branches of a batch, response by response, from the shortest prefix to the longest.

    Attributes:
        ids: (R, Q) int64, template and answer of each response, padded.
        scored: (R, Q) bool.
        first_scored: the first column of `scored` that holds a True.
        rows: row of each response in the batch.
        origins: (R,) int64, where in a packed row its position 0 is; None without packing.
        starts: (R,) int64, position of its first token.
        owners: the response of each branch.
        ends: position of the last token of each branch's prefix.
        last_ids: (N,) int64, that token.
        positions: (N,) int64, its position id.
    """

    ids: Tensor
    scored: Tensor
    first_scored: int
    rows: list[int]
    origins: Tensor | None
    starts: Tensor
    owners: list[int]
    ends: list[int]
    last_ids: Tensor
    positions: Tensor

    @classmethod
    def build(cls, requests: Sequence[ScoreRequest], sequences: Tensor, visible: Tensor, packed: bool) -> _Branches:
        # A mixer takes a single token for generation, and may run other code.
        width = max(2, *(len(request.branch.ids) for request in requests))
        ids = torch.zeros(len(requests), width, dtype=torch.int64)
        scored = torch.zeros(len(requests), width, dtype=torch.bool)
        for row, request in enumerate(requests):
            ids[row, : len(request.branch.ids)] = torch.tensor(request.branch.ids)
            scored[row, : len(request.branch.ids)] = torch.tensor(request.branch.scored)
        owners = [number for number, request in enumerate(requests) for _ in request.prefix_ends]
        ends = [end for request in requests for end in request.prefix_ends]

        device = sequences.device
        rows = torch.tensor([request.row for request in requests], device=device)
        counts = visible.sum(-1)
        visible, sequences = visible[rows], sequences[rows]
        begins = visible[:, 0].int() + (visible[:, 1:] & ~visible[:, :-1]).sum(-1)
        if (begins > 1).any():
            raise ValueError("attention_mask has a hole inside a row; only its ends may be padded")
        starts = visible.int().argmax(-1)
        owner, end = torch.tensor(owners, device=device), torch.tensor(ends, device=device)
        return cls(
            ids=ids.to(device),
            scored=scored.to(device),
            first_scored=int(scored.any(0).int().argmax()),
            rows=[request.row for request in requests],
            origins=(counts.cumsum(-1) - counts)[rows] - starts if packed else None,
            starts=starts,
            owners=owners,
            ends=ends,
            last_ids=sequences[owner, end],
            positions=end - starts[owner],
        )

    def chunk_size(self, config: PretrainedConfig, max_tokens: int) -> int:
        """Branches to run at a time: at most `max_tokens` tokens, and a mask of at most `MOST_MASK` elements."""
        text, width = config.get_text_config(), self.ids.shape[1]
        heads = getattr(text, "num_attention_heads", 1)
        stacked = heads // (getattr(text, "num_key_value_heads", None) or heads)
        return max(1, min(max_tokens // width, MOST_MASK // (width * stacked * (max(self.ends) + max_tokens))))

    def layout(self, cache: Cache, start: int, stop: int) -> BranchLayout:
        """The branches `start .. stop - 1`, some of the first and the last response's perhaps left out."""
        first, last = self.owners[start], self.owners[stop - 1]
        ends: list[list[int]] = [[] for _ in range(first, last + 1)]
        for owner, end in zip(self.owners[start:stop], self.ends[start:stop], strict=True):
            ends[owner - first].append(end)
        chosen = slice(first, last + 1)
        rows = torch.tensor(self.rows[chosen]).to(self.starts.device, non_blocking=True)
        origins = None if self.origins is None else self.origins[chosen]
        return BranchLayout(cache, rows, origins, self.starts[chosen], ends, self.ids.shape[1])


def _score_chunk(
    model: Callable[..., Any],
    config: PretrainedConfig,
    cache: Cache,
    branches: _Branches,
    start: int,
    stop: int,
) -> Tensor:
    """(n,) scores of the branches `start .. stop - 1`."""
    device, width, first = branches.ids.device, branches.ids.shape[1], branches.first_scored
    owners = torch.tensor(branches.owners[start:stop]).to(device, non_blocking=True)
    # The last branch token predicts nothing that is scored; the prefix's last token takes its place in front.
    inputs = torch.cat([branches.last_ids[start:stop, None], branches.ids[owners, :-1]], dim=-1)
    offsets = torch.arange(width, device=device)
    kept = (torch.arange(len(owners), device=device)[:, None] * width + offsets[first:]).flatten()
    owner_rows = (branches.rows[owner] for owner in branches.owners[start:stop])
    places = list(zip(owner_rows, branches.ends[start:stop], strict=True))
    resumed = cache.resumed(places, width) if isinstance(cache, PrefixCache) else nullcontext()
    with attending_branches(config, branches.layout(cache, start, stop)), resumed:
        output = model(
            inputs.view(1, -1),
            position_ids=(branches.positions[start:stop, None] + offsets).view(1, -1),
            use_cache=False,
            logits_to_keep=kept,
        )
    logits = widen(output.logits.view(len(owners), width - first, -1))
    targets = branches.ids[owners, first:]
    logprobs = logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1) - logits.logsumexp(-1)
    scored = branches.scored[owners, first:]
    return torch.where(scored, logprobs, 0.0).sum(-1) / scored.sum(-1)

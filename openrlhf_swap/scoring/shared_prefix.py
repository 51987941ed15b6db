"""Score all prefixes of a response in the forward of the response itself; docs/method/scoring.md
describes it.

The K+1 answer branches stand behind the rows: branch k sees its response up to e_k and itself, at
the positions that follow e_k. It starts with a second copy of the prefix's last token, which
predicts its first one, so that even an empty close template needs nothing of the row but its keys,
values and states.

Shapes: B rows of T tokens, n tokens of branches, n/B of them behind each row, m predicted tokens.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig

from openrlhf_swap.scoring.answer import ScoreRequest, widen
from openrlhf_swap.scoring.attention import BranchAttention
from openrlhf_swap.scoring.branches import Branch, Layout
from openrlhf_swap.scoring.mixers import BranchedMixers


@dataclass(frozen=True)
class Rows:
    """The rows of a batch, laid end to end.

    Attributes:
        count: B; 1 where all responses are packed into one row.
        tokens: T.
        spans: for each response, the column of its first token and the one after its last.
        offsets: for each response, its place in the padded row that its first column stands for.
    """

    count: int
    tokens: int
    spans: list[tuple[int, int]]
    offsets: list[int]

    @classmethod
    def of(cls, attention_mask: Tensor, packed: bool) -> "Rows":
        """Find the columns, from a (responses, tokens) mask, 1 for tokens."""
        offsets = attention_mask.argmax(-1).tolist()
        counts = attention_mask.sum(-1).tolist()
        responses, tokens = attention_mask.shape
        spans = []
        packed_tokens = 0
        for row, (offset, count) in enumerate(zip(offsets, counts, strict=True)):
            first = packed_tokens if packed else row * tokens + offset
            spans.append((first, first + count))
            packed_tokens += count
        if packed:
            return cls(1, packed_tokens, spans, offsets)
        return cls(responses, tokens, spans, offsets)

    @property
    def present(self) -> int:
        """The number of tokens, padding apart."""
        return sum(stop - start for start, stop in self.spans)

    def column(self, row: int, place: int) -> int:
        """The column of a place in a response's padded row; its first one for places before it."""
        # An idle rank's request may point at padding.
        return self.spans[row][0] + max(0, place - self.offsets[row])


def answer_branches(request: ScoreRequest, rows: Rows) -> list[Branch]:
    """The branches that score the answer after each prefix of a response."""
    answer = request.branch
    assert answer is not None
    scored = [1 + place for place, used in enumerate(answer.scored) if used]
    first, _ = rows.spans[request.row]
    branches = []
    for place in request.scored_ends:
        end = rows.column(request.row, place)
        branches.append(Branch(first, end, range(end, end + 1), answer.ids, [scored]))
    return branches


class BranchedRows:
    """The rows of a forward, with answer branches behind them.

    `tokens` is T; `predicting` are the (m,) rows and (m,) columns of the tokens that predict the
    answers' tokens, which are the (m,) int64 `targets` once `inputs` were made; `share` is the
    branches' part of all tokens, padding apart.
    """

    targets: Tensor

    def __init__(
        self,
        model: Callable[..., Any],
        config: PretrainedConfig,
        attention_mask: Tensor,
        requests: Sequence[ScoreRequest],
        packed: bool = False,
        agree: Callable[[int], int] = int,
    ) -> None:
        """Find the place of everything.

        Takes a causal language model in eval mode, or its wrapper; its own configuration; a
        (responses, tokens) mask, 1 for tokens, padded on either side; and requests with an answer,
        at most one a response, at least one in all. `packed` says that the forward has all
        responses in one row, without padding. `agree` maps this rank's number of calls of a
        recurrent layer to the largest of all ranks in lockstep.
        """
        rows = Rows.of(attention_mask, packed)
        branches = [answer_branches(request, rows) for request in requests]
        self._counts = [len(its_branches) for its_branches in branches]
        self._requests = requests
        all_branches = [branch for its_branches in branches for branch in its_branches]
        self._layout = layout = Layout(all_branches, rows.count, attention_mask.device)
        self.tokens = rows.tokens
        running = sum(branch.length for branch in all_branches)
        self.share = running / (running + rows.present)
        self._width = layout.tokens // rows.count
        self.predicting = (
            layout.predicting // self._width,
            rows.tokens + layout.predicting % self._width,
        )
        self._mask = None
        if not packed:
            behind = attention_mask.new_ones(rows.count, self._width)
            self._mask = torch.cat([attention_mask, behind], dim=1)
        self._attention = BranchAttention(rows.tokens, layout)
        self._mixers = BranchedMixers(model, config, rows.tokens, rows.spans, layout, agree)

    def inputs(self, ids: Tensor, position_ids: Tensor) -> dict[str, Any]:
        """The model's arguments, from (B, T) token and position ids of the rows."""
        layout = self._layout
        self.targets = layout.targets(ids.flatten())
        behind = layout.ids(ids.flatten()).view(len(ids), -1)
        positions = layout.position.view(len(ids), -1)
        return {
            "input_ids": torch.cat([ids, behind], dim=1),
            "position_ids": torch.cat([position_ids, positions], dim=1),
            "attention_mask": self._mask,
            "use_cache": False,
        }

    @contextmanager
    def branching(self) -> Iterator[None]:
        """Let the model run on such inputs inside the block."""
        with self._attention.replacing(), self._mixers.replacing():
            yield

    def scores(self, log_probs: Tensor) -> list[Tensor]:
        """A (K+1,) tensor l_0..l_K of each request, on the CPU.

        Takes the (m,) log-probabilities of the targets.
        """
        scores = torch.split(self._layout.means(log_probs), self._counts)
        return [
            request.answer_logprobs(own)
            for request, own in zip(self._requests, scores, strict=True)
        ]


@torch.no_grad()
def score_shared_prefix(
    model: Callable[..., Any],
    config: PretrainedConfig,
    sequences: Tensor,
    attention_mask: Tensor,
    requests: Sequence[ScoreRequest],
    packed: bool = False,
    agree: Callable[[int], int] = int,
) -> list[Tensor]:
    """Score the requests in a forward of their own, for callers that do not need the rows' logits.

    `sequences` are (responses, tokens) int64 token ids; the other arguments are those of
    `BranchedRows`. Returns one (K+1,) tensor l_0..l_K per request, float32 (float64 for a float64
    model, or where observations are split off), on the CPU.
    """
    rows = BranchedRows(model, config, attention_mask, requests, packed, agree)
    positions = (attention_mask.long().cumsum(-1) - 1).clamp(min=0)
    if packed:
        present = attention_mask.bool()
        sequences = sequences[present].unsqueeze(0)
        positions = positions[present].unsqueeze(0)
    inputs = rows.inputs(sequences, positions)
    at_rows, columns = rows.predicting
    kept, at_kept = torch.unique(columns, return_inverse=True)
    with rows.branching():
        logits = model(**inputs, logits_to_keep=kept).logits
    logits = widen(logits[at_rows, at_kept])
    chosen = logits.gather(-1, rows.targets[:, None]).squeeze(-1)
    return rows.scores(chosen - logits.logsumexp(-1))

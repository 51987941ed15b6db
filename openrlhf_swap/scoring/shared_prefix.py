"""Score all prefixes of a response in the forward of the response itself.

The K+1 prefixes nest, so one forward over prompt and response computes the keys and values of all of them. The K+1
answer branches stand behind the rows: branch k sees its response up to e_k and itself, at the positions that follow
e_k. The rows are computed as without branches.

Each branch starts with a second copy of the prefix's last token. It predicts the branch's first token, so that even
an empty close template needs nothing of the row but its keys, values and states.

`branch_attention.py` lets each branch attend to just the keys it sees, and `mixers.py` gives it the states that
recurrent layers have there.

Shapes: B rows of T tokens, n tokens of branches, n/B of them behind each row.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig

from openrlhf_swap.scoring.answer import ScoreRequest
from openrlhf_swap.scoring.branch_attention import Branch, BranchAttention
from openrlhf_swap.scoring.mixers import branching_mixers
from openrlhf_swap.scoring.per_prefix import widen

MAX_MASK = 2**24  # elements of a call's attention mask: 32 MiB in bfloat16
# On a GPU one call for all branches costs less than several, though most of its attention scores are masked. A CPU
# would pay for those, so there a call has few branches, and keys up to the longest of their prefixes.
MAX_MASK_ON_CPU = 2**17
_COPY = -1  # in the place of the id of a branch's first token, which is that of its prefix's last one


class BranchedRows:
    """The rows of a forward, with answer branches behind them.

    `tokens` is T; `predicting` are the (m,) rows and (m,) columns of the tokens that predict the answers' tokens,
    which are the (m,) int64 `targets`; `share` is the branches' part of all tokens, padding apart.
    """

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

        Takes a causal language model in eval mode, or its wrapper; its own configuration; a (responses, tokens) mask,
        1 for tokens, padded on either side; and requests, at most one a response, at least one in all. `packed`, the
        forward has all responses in one row, without padding. `agree` maps this rank's number of calls of a recurrent
        layer to the largest of all ranks in lockstep.
        """
        starts, counts = torch.stack([attention_mask.argmax(-1), attention_mask.sum(-1)]).tolist()
        rows, tokens = (1, sum(counts)) if packed else attention_mask.shape
        # The column of each response's first token, if all rows were laid end to end.
        firsts = list(accumulate(counts, initial=0)) if packed else [n * tokens + at for n, at in enumerate(starts)]
        table: list[tuple[int, ...]] = []
        predicted: list[tuple[int, int]] = []
        branches: list[Branch] = []
        for request in requests:
            first, branch = firsts[request.row], request.branch
            for column in request.prefix_ends:
                length = max(0, column - starts[request.row])  # an idle rank's request may point at padding
                start, end = len(table), first + length
                predicted += [(start + n, branch.ids[n]) for n, used in enumerate(branch.scored) if used]
                ids = (_COPY, *branch.ids[:-1])  # the last one predicts nothing that is scored
                table += [(token, length + n, len(branches), first, end) for n, token in enumerate(ids)]
                branches.append(Branch(start, len(table), first, end))
        self._sizes = [(len(request.prefix_ends), sum(request.branch.scored)) for request in requests]

        self.tokens: int = tokens
        self.share = len(table) / (len(table) + sum(counts))
        width = -(-len(table) // rows)
        table += [(0, 0, -1, 0, 0)] * (rows * width - len(table))  # idle
        branches[-1] = branches[-1]._replace(stop=len(table))
        # Sent to the device once, so that no layer waits for them.
        device = attention_mask.device
        self._table = torch.tensor(table).T.to(device, non_blocking=True)
        places, self.targets = torch.tensor(predicted).T.to(device, non_blocking=True)
        self.predicting = places // width, tokens + places % width
        self._mask = None if packed else torch.cat([attention_mask, attention_mask.new_ones(rows, width)], dim=1)

        groups = group_branches(branches, device)
        self._attention = BranchAttention(tokens, groups, self._table[1:])
        spans = [(first, first + count) for first, count in zip(firsts, counts, strict=False)]
        self._mixing = partial(branching_mixers, model, config, tokens, spans, branches, device, agree)

    def inputs(self, ids: Tensor, position_ids: Tensor) -> dict[str, Any]:
        """The model's arguments, from (B, T) token and position ids of the rows."""
        own, positions, *_, ends = self._table
        own = torch.where(own == _COPY, ids.flatten()[ends], own)
        return {
            "input_ids": torch.cat([ids, own.view(len(ids), -1)], dim=1),
            "position_ids": torch.cat([position_ids, positions.view(len(ids), -1)], dim=1),
            "attention_mask": self._mask,
            "use_cache": False,
        }

    @contextmanager
    def branching(self) -> Iterator[None]:
        """Meanwhile the model runs on such inputs."""
        with self._attention.replacing(), self._mixing():
            yield

    def scores(self, log_probs: Tensor) -> list[Tensor]:
        """A (K+1,) tensor l_0..l_K of each request, on the CPU, from the (m,) log-probabilities of the targets."""
        parts = torch.split(log_probs.cpu(), [branches * tokens for branches, tokens in self._sizes])
        return [part.view(size).mean(-1) for part, size in zip(parts, self._sizes, strict=True)]


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

    `sequences` are (responses, tokens) int64 token ids; the other arguments are those of `BranchedRows`.

    Returns:
        One (K+1,) tensor l_0..l_K per request, float32 (float64 for a float64 model), on the CPU.
    """
    rows = BranchedRows(model, config, attention_mask, requests, packed, agree)
    positions = (attention_mask.long().cumsum(-1) - 1).clamp(min=0)
    if packed:
        sequences, positions = (part[attention_mask.bool()].unsqueeze(0) for part in (sequences, positions))
    at_rows, columns = rows.predicting
    kept, at_kept = columns.unique(return_inverse=True)
    with rows.branching():
        logits = model(**rows.inputs(sequences, positions), logits_to_keep=kept).logits
    logits = widen(logits[at_rows, at_kept])
    return rows.scores(logits.gather(-1, rows.targets[:, None]).squeeze(-1) - logits.logsumexp(-1))


def group_branches(branches: Sequence[Branch], device: torch.device) -> list[list[Branch]]:
    """Consecutive branches whose mask is small enough to attend them in one call, at least one in each group."""
    most = MAX_MASK_ON_CPU if device.type == "cpu" else MAX_MASK
    groups = [[branches[0]]]
    for branch in branches[1:]:
        group = [*groups[-1], branch]
        tokens = branch.stop - group[0].start
        seen = max(each.end for each in group) - min(each.first for each in group)
        if tokens * (seen + tokens) <= most:
            groups[-1].append(branch)
        else:
            groups.append([branch])
    return groups

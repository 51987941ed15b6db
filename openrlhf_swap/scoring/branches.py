"""Branches: tokens that run beside the rows of a forward.

A branch repeats some tokens of its response and continues with ids of its own. It sees its response
up to a column, and itself. Columns count the tokens of all rows, as if these lay end to end:

    row      x x x s1 s1 s2 s2 s3 s3          columns 0 .. 8 answer             s1 a  a
    sees columns 0 .. 3, repeats column 4, then the answer hidden                   s2 s2 s3 s3 a a
    sees columns 0 .. 2: step s1 is hidden from the rest

Positions are those of the response: they continue from the first token that the branch repeats.

Shapes: n tokens of branches, m of their tokens (or of the rows') that are predicted.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

MAX_MASK = 2**24  # elements of a call's attention mask: 32 MiB in bfloat16
# On a GPU one call for all branches costs less than several, though most of its attention scores
# are masked. A CPU would pay for those, so there a call has few branches, and keys up to the
# longest of their prefixes.
MAX_MASK_ON_CPU = 2**17
MIN_QUERIES = 64  # in a call of a branch that needs several


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


@dataclass(frozen=True)
class Branch:
    """One branch; its last token only stands here to be predicted, and does not run.

    Attributes:
        first: the column of its response's first token.
        end: the column before which it sees its response.
        copied: the columns whose tokens it repeats.
        given: token ids that follow.
        scored: for each group of predicted tokens, their places among the branch's tokens, from 1.
    """

    first: int
    end: int
    copied: range
    given: Sequence[int]
    scored: Sequence[Sequence[int]]

    @property
    def position(self) -> int:
        """The position id of its first token."""
        return self.copied.start - self.first

    @property
    def length(self) -> int:
        """The number of tokens that run."""
        return len(self.copied) + len(self.given) - 1

    @property
    def sources(self) -> list[int]:
        """For each token the column that it repeats, or -1 - its id where that is given."""
        return [*self.copied, *(-1 - number for number in self.given)]

    @property
    def predicted(self) -> list[int]:
        """The places of all predicted tokens, in the order of the groups."""
        return [place for group in self.scored for place in group]

    def sees_from(self, window: int | None) -> int:
        """The first column that any of its tokens sees, with attention to so many tokens."""
        if window is None:
            return self.first
        return min(self.end, max(self.first, self.copied.start - window + 1))


class Layout:
    """Where branches stand, one (n,) int64 tensor for each property of their tokens.

    `position` is a token's position id and `branch` the number of its branch, which sees columns
    `first` to `end`. The (m,) tokens `predicting` predict those of the scored groups, whose numbers
    of tokens are `sizes`.
    """

    def __init__(
        self,
        branches: Sequence[Branch],
        rows: int,
        device: torch.device,
    ) -> None:
        """Put branches one after the other, and fill up to a multiple of `rows`."""
        self.branches = branches
        self.starts: list[int] = []
        self.sizes: list[int] = []
        self.tokens = 0
        position: list[int] = []
        source: list[int] = []
        predicting: list[int] = []
        predicted: list[int] = []
        for branch in branches:
            sources = branch.sources
            position += range(branch.position, branch.position + branch.length)
            source += sources[:-1]
            predicting += [self.tokens + place - 1 for place in branch.predicted]
            predicted += [sources[place] for place in branch.predicted]
            self.sizes += map(len, branch.scored)
            self.starts.append(self.tokens)
            self.tokens += branch.length
        idle = -self.tokens % rows  # tokens that only fill a row see no column, but themselves
        self.tokens += idle
        lengths = torch.tensor([*(branch.length for branch in branches), idle])
        firsts = torch.tensor([*(branch.first for branch in branches), 0])
        ends = torch.tensor([*(branch.end for branch in branches), 0])
        number = torch.arange(len(lengths)).repeat_interleave(lengths)
        position += range(idle)
        source += [-1] * idle
        columns = [torch.tensor(position), number, firsts[number], ends[number]]
        # Sent to the device once, so that no layer waits for them.
        table = torch.stack([*columns, torch.tensor(source)]).to(device, non_blocking=True)
        self.position, self.branch, self.first, self.end, self._source = table
        targets = torch.tensor([predicting, predicted]).to(device, non_blocking=True)
        self.predicting, self._target = targets

    @property
    def stops(self) -> list[int]:
        """Where each branch ends; the last one takes in the tokens that only fill a row."""
        return [*self.starts[1:], self.tokens]

    def ids(self, row_ids: Tensor) -> Tensor:
        """(n,) the tokens' ids, from the (columns,) ids of the rows."""
        return _from_rows(row_ids, self._source)

    def targets(self, row_ids: Tensor) -> Tensor:
        """(m,) the ids that `predicting` predict, from the (columns,) ids of the rows."""
        return _from_rows(row_ids, self._target)

    def means(self, log_probs: Tensor) -> Tensor:
        """(groups,) the mean of each scored group, on the CPU, from (m,) values of predictions."""
        sizes = torch.tensor(self.sizes)
        means: Tensor = torch.segment_reduce(log_probs.cpu(), "mean", lengths=sizes)
        return means


def _from_rows(row_ids: Tensor, sources: Tensor) -> Tensor:
    return torch.where(sources < 0, -1 - sources, row_ids[sources.clamp(min=0)])


@dataclass(frozen=True)
class Call:
    """Tokens of branches that are attended together, and the keys that any of them sees."""

    branches: Sequence[Branch]
    queries: slice  # among the n tokens
    own: slice  # the keys among the n tokens

    def columns(self, window: int | None) -> slice:
        """The keys among the columns of the rows."""
        start = min(branch.sees_from(window) for branch in self.branches)
        return slice(start, max(start, *(branch.end for branch in self.branches)))


def attention_calls(layout: Layout, on_cpu: bool) -> list[Call]:
    """Cut the tokens into calls whose masks are small.

    A call has as many consecutive branches as fit. A branch that does not fit has several calls,
    each with the keys up to its own last token.
    """
    most = MAX_MASK_ON_CPU if on_cpu else MAX_MASK
    calls: list[Call] = []
    group: list[Branch] = []
    begin = 0
    for branch, start, stop in zip(layout.branches, layout.starts, layout.stops, strict=True):
        if group and _mask_size([*group, branch], stop - begin) > most:
            calls += _calls_of(group, begin, start, most)
            group = []
            begin = start
        group = [*group, branch]
    return calls + _calls_of(group, begin, layout.tokens, most)


def _mask_size(branches: Sequence[Branch], tokens: int) -> int:
    start = min(branch.first for branch in branches)
    stop = max(branch.end for branch in branches)
    return tokens * (stop - start + tokens)


def _calls_of(
    branches: Sequence[Branch],
    start: int,
    stop: int,
    most: int,
) -> list[Call]:
    """One call for several branches, or as many as one long branch needs."""
    if len(branches) > 1:
        return [Call(branches, slice(start, stop), slice(start, stop))]
    keys = max(1, branches[0].end - branches[0].first + stop - start)
    step = max(MIN_QUERIES, most // keys)
    calls = []
    for begin in range(start, stop, step):
        end = min(stop, begin + step)
        calls.append(Call(branches, slice(begin, end), slice(start, end)))
    return calls

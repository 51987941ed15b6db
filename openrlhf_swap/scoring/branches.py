"""Branches: tokens that run beside the rows of a forward.

A branch repeats some tokens of its response and continues with ids of its own. It sees its response
up to a column, and itself. Columns count the tokens of all rows, as if these lay end to end:

    row      x x x s1 s1 s2 s2 s3 s3          columns 0 .. 8
    answer             s1 a  a                sees columns 0 .. 3, repeats column 4, then the answer
    hidden                   s2 s2 s3 s3 a a  sees columns 0 .. 2: step s1 is hidden from the rest

Positions are those of the response: they continue from the first token that the branch repeats.

Shapes: n tokens of branches, m of their tokens (or of the rows') that are predicted.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from openrlhf_swap.scoring.limits import MASK_ELEMENTS

# On a GPU one call for all branches costs less than several, though most of its attention scores
# are masked. A CPU would compute those, so there a call has few branches, and keys up to the
# longest of their prefixes.
MASK_ELEMENTS_ON_CPU = 2**17
MIN_QUERIES = 64  # in a call of a branch that needs several

# Maps this rank's number of calls to the largest of all ranks that must run in lockstep.
Agree = Callable[[int], int]


@dataclass(frozen=True)
class ResponseColumns:
    """The columns of a response."""

    first: int  # the column of its first token
    stop: int  # the column after its last token
    offset: int  # the place of its first token in its padded row


@dataclass(frozen=True)
class Rows:
    """The rows of a batch, laid end to end.

    Attributes:
        count: B; 1 where all responses are packed into one row.
        tokens: T.
        responses: where each response stands.
    """

    count: int
    tokens: int
    responses: list[ResponseColumns]

    @classmethod
    def of(cls, attention_mask: Tensor, packed: bool) -> "Rows":
        """Find the columns, from a (responses, tokens) mask, 1 for tokens."""
        offsets = attention_mask.argmax(-1).tolist()
        counts = attention_mask.sum(-1).tolist()
        rows, tokens = attention_mask.shape
        responses = []
        start = 0
        for row, (offset, count) in enumerate(zip(offsets, counts, strict=True)):
            first = start if packed else row * tokens + offset
            responses.append(ResponseColumns(first, first + count, offset))
            start += count
        if packed:
            return cls(1, start, responses)
        return cls(rows, tokens, responses)

    @property
    def present(self) -> int:
        """The number of tokens, padding apart."""
        return sum(response.stop - response.first for response in self.responses)

    def column(self, row: int, place: int) -> int:
        """The column of a place in a response's padded row; its first one for places before it."""
        response = self.responses[row]
        # An idle rank's request may point at padding.
        return response.first + max(0, place - response.offset)


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
        return [*self.copied, *(-1 - token for token in self.given)]

    @property
    def predicted(self) -> list[int]:
        """The places of all predicted tokens, in the order of the groups."""
        return list(chain.from_iterable(self.scored))

    def sees_from(self, window: int | None) -> int:
        """The first column that any of its tokens sees, with attention to so many tokens."""
        if window is None:
            return self.first
        farthest = self.copied.start - window + 1
        start = max(self.first, farthest)
        return min(self.end, start)


@dataclass(frozen=True)
class PlacedBranch:
    """A branch, and where its tokens stand among the n: from `start` to before `stop`."""

    branch: Branch
    start: int
    stop: int


class _Token(NamedTuple):
    """A token that runs behind the rows; as in `Layout` and `Branch.sources`."""

    position: int
    branch: int
    first: int
    end: int
    source: int


class _Prediction(NamedTuple):
    """A predicted token: the token before it, among the n, and its own source."""

    predicting: int
    source: int


class Layout:
    """The places of branches: an (n,) int64 tensor for each property of their tokens.

    `tokens` is n. `position` is a token's position id and `branch` the number of its branch, which
    sees columns `first` to `end`. The (m,) tokens `predicting` predict those of the scored groups,
    whose numbers of tokens are `sizes`. The last of the `placed` branches takes in the tokens that
    only fill a row.
    """

    def __init__(self, branches: Sequence[Branch], rows: int, device: torch.device) -> None:
        """Put branches one after the other, and fill up to a multiple of `rows`."""
        self.placed: list[PlacedBranch] = []
        self.sizes: list[int] = []
        tokens: list[_Token] = []
        predictions: list[_Prediction] = []
        for number, branch in enumerate(branches):
            start = len(tokens)
            sources = branch.sources
            for position, source in enumerate(sources[:-1], branch.position):
                tokens.append(_Token(position, number, branch.first, branch.end, source))
            for place in branch.predicted:
                predictions.append(_Prediction(start + place - 1, sources[place]))
            self.placed.append(PlacedBranch(branch, start, len(tokens)))
            self.sizes += map(len, branch.scored)
        for position in range(-len(tokens) % rows):
            # Tokens that only fill a row see no column, but themselves.
            filling = _Token(position, len(branches), first=0, end=0, source=-1)
            tokens.append(filling)
        self.tokens = len(tokens)
        self.placed[-1] = replace(self.placed[-1], stop=self.tokens)
        # Sent to the device once, so that no layer waits for them.
        table = _sent(tokens, device)
        self.position, self.branch, self.first, self.end, self._source = table
        self.predicting, self._target = _sent(predictions, device)

    def ids(self, row_ids: Tensor) -> Tensor:
        """(n,) the tokens' ids, from the (columns,) ids of the rows."""
        return _from_rows(row_ids, self._source)

    def targets(self, row_ids: Tensor) -> Tensor:
        """(m,) the ids that `predicting` predict, from the (columns,) ids of the rows."""
        return _from_rows(row_ids, self._target)


def _sent(records: Sequence[tuple[int, ...]], device: torch.device) -> Tensor:
    """Records as a tensor on the device, one row for each of their fields."""
    fields = torch.tensor(records, dtype=torch.int64).T
    return fields.contiguous().to(device, non_blocking=True)


def _from_rows(row_ids: Tensor, sources: Tensor) -> Tensor:
    copied = row_ids[sources.clamp(min=0)]
    return torch.where(sources < 0, -1 - sources, copied)


@dataclass(frozen=True)
class Call:
    """Tokens of branches that are attended together, and the keys that any of them sees."""

    branches: Sequence[Branch]
    queries: slice  # among the n tokens
    own: slice  # the keys among the n tokens

    def columns(self, window: int | None) -> slice:
        """The keys among the columns of the rows."""
        starts = [branch.sees_from(window) for branch in self.branches]
        ends = [branch.end for branch in self.branches]
        return slice(min(starts), max(ends))


def attention_calls(layout: Layout, on_cpu: bool) -> list[Call]:
    """Cut the tokens into calls whose masks are small.

    A call has as many consecutive branches as fit. A branch that does not fit has several calls,
    each with the keys up to its own last token.
    """
    most = MASK_ELEMENTS_ON_CPU if on_cpu else MASK_ELEMENTS
    groups: list[list[PlacedBranch]] = [[]]
    for placed in layout.placed:
        tokens, keys = _mask_shape([*groups[-1], placed])
        if groups[-1] and tokens * keys > most:
            groups.append([])
        groups[-1].append(placed)
    calls: list[Call] = []
    for group in groups:
        calls += _calls_of(group, most)
    return calls


def _mask_shape(group: Sequence[PlacedBranch]) -> tuple[int, int]:
    """The tokens and keys of one call for consecutive branches."""
    firsts = [placed.branch.first for placed in group]
    ends = [placed.branch.end for placed in group]
    tokens = group[-1].stop - group[0].start
    return tokens, max(ends) - min(firsts) + tokens


def _calls_of(group: Sequence[PlacedBranch], most: int) -> list[Call]:
    """One call for several branches, or as many as one long branch needs."""
    branches = [placed.branch for placed in group]
    start = group[0].start
    stop = group[-1].stop
    size, keys = _mask_shape(group)
    if len(branches) == 1:
        size = max(MIN_QUERIES, most // keys)
    calls = []
    for begin in range(start, stop, size):
        end = min(stop, begin + size)
        call = Call(branches, slice(begin, end), slice(start, end))
        calls.append(call)
    return calls

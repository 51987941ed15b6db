"""Score all prefixes of a response in the forward of the response itself.

docs/method/scoring.md describes it. The K+1 answer branches stand behind the rows: branch k sees
its response up to e_k and itself, at the positions that follow e_k. It starts with a second copy of
the prefix's last token, which predicts its first one, so that even an empty close template needs
nothing of the row but its keys, values and states.

Shapes: B rows of T tokens, n tokens of branches, n/B of them behind each row, m predicted tokens.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig

from openrlhf_swap.algorithm.signals import ANSWER_ENTROPY, ANSWER_LOGPROBS, NEED
from openrlhf_swap.scoring.answer import LOGITS, ScoreRequest, naming, row_positions, widen
from openrlhf_swap.scoring.attention import BranchAttention, RowKeys
from openrlhf_swap.scoring.branches import Branch, Layout, Rows
from openrlhf_swap.scoring.mixers import BranchedMixers
from openrlhf_swap.scoring.need import HiddenPass, PlainPlaces, StepColumns, read_needs


def answer_branches(request: ScoreRequest, rows: Rows) -> list[Branch]:
    """The branches that score the answer after each prefix of a response."""
    answer = request.branch
    assert answer is not None
    scored = [1 + place for place in answer.places]
    first, _ = rows.spans[request.row]
    ends = [rows.column(request.row, place) for place in request.prefix_ends]
    return [Branch(first, end, range(end, end + 1), answer.ids, [scored]) for end in ends]


class BranchedRows:
    """The rows of a forward, with answer branches behind them.

    `tokens` is T; `predicting` are the (m,) rows and (m,) columns of the tokens that predict the
    answers' tokens, which are the (m,) int64 `targets` once `inputs` were made; `share` is the
    branches' part of all tokens, padding apart. Where `need` is wanted, the tokens of all steps are
    predicted as well, behind the answers, and the rows' keys and values are kept.
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
        keeps_keys: bool = False,
    ) -> None:
        """Find the place of everything.

        Takes a causal language model in eval mode, or its wrapper; its own configuration; a
        (responses, tokens) mask, 1 for tokens, padded on either side; and requests with an answer,
        at most one a response, at least one in all. `packed` says that the forward has all
        responses in one row, without padding. `agree` maps this rank's number of calls of a
        recurrent layer to the largest of all ranks in lockstep. `keeps_keys` keeps keys and values
        where no response of this rank has `need`.
        """
        self.rows = rows = Rows.of(attention_mask, packed)
        self._requests = requests
        self.reads_entropies = bool(naming(requests, ANSWER_ENTROPY))
        self._agree = agree
        branches = [each for request in requests for each in answer_branches(request, rows)]
        self._layout = layout = Layout(branches, rows.count, attention_mask.device)
        self.tokens = rows.tokens
        running = sum(branch.length for branch in branches)
        self.share = running / (running + rows.present)
        width = layout.tokens // rows.count
        self._needing = naming(requests, NEED)
        steps = [column for each in self._needing for column in StepColumns.of(each, rows).all]
        self._steps = torch.tensor(steps, dtype=torch.int64, device=attention_mask.device)
        # A token of a step is predicted by the one before it.
        before = self._steps - 1
        at_rows = [layout.predicting // width, before // rows.tokens]
        columns = [rows.tokens + layout.predicting % width, before % rows.tokens]
        self.predicting = (torch.cat(at_rows), torch.cat(columns))
        self._mask = None
        if not packed:
            behind = attention_mask.new_ones(rows.count, width)
            self._mask = torch.cat([attention_mask, behind], dim=1)
        self._keys: RowKeys | None = {} if self._needing or keeps_keys else None
        self._attention = BranchAttention(rows.tokens, layout, self._keys)
        self._mixers = BranchedMixers(model, config, rows, layout, agree)

    def inputs(self, ids: Tensor, position_ids: Tensor) -> dict[str, Any]:
        """The model's arguments, from (B, T) token and position ids of the rows."""
        layout = self._layout
        self._row_ids = ids.flatten()
        of_answers = layout.targets(self._row_ids)
        self.targets = torch.cat([of_answers, self._row_ids[self._steps]])
        behind = layout.ids(self._row_ids).view(len(ids), -1)
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

    def answers(self, values: Tensor) -> dict[str, list[Tensor]]:
        """By name, the (K+1,) l_0..l_K and h_0..h_K of the requests that want them, on the CPU.

        Takes (m, 1) log-probabilities of the targets, or (m, 2) with entropies.
        """
        of_answers = values[: sum(self._layout.sizes)]
        counts = [len(request.prefix_ends) for request in self._requests]
        found = {}
        for signal, column in zip((ANSWER_LOGPROBS, ANSWER_ENTROPY), of_answers.T, strict=False):
            means = torch.split(self._layout.means(column), counts)
            pairs = zip(self._requests, means, strict=True)
            found[signal.name] = [own for request, own in pairs if signal.name in request.signals]
        return found

    def needs(self, log_probs: Tensor, run: Callable[[HiddenPass], Tensor]) -> list[Tensor]:
        """(K,) float64 n_1..n_K of each request that wants `need`, on the CPU.

        Takes the (m,) log-probabilities of the targets, and what runs a pass over branches alone:
        it returns the log-probabilities of the pass's targets at temperature 1.
        """
        keys = self._keys
        if keys is None:
            return []

        def run_branches(branches: Sequence[Branch]) -> Tensor:
            return run(HiddenPass(branches, keys, self._row_ids))

        places = self._plain_places()
        plain = log_probs.cpu()
        return read_needs(self._needing, self.rows, plain, places, run_branches, self._agree)

    def _plain_places(self) -> list[PlainPlaces]:
        """Where the responses that want `need` stand among the targets: behind all answers."""
        places = []
        answer_end = 0
        steps = sum(self._layout.sizes)
        for request in self._requests:
            assert request.branch is not None
            answer_end += len(request.prefix_ends) * len(request.branch.places)
            if NEED.name in request.signals:
                columns = StepColumns.of(request, self.rows).all
                places.append(PlainPlaces(steps - columns.start, answer_end))
                steps += len(columns)
        return places


@torch.no_grad()
def read_shared_prefix(
    model: Callable[..., Any],
    config: PretrainedConfig,
    sequences: Tensor,
    attention_mask: Tensor,
    requests: Sequence[ScoreRequest],
    packed: bool = False,
    agree: Callable[[int], int] = int,
    keeps_keys: bool = False,
) -> dict[str, list[Tensor]]:
    """Read the requests' scores, and their needs, for callers that do not need the rows' logits.

    `sequences` are (responses, tokens) int64 token ids; the other arguments are those of
    `BranchedRows`. Returns by name one tensor on the CPU per request that wants the signal: (K+1,)
    l_0..l_K, float32 (float64 for a float64 model), and (K,) float64 n_1..n_K.
    """
    rows = BranchedRows(model, config, attention_mask, requests, packed, agree, keeps_keys)
    positions = row_positions(attention_mask)
    if packed:
        present = attention_mask.bool()
        sequences = sequences[present].unsqueeze(0)
        positions = positions[present].unsqueeze(0)
    values = _values(model, rows, rows.inputs(sequences, positions))
    needs = rows.needs(values[:, 0], lambda hidden: _values(model, hidden, hidden.inputs())[:, 0])
    return {**rows.answers(values), NEED.name: needs}


def score_shared_prefix(*args: Any, **options: Any) -> list[Tensor]:
    """The scores alone of `read_shared_prefix`, one (K+1,) tensor l_0..l_K per request."""
    return read_shared_prefix(*args, **options)[ANSWER_LOGPROBS.name]


def _values(
    model: Callable[..., Any],
    branched: BranchedRows | HiddenPass,
    inputs: dict[str, Any],
) -> Tensor:
    """(m, 1) log-probabilities of the targets at temperature 1, at least float32.

    They are (m, 2) with the entropies of their distributions, if these are wanted.
    """
    at_rows, columns = branched.predicting
    kept, at_kept = torch.unique(columns, return_inverse=True)
    with branched.branching():
        logits = model(**inputs, logits_to_keep=kept).logits
    values = []
    every = torch.arange(len(columns), device=columns.device)
    for part in torch.split(every, LOGITS):
        own = widen(logits[at_rows[part], at_kept[part]])
        own = own.log_softmax(-1)
        columns = [own.gather(-1, branched.targets[part, None])]
        if branched.reads_entropies:
            columns.append(torch.special.entr(own.exp()).sum(-1, keepdim=True))
        values.append(torch.cat(columns, dim=-1))
    return torch.cat(values)

"""Score all prefixes of a response in the forward of the response itself.

How likely does the answer become after each step? Read one by one, K+1 prefixes cost K+1 forwards,
but they share their tokens. So the response is read once, as a row, and K+1 branches stand behind
it; here the prompt x is followed by two steps, and a is the close template with the answer:

              row               branch 0  branch 1   branch 2
    tokens    x x x s1 s1 s2 s2 x a  a    s1 a  a    s2 a  a
    position  0 1 2 3  4  5  6  2 3  4    4  5  6    6  7  8

Prefix k ends with the last token of the prompt, or of step k. Branch k starts with a second copy of
that token, sees the response before it, and itself, and has the positions that a forward over the
prefix and the answer would have. The copy predicts the branch's next token: so even an empty close
template needs nothing of the row but its keys, values and states.

A target is a token that is predicted: the answer's in each branch and, for `need`, the steps' in
the row. A hidden step (`need.py`) is one more kind of branch, which does not see that step.
docs/method/method.md says more.

Shapes: B rows of T tokens, n tokens of branches, n/B of them behind each row, m targets.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from openrlhf_swap.algorithm.signals import ANSWER_LOGPROBS, NEED
from openrlhf_swap.scoring.answer import (
    LOGITS,
    Readings,
    ScoreRequest,
    log_probs_of,
    row_positions,
)
from openrlhf_swap.scoring.attention import BranchAttention, RowKeys
from openrlhf_swap.scoring.branches import Agree, Branch, Layout, Rows
from openrlhf_swap.scoring.mixers import BranchedMixers
from openrlhf_swap.scoring.need import (
    HiddenPass,
    HiddenStep,
    columns_of_steps,
    hidden_steps,
    needs_of,
    passes_of,
)


def answer_branches(
    request: ScoreRequest, rows: Rows, positions: Sequence[Sequence[int]]
) -> list[Branch]:
    """The branches that score the answer after each prefix of a response.

    `positions` are those of all tokens of the padded rows.
    """
    answer = request.branch
    assert answer is not None
    scored = [1 + place for place in answer.places]  # behind the copied token
    branches = []
    for place in request.prefix_ends:
        end = rows.column(request.row, place)
        first = end - positions[request.row][place]  # of the context
        copied = range(end, end + 1)
        branch = Branch(first, end, copied, answer.ids, [scored])
        branches.append(branch)
    return branches


class BranchedRows:
    """The rows of a forward, with answer branches behind them.

    `tokens` is T; `predicting` are the (m,) rows and (m,) columns of the tokens that predict the
    (m,) int64 `targets`, which are there once `inputs` were made: first the answers' tokens, branch
    by branch, and then the steps' tokens of each response that wants `need`. `share` is the
    branches' part of all tokens, padding apart.
    """

    targets: Tensor

    def __init__(
        self,
        model: nn.Module,
        attention_mask: Tensor,
        requests: Sequence[ScoreRequest],
        packed: bool = False,
        agree: Agree = int,
        keeps_keys: bool = False,
    ) -> None:
        """Find the place of everything.

        Takes a causal language model in eval mode, or its wrapper; a (responses, tokens) mask, the
        number of each token's context from 1 on, padded on either side; and requests with an
        answer, at most one a response, at least one in all. `packed` says that the forward has all
        responses in one row, without padding. `agree` takes numbers of calls of recurrent layers,
        and of passes over hidden steps. `keeps_keys` keeps keys and values where no response of
        this rank has `need`.
        """
        rows = Rows.of(attention_mask.clamp(max=1), packed)
        positions = row_positions(attention_mask).tolist()
        branches: list[Branch] = []
        step_columns: list[int] = []
        for request in requests:
            branches += answer_branches(request, rows, positions)
            if NEED.name in request.wanted:
                steps = columns_of_steps(request, rows)
                step_columns += range(steps[0].start, steps[-1].stop)
        device = attention_mask.device
        layout = Layout(branches, rows.count, device)
        width = layout.tokens // rows.count
        running = sum(branch.length for branch in branches)

        self.tokens = rows.tokens
        self.share = running / (running + rows.present)
        self._rows = rows
        self._requests = requests
        self._agree = agree
        self._layout = layout
        self._step_columns = torch.tensor(step_columns, dtype=torch.int64, device=device)
        self.predicting = self._find_predicting(width)
        self._mask = None if packed else pad(attention_mask, (0, width), value=1)
        self._keys: RowKeys | None = {} if step_columns or keeps_keys else None
        self._attention = BranchAttention(rows.tokens, layout, self._keys)
        self._mixers = BranchedMixers(model, rows, layout, agree)

    def _find_predicting(self, width: int) -> tuple[Tensor, Tensor]:
        """The (m,) rows and (m,) columns, in the model's input, of what predicts the targets.

        A row of the input has T tokens of responses, and then `width` tokens of branches.
        """
        # Both count the tokens of all rows: those of branches, and those of responses.
        of_branches = self._layout.predicting
        of_steps = self._step_columns - 1  # a token is predicted by the one before it
        rows = torch.cat([of_branches // width, of_steps // self.tokens])
        columns_behind = self.tokens + of_branches % width
        columns = torch.cat([columns_behind, of_steps % self.tokens])
        return rows, columns

    def inputs(self, ids: Tensor, position_ids: Tensor) -> dict[str, Any]:
        """The model's arguments, from (B, T) token and position ids of the rows."""
        row_ids = ids.flatten()
        of_answers = self._layout.targets(row_ids)
        of_steps = row_ids[self._step_columns]
        self.targets = torch.cat([of_answers, of_steps])
        self._row_ids = row_ids
        behind = self._layout.ids(row_ids).view(len(ids), -1)
        input_ids = torch.cat([ids, behind], dim=1)
        positions_behind = self._layout.position.view(len(ids), -1)
        position_ids = torch.cat([position_ids, positions_behind], dim=1)
        return {
            "input_ids": input_ids,
            "position_ids": position_ids,
            "attention_mask": self._mask,
            "use_cache": False,
        }

    @contextmanager
    def branching(self) -> Iterator[None]:
        """Let the model run on such inputs inside the block."""
        with self._attention.replacing(), self._mixers.replacing():
            yield

    def scores(self, log_probs: Tensor) -> list[Tensor]:
        """(K+1,) l_0..l_K of each request on the CPU, from the targets' (m,) log-probabilities."""
        of_answers = log_probs[: len(self._layout.predicting)].cpu()
        sizes = torch.tensor(self._layout.sizes)
        means = torch.segment_reduce(of_answers, "mean", lengths=sizes)
        counts = [len(request.prefix_ends) for request in self._requests]
        return list(torch.split(means, counts))

    def needs(
        self,
        hidden: Sequence[Sequence[HiddenStep | None]],
        log_probs: Tensor,
        run: Callable[[HiddenPass], Tensor],
    ) -> list[Tensor]:
        """(K,) float64 n_1..n_K of each request that wants `need`, on the CPU.

        Takes `steps_to_hide`, the (m,) log-probabilities of the targets, and what runs a pass
        over branches alone: it returns the log-probabilities of the pass's targets at temperature
        1.
        """
        if self._keys is None:
            return []
        passes = [log_probs[:0]]
        for branches in passes_of(hidden, self._agree):
            hidden_pass = HiddenPass(branches, self._keys, self._row_ids)
            passes.append(run(hidden_pass))
        # Copied after the last pass, so that a GPU works while the next pass's tables are made.
        of_branches = torch.cat(passes).cpu()
        return needs_of(hidden, log_probs.cpu(), of_branches)

    def steps_to_hide(self) -> list[list[HiddenStep | None]]:
        """The hidden steps of each response that wants `need`.

        Finding them takes a while: ask for them while a GPU works on the pass over the rows.
        """
        hidden = []
        of_answer = 0
        of_steps = len(self._layout.predicting)
        for request in self._requests:
            assert request.branch is not None
            last = len(request.prefix_ends) - 1
            of_answer += last * len(request.branch.places)
            if NEED.name in request.wanted:
                hidden.append(hidden_steps(request, self._rows, of_steps, of_answer))
                steps = columns_of_steps(request, self._rows)
                of_steps += steps[-1].stop - steps[0].start
            of_answer += len(request.branch.places)
        return hidden


@torch.no_grad()
def read_shared_prefix(
    model: nn.Module,
    sequences: Tensor,
    attention_mask: Tensor,
    requests: Sequence[ScoreRequest],
    packed: bool = False,
    agree: Agree = int,
    keeps_keys: bool = False,
) -> Readings:
    """Read the requests' scores, and their needs, for callers that do not need the rows' logits.

    `sequences` are (responses, tokens) int64 token ids; the other arguments are those of
    `BranchedRows`. Returns by name one tensor on the CPU per request that wants the signal: (K+1,)
    l_0..l_K, float32 (float64 for a float64 model), and (K,) float64 n_1..n_K.
    """
    rows = BranchedRows(model, attention_mask, requests, packed, agree, keeps_keys)
    positions = row_positions(attention_mask)
    if packed:
        present = attention_mask.bool()
        sequences = sequences[present].unsqueeze(0)
        positions = positions[present].unsqueeze(0)
    log_probs = _target_log_probs(model, rows, rows.inputs(sequences, positions))
    steps = rows.steps_to_hide()

    def run(hidden: HiddenPass) -> Tensor:
        return _target_log_probs(model, hidden, hidden.inputs)

    needs = rows.needs(steps, log_probs, run)
    return {ANSWER_LOGPROBS.name: rows.scores(log_probs), NEED.name: needs}


def _target_log_probs(
    model: nn.Module, branched: BranchedRows | HiddenPass, inputs: dict[str, Any]
) -> Tensor:
    """(m,) log-probabilities of the targets at temperature 1, at least float32."""
    rows, columns = branched.predicting
    # The head runs on a column of all rows, if it predicts a target in any of them.
    kept, places = torch.unique(columns, return_inverse=True)
    with branched.branching():
        logits = model(**inputs, logits_to_keep=kept).logits
    every = torch.arange(len(columns), device=columns.device)
    log_probs = []
    for part in torch.split(every, LOGITS):
        predicting = logits[rows[part], places[part]]
        log_probs.append(log_probs_of(predicting, branched.targets[part]))
    return torch.cat(log_probs)

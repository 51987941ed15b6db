"""A critic of length: it predicts what is left from the policy's states.

A step then costs its tokens, less those that it saved.

Shapes: K steps (padded at the end), n rows (states of all responses of a batch), d numbers of a
state, all float64.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from openrlhf_swap.algorithm.batch import StepBatch, StepTrace
from openrlhf_swap.errors import NonFiniteError


class Prediction(NamedTuple):
    """Predicted returns, and how good they are."""

    values: Tensor  # (n,) the predicted return of each row
    r2: float  # the share of the returns' variance that the predictions explain
    solved: bool  # if the regression could not be solved, each row got the mean of its group


class StateCritic:
    """Predicts returns from states by ridge regression; no row takes part in its own prediction.

    The groups of a batch are dealt into `folds` parts. A row is predicted by the ridge regression
    on the rows of all other parts and on earlier batches, whose weights fade by `decay` a batch.
    Earlier batches are kept as their sums of products, (d+2, d+2), and not as rows.
    """

    def __init__(
        self,
        decay: float = 0.75,
        ridge: float = 30.0,
        folds: int = 4,
    ) -> None:
        """Take the weight of the last batch, the ridge in rows, and the number of parts."""
        self._decay = decay
        self._ridge = ridge
        self._folds = folds
        self._earlier: Tensor | None = None

    def predict(
        self,
        states: Tensor,
        returns: Tensor,
        groups: Tensor,
    ) -> Prediction:
        """Predict the returns of a batch, then learn from it.

        Takes (n, d) states of any floating dtype, the (n,) returns, what was still to come at each,
        and the (n,) int64 number of each row's group, from 0. Raises NonFiniteError for a state or
        return that is NaN or infinite.
        """
        states = states.double()
        returns = returns.double()
        _check_finite(states.isfinite().all(-1), "hidden state")
        _check_finite(returns.isfinite(), "return")
        # One, the state and the return in a row: their products are all that a regression needs.
        ones = torch.ones_like(returns)
        rows = torch.cat([ones[:, None], states, returns[:, None]], dim=-1)
        fold_of_row = groups % self._folds
        parts = [rows[fold_of_row == fold] for fold in range(self._folds)]
        products = [part.T @ part for part in parts]
        earlier = self._earlier
        if earlier is None or earlier.shape != products[0].shape:  # of another model
            earlier = torch.zeros_like(products[0])
        values = torch.empty_like(returns)
        solved = True
        for fold, part in enumerate(parts):
            if not len(part):
                continue
            of_others = [*products[:fold], *products[fold + 1 :], earlier]
            others = torch.stack(of_others).sum(0)
            weights = _ridge_weights(others, self._ridge)
            if weights is None:
                solved = False
                break
            values[fold_of_row == fold] = part[:, :-1] @ weights
        if not solved:
            values = _group_means(returns, groups)
        everything = torch.stack(products).sum(0) + earlier
        self._earlier = self._decay * everything
        return Prediction(values, _explained(values, returns), solved)

    def state_dict(self) -> dict[str, Tensor]:
        """The faded sums of products of all batches so far; empty before the first."""
        if self._earlier is None:
            return {}
        return {"products": self._earlier.clone()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on from a `state_dict`."""
        self._earlier = state["products"].clone() if state else None


def _group_means(returns: Tensor, groups: Tensor) -> Tensor:
    """(n,) the mean return of each row's group."""
    sizes = groups.bincount()
    zeros = torch.zeros(len(sizes), dtype=returns.dtype)
    sums = zeros.index_add(0, groups, returns)
    means = sums / sizes.clamp(min=1)
    return means[groups]


def _check_finite(finite: Tensor, name: str) -> None:
    if not finite.all():
        row = int((~finite).nonzero()[0])
        raise NonFiniteError(f"row {row} of {len(finite)}: its {name} is not finite")


def _explained(values: Tensor, returns: Tensor) -> float:
    """The share of the variance that the values explain; 0 where the returns do not vary."""
    centred = returns - returns.mean()
    variance = centred.square().sum()
    if not variance > 0:
        return 0.0
    error = (values - returns).square().sum()
    return float(1 - error / variance)


def _ridge_weights(products: Tensor, ridge: float) -> Tensor | None:
    """(d+1,) intercept and weights from the sums of products; None where they cannot be found.

    The states are standardised for the penalty, so that `ridge` counts as much as that many rows
    without information.
    """
    count = products[0, 0]
    if count < 2:
        return None
    mean = products[0, 1:] / count
    covariance = products[1:, 1:] / count - mean.outer(mean)
    variance = covariance.diagonal()[:-1]
    # A number that never changes has a variance of rounding errors, and no weight.
    size = variance + mean[:-1].square()
    varies = variance > 1e-9 * size
    scale = torch.where(varies, variance, 1.0).sqrt()
    cross = covariance[:-1, -1] / scale
    cross = torch.where(varies, cross, 0.0)
    correlation = covariance[:-1, :-1] / scale.outer(scale)
    correlation = correlation * varies.outer(varies)
    penalty = ridge / count + (~varies).double()
    correlation += torch.diag(penalty)
    factor, failed = torch.linalg.cholesky_ex(correlation)
    if failed:
        return None
    solution = torch.cholesky_solve(cross[:, None], factor)
    weights = solution[:, 0] / scale
    intercept = mean[-1] - weights @ mean[:-1]
    return torch.cat([intercept[None], weights])


def step_costs(
    left: Tensor,
    predicted: Tensor,
    gae_lambda: float,
) -> Tensor:
    """The generalised advantage of length.

    delta_k = tokens of step k + V_k - V_{k-1}, and a_k = delta_k + lambda a_{k+1}.

    Takes the (..., K+1) tokens left at each state and V, those predicted, both 0 after a response's
    last state. With a lambda of 1 a_k are the tokens that followed, less those predicted; with 0
    the step's own TD error. Returns (..., K+1), of each step and, after a response's last step, of
    its rest: above 0 for what took more tokens than it saved.
    """
    # delta_k is the fall of this, and the sum of all delta from a step on is this at its start.
    surprise = left - predicted
    next_surprise = pad(surprise, (0, 1))[..., 1:]
    delta = surprise - next_surprise
    costs = torch.empty_like(delta)
    following = torch.zeros_like(delta[..., 0])
    for step in reversed(range(delta.shape[-1])):
        following = delta[..., step] + gae_lambda * following
        costs[..., step] = following
    return costs


def predict_tokens(
    traces: Sequence[StepTrace], problems: Sequence[int]
) -> tuple[list[list[float]], float]:
    """Predict the tokens left at each state of saved responses, by responses to other problems.

    Returns K+1 numbers for each response, and the share of the variance that they explain.
    `problems` are the number of each response's problem, from 0. Raises as `StepBatch.from_traces`
    and `StateCritic.predict`.
    """
    batch = StepBatch.from_traces([[trace] for trace in traces])
    mask = batch.state_mask
    responses = mask.nonzero()[:, 0]
    numbers = torch.tensor(problems)[responses]
    left = batch.tokens_left[mask]
    prediction = StateCritic().predict(batch.states, left, numbers)
    counts = mask.sum(-1).flatten().tolist()
    rows = torch.split(prediction.values.clamp(min=0), counts)
    return [row.tolist() for row in rows], prediction.r2

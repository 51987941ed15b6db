"""A critic without a network: ridge regression of returns on the policy's hidden states, cross-fitted over groups.

Shapes: n rows (states of all responses of a batch), d numbers of a state. Everything is float64.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from openrlhf_swap.errors import NonFiniteError


class Prediction(NamedTuple):
    """What the states predict.

    Attributes:
        values: (n,) the predicted return of each row.
        r2: share of the returns' variance that the predictions explain; 0 where the returns do not vary.
        solved: whether the regression could be solved; if not, each row got the mean return of its group.
    """

    values: Tensor
    r2: float
    solved: bool


class StateCritic:
    """Predicts returns from states; no row takes part in its own prediction.

    The groups of a batch are dealt into `folds` parts. A row is predicted by the ridge regression on the rows of all
    other parts and on earlier batches, whose weights fade by `decay` a batch. Earlier batches are kept as their sums
    of products, (d+2, d+2), and not as rows.
    """

    def __init__(self, decay: float = 0.75, ridge: float = 30.0, folds: int = 4) -> None:
        """Take the weight of the batch before the current one, the ridge in rows, and the number of parts."""
        self._decay = decay
        self._ridge = ridge
        self._folds = folds
        self._earlier: Tensor | None = None

    def predict(self, states: Tensor, returns: Tensor, groups: Tensor) -> Prediction:
        """Predict the returns of a batch, then learn from it.

        Args:
            states: (n, d) of any floating dtype.
            returns: (n,) what was still to come at each state.
            groups: (n,) int64, the number of each row's group, from 0.

        Raises:
            NonFiniteError: for a state or return that is NaN or infinite.
        """
        states, returns = states.double(), returns.double()
        _check_finite(states, returns)
        # One, the state and the return in a row: their products are all that a regression needs.
        rows = torch.cat([torch.ones_like(returns)[:, None], states, returns[:, None]], dim=-1)
        fold_of_row = groups % self._folds
        parts = [rows[fold_of_row == fold] for fold in range(self._folds)]
        products = [part.T @ part for part in parts]
        if self._earlier is not None and self._earlier.shape != products[0].shape:
            self._earlier = None  # of another model
        values, solved = torch.empty_like(returns), True
        for fold, part in enumerate(parts):
            if not len(part):
                continue
            others = [one for number, one in enumerate(products) if number != fold]
            others += [] if self._earlier is None else [self._earlier]
            weights = _ridge_weights(torch.stack(others).sum(0), self._ridge)
            if weights is None:
                solved = False
                break
            values[fold_of_row == fold] = part[:, :-1] @ weights
        if not solved:
            values = _group_means(returns, groups)
        batch = torch.stack(products).sum(0)
        self._earlier = self._decay * (batch if self._earlier is None else batch + self._earlier)
        return Prediction(values, _r2(values, returns), solved)

    def state_dict(self) -> dict[str, Tensor]:
        """The faded sums of products of all batches so far; empty before the first."""
        return {} if self._earlier is None else {"products": self._earlier.clone()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on from such sums."""
        self._earlier = state["products"].clone() if state else None


def _ridge_weights(products: Tensor, ridge: float) -> Tensor | None:
    """(d+1,) intercept and weights from the sums of products; None where they cannot be found.

    The states are standardised for the penalty, so that `ridge` means as much as that many rows of nothing.
    """
    count = products[0, 0]
    if count < 2:
        return None
    mean = products[0, 1:] / count
    covariance = products[1:, 1:] / count - mean.outer(mean)
    variance = covariance.diagonal()[:-1]
    # A number that never changes has a variance of rounding errors, and no weight.
    varies = variance > 1e-9 * (variance + mean[:-1].square())
    scale = torch.where(varies, variance, 1.0).sqrt()
    cross = torch.where(varies, covariance[:-1, -1] / scale, 0.0)
    correlation = covariance[:-1, :-1] / scale.outer(scale) * varies.outer(varies)
    correlation += torch.diag(ridge / count + (~varies).double())
    factor, failed = torch.linalg.cholesky_ex(correlation)
    if failed:
        return None
    weights = torch.cholesky_solve(cross[:, None], factor)[:, 0] / scale
    return torch.cat([(mean[-1] - weights @ mean[:-1])[None], weights])


def _group_means(returns: Tensor, groups: Tensor) -> Tensor:
    sums = torch.zeros(int(groups.max()) + 1, dtype=returns.dtype).index_add(0, groups, returns)
    return (sums / groups.bincount().clamp(min=1))[groups]


def _r2(values: Tensor, returns: Tensor) -> float:
    variance = (returns - returns.mean()).square().sum()
    return float(1 - (values - returns).square().sum() / variance) if variance > 0 else 0.0


def _check_finite(states: Tensor, returns: Tensor) -> None:
    for name, values in (("hidden state", states), ("return", returns.unsqueeze(-1))):
        wrong = (~values.isfinite()).any(-1).nonzero()
        if len(wrong):
            raise NonFiniteError(f"row {int(wrong[0])} of {len(values)}: its {name} is not finite")

"""What a response needs of each step: hide the step, and read again what follows.

The slow and obvious way, with a dense mask for each step and one response at a time. n_k is the
most that a later step or the answer loses, in nats a token, if no token after step k sees step k;
nothing else changes, and positions stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from world import CLOSE

from openrlhf_swap.algorithm.advantages import normalise_step_rewards, penalty_weights
from openrlhf_swap.scoring.answer import answer_branch

FLOOR = 0.01  # nats a token, of a need in a logarithm
TAU = 0.25  # standard deviations of a group's worth
EPS = 1e-6  # least spread, of gains, needs and worth


@torch.no_grad()
def losses(
    model: Any,
    tokenizer: Any,
    prompt: Sequence[int],
    response: Sequence[int],
    ends: Sequence[int],
    answer: str,
) -> Tensor:
    """(K, K+1) float64, the nats a token that each step loses without each earlier one.

    Row k is without step k. Its last column is the answer's loss; it is 0 up to step k. The model
    attends eagerly; `ends` are the indices of the steps' last tokens in the response.
    """
    branch = answer_branch(tokenizer, CLOSE, answer)
    cut = ends[-1] + 1
    starts = [0, *(end + 1 for end in ends[:-1])]
    ids = torch.tensor([*prompt, *response[:cut], *branch.ids])
    first, tokens, steps = len(prompt), len(ids), len(ends)
    causal = torch.ones(tokens, tokens, dtype=torch.bool).tril()
    visible = causal.repeat(steps + 1, 1, 1)  # the first row sees all
    for k in range(steps):
        hidden = slice(first + starts[k], first + ends[k] + 1)
        visible[k + 1, hidden.stop :, hidden] = False
    mask = torch.zeros(visible.shape, dtype=model.dtype)
    mask.masked_fill_(~visible, torch.finfo(model.dtype).min)
    rows = ids.expand(steps + 1, -1)
    logits = model(
        rows,
        attention_mask=mask[:, None],
        position_ids=torch.arange(tokens).expand(steps + 1, -1),
        use_cache=False,
    ).logits
    log_probs = logits[:, :-1].float().log_softmax(-1)
    log_probs = log_probs.gather(-1, rows[:, 1:, None]).squeeze(-1).double()
    drops = log_probs[0] - log_probs[1:]  # (K, tokens - 1); a token stands one place before it
    lost = torch.zeros(steps, steps + 1, dtype=torch.float64)
    for k in range(steps):
        for j in range(k + 1, steps):
            lost[k, j] = drops[k, first + starts[j] - 1 : first + ends[j]].mean()
    of_answer = drops[:, first + cut - 1 :]
    lost[:, steps] = of_answer[:, torch.tensor(branch.scored)].mean(-1)
    return lost


def needs(lost: Tensor, window: int = 0) -> Tensor:
    """(K,) n_k: the most that the answer, or one of the next `window` steps (0: all), loses."""
    steps = len(lost)
    last = window or steps
    return torch.stack([lost[k, k + 1 : k + 1 + last].max() for k in range(steps)])


def need_weights(
    gains: Tensor,
    needed: Tensor,
    mask: Tensor,
) -> Tensor:
    """(G, N, K) w = softmax(-v/tau), v = z(Delta) + z(log n), tau in deviations of a group's v."""
    logs = needed.clamp(min=FLOOR).log()
    worth = normalise_step_rewards(
        gains,
        mask,
        EPS,
    ) + normalise_step_rewards(
        logs,
        mask,
        EPS,
    )
    weights = torch.zeros_like(worth)
    for group, exists in enumerate(mask):
        chosen = worth[group][exists]
        if len(chosen) > 1:
            tau = max(TAU * float(chosen.std()), EPS)
            weights[group] = penalty_weights(worth[group], exists, tau)
    return weights

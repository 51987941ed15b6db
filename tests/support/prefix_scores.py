"""Batches of responses to score, and the slow obvious way to score them: one forward for each
prefix.
"""

from contextlib import contextmanager

import pytest
import torch

from openrlhf_swap.scoring import branches
from openrlhf_swap.scoring.answer import AnswerBranch, ScoreRequest, read_per_prefix
from openrlhf_swap.scoring.shared_prefix import read_shared_prefix


def score_shared_prefix(*given, **options):
    """l_0..l_K alone of each request."""
    return read_shared_prefix(*given, **options)["answer_logprobs"]


def ragged_case(seed, rows, left, longest, words):
    """Random rows of one batch, padded on one side, the second of three unscored, and their
    reference arguments.
    """
    generator = torch.Generator().manual_seed(seed)

    def draw(low, high):
        return int(torch.randint(low, high + 1, (), generator=generator))

    lengths = [draw(2, longest) for _ in range(rows)]
    width = max(lengths) + draw(0, 3)
    ids = torch.randint(0, words, (rows, width), generator=generator)
    mask = torch.zeros(rows, width, dtype=torch.int64)
    requests, references = [], []
    for row, length in enumerate(lengths):
        offset = width - length if left else 0
        mask[row, offset : offset + length] = 1
        if row % 3 == 1:
            continue
        ends = sorted({draw(0, length - 1) for _ in range(draw(1, 7))})
        size = draw(1, 9)
        first = draw(0, size - 1)
        tokens = torch.randint(0, words, (size,), generator=generator).tolist()
        branch = AnswerBranch(tuple(tokens), tuple(position >= first for position in range(size)))
        requests.append(ScoreRequest(row, tuple(end + offset for end in ends), branch))
        references.append((ids[row, offset : offset + length], [end + 1 for end in ends], branch))
    return ids, mask, requests, references


def largest_difference(model, case, packed=False):
    """Between the shared prefix's scores of a case and those of a forward for each prefix."""
    ids, mask, requests, references = case
    shared = score_shared_prefix(model, ids, mask, requests, packed)
    expected = [read_per_prefix(model, *reference) for reference in references]
    return max((a - b).abs().max().item() for a, b in zip(shared, expected, strict=True))


@contextmanager
def masks_of(elements):
    """Attention masks of branches have at most so many elements: with few, each branch is attended
    alone.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(branches, "MAX_MASK_ON_CPU", elements)
        yield

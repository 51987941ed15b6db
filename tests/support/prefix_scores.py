"""Batches of responses to score, and the slow way to score them: one forward for each prefix."""

from contextlib import contextmanager

import pytest
import torch

from openrlhf_swap.scoring import branches
from openrlhf_swap.scoring.answer import AnswerBranch, ScoreRequest, read_per_prefix
from openrlhf_swap.scoring.shared_prefix import read_shared_prefix


def score_shared_prefix(*given, **options):
    """(K + 1,) of each request, the log-probabilities of its answer behind each prefix."""
    return read_shared_prefix(*given, **options)["answer_logprobs"]


def ragged_case(seed, rows, left, longest, words):
    """A batch of random rows, padded on one side, of which the second of three is not scored.

    Returns: ids, mask, requests, and the arguments of `read_per_prefix` of each request.
    """
    generator = torch.Generator().manual_seed(seed)

    def draw(low, high):
        return int(torch.randint(low, high + 1, (), generator=generator))

    lengths = [draw(2, longest) for _ in range(rows)]
    width = max(lengths) + draw(0, 3)
    ids = torch.randint(0, words, (rows, width), generator=generator)
    mask = torch.zeros(rows, width, dtype=torch.int64)
    requests = []
    references = []
    for row, length in enumerate(lengths):
        offset = width - length if left else 0
        mask[row, offset : offset + length] = 1
        if row % 3 == 1:
            continue
        ends = [draw(0, length - 1) for _ in range(draw(1, 7))]
        ends = sorted(set(ends))
        size = draw(1, 9)
        first = draw(0, size - 1)
        tokens = torch.randint(0, words, (size,), generator=generator).tolist()
        branch = AnswerBranch(tuple(tokens), tuple(position >= first for position in range(size)))
        requests.append(ScoreRequest(row, tuple(end + offset for end in ends), branch))
        lengths_before = [end + 1 for end in ends]
        references.append((ids[row, offset : offset + length], lengths_before, branch))
    return ids, mask, requests, references


def largest_difference(model, case, packed=False):
    """The largest difference between the scores of the fast and of the slow way in a case."""
    ids, mask, requests, references = case
    found = score_shared_prefix(model, ids, mask, requests, packed)
    expected = [read_per_prefix(model, *reference) for reference in references]
    differences = torch.cat(list(found)) - torch.cat(expected)
    return differences.abs().max().item()


@contextmanager
def masks_of(elements):
    """Limit the elements of the branches' attention masks.

    With few elements each branch is attended alone.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(branches, "MASK_ELEMENTS_ON_CPU", elements)
        yield

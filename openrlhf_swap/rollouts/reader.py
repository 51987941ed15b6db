"""Where a response's reasoning ends and where its steps end, in token space."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from openrlhf_swap.algorithm.steps import segment_at_newlines
from openrlhf_swap.rollouts.answers import END_OF_THOUGHT

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class ResponseReader(Protocol):
    """Decodes responses and finds the end of their thought; `StepReader` is one."""

    def text(self, ids: Sequence[int]) -> str:
        """Decoded text, special tokens included."""

    def reasoning_length(self, response_ids: Sequence[int]) -> int:
        """Tokens before the first `</think>`; all of them if there is none."""


class StepReader:
    """Cuts responses into steps. Reads the tokenizer's vocabulary once; a response is never re-tokenised."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, step_tokens: int, max_steps: int, newline_patience: float = 2.0
    ) -> None:
        """Takes a tokenizer, and M, K and the patience of `segment_steps`."""
        self._tokenizer = tokenizer
        self._limits = (step_tokens, max_steps, newline_patience)
        # Decoded text decides, not one id: in Qwen's vocabulary about 2,200 tokens contain a newline.
        texts = tokenizer.batch_decode([[i] for i in range(len(tokenizer))], skip_special_tokens=False)
        # A model's embedding may be larger than its tokenizer: such ids have no text, and stand for the last entry.
        self._is_newline = np.array([*("\n" in text for text in texts), False])
        close_ids = tokenizer(END_OF_THOUGHT, add_special_tokens=False)["input_ids"]
        self._close_id = close_ids[0] if len(close_ids) == 1 else None

    def reasoning_length(self, response_ids: Sequence[int]) -> int:
        """Tokens before the first `</think>`; all of them if there is none."""
        ids = list(response_ids)
        if self._close_id is not None:
            return ids.index(self._close_id) if self._close_id in ids else len(ids)
        return self._length_before_text(ids)

    def step_ends(self, response_ids: Sequence[int]) -> list[int]:
        """e_1..e_K: the index in the response of each step's last token."""
        length = self.reasoning_length(response_ids)
        ids = np.minimum(np.asarray(response_ids[:length], dtype=np.int64), len(self._is_newline) - 1)
        return segment_at_newlines(np.flatnonzero(self._is_newline[ids]).tolist(), length, *self._limits)

    def step_texts(self, response_ids: Sequence[int], step_ends: Sequence[int]) -> list[str]:
        """The decoded text of each step."""
        starts = [0, *(end + 1 for end in step_ends[:-1])]
        return [self.text(response_ids[start : end + 1]) for start, end in zip(starts, step_ends, strict=True)]

    def text(self, ids: Sequence[int]) -> str:
        """Decoded text, special tokens included."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))

    def _length_before_text(self, ids: list[int]) -> int:
        """For vocabularies in which `</think>` is several tokens."""

        def text_of(count: int) -> str:
            return self.text(ids[:count])

        position = text_of(len(ids)).find(END_OF_THOUGHT)
        if position < 0:
            return len(ids)
        counts = range(len(ids) + 1)
        complete = bisect_left(counts, True, key=lambda count: END_OF_THOUGHT in text_of(count))
        return bisect_right(counts, position, hi=complete, key=lambda count: len(text_of(count))) - 1

"""Where a response's reasoning ends and where its steps end, in token space."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import torch
from transformers import PreTrainedTokenizerBase

from openrlhf_swap.algorithm.steps import segment_at_newlines
from openrlhf_swap.answers import END_OF_THOUGHT
from openrlhf_swap.config import SwapConfig


class StepReader:
    """Cuts responses into steps. Reads the tokenizer's vocabulary once; a response is never re-tokenised."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, config: SwapConfig) -> None:
        self._tokenizer = tokenizer
        self._config = config
        # Decoded text decides, not one id: in Qwen's vocabulary about 2,200 tokens contain a newline.
        texts = tokenizer.batch_decode([[i] for i in range(len(tokenizer))], skip_special_tokens=False)
        self._is_newline = torch.tensor(["\n" in text for text in texts])
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
        ids = torch.as_tensor(response_ids[:length], dtype=torch.int64)
        # A model's embedding may be larger than its tokenizer; such ids have no text.
        known = ids < len(self._is_newline)
        newlines = (known & self._is_newline[torch.where(known, ids, 0)]).nonzero().flatten().tolist()
        config = self._config
        return segment_at_newlines(newlines, length, config.step_tokens, config.max_steps, config.newline_patience)

    def step_texts(self, response_ids: Sequence[int], step_ends: Sequence[int]) -> list[str]:
        """The decoded text of each step."""
        starts = [0, *(end + 1 for end in step_ends[:-1])]
        return [self.text(response_ids[start : end + 1]) for start, end in zip(starts, step_ends, strict=True)]

    def text(self, ids: Sequence[int]) -> str:
        """Decoded text, special tokens included."""
        return self._tokenizer.decode(ids, skip_special_tokens=False)

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

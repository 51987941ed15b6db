"""Sampling from a world's policy in plain PyTorch: free responses, or some tokens forced.

vLLM starts for a minute and forces nothing; the gates of a world ask for both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

BATCH = 256
KEPT = 0.8  # share of unfinished rows below which the others are dropped from a batch

# Of each token of a response: the tokens that may stand there. One is forced, several are sampled.
Template = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Decoder:
    """A policy, its tokenizer and the generator that samples; temperature 1."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    generator: torch.Generator

    def encode(self, text: str) -> list[int]:
        """Tokens of a text, none added."""
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def respond(self, prompts: Sequence[str], max_tokens: int = 320) -> list[list[int]]:
        """A sampled response to each prompt, with its end token unless `max_tokens` cut it off."""
        rows = [self.encode(prompt) for prompt in prompts]
        return self._in_batches(rows, None, max_tokens)

    def fill(self, prompts: Sequence[str], templates: Sequence[Template]) -> list[list[int]]:
        """A response to each prompt, as long as its template and with the tokens that it allows."""
        rows = [self.encode(prompt) for prompt in prompts]
        return self._in_batches(rows, templates, max(map(len, templates), default=0))

    def _in_batches(
        self, rows: list[list[int]], templates: Sequence[Template] | None, max_tokens: int
    ) -> list[list[int]]:
        """Rows of like length go together, because a batch is as long as its longest row."""
        sizes = [len(row) + (len(templates[i]) if templates else 0) for i, row in enumerate(rows)]
        order = sorted(range(len(rows)), key=sizes.__getitem__)
        found: dict[int, list[int]] = {}
        for start in range(0, len(order), BATCH):
            chosen = order[start : start + BATCH]
            part = [templates[i] for i in chosen] if templates else None
            found.update(
                zip(chosen, self._decode([rows[i] for i in chosen], part, max_tokens), strict=True)
            )
        return [found[i] for i in range(len(rows))]

    @torch.no_grad()
    def _decode(
        self, rows: list[list[int]], templates: Sequence[Template] | None, max_tokens: int
    ) -> list[list[int]]:
        end = self.tokenizer.eos_token_id
        ids, mask = padded_left(rows, self.tokenizer.pad_token_id)
        places = (mask.cumsum(-1) - 1).clamp(min=0)
        written: list[list[int]] = [[] for _ in rows]
        left = torch.arange(len(rows))  # which rows the tensors hold
        cache = None
        for step in range(max_tokens):
            output = self.model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=places,
                past_key_values=cache,
                use_cache=True,
            )
            cache = output.past_key_values
            logits = output.logits[:, -1, : len(self.tokenizer)].float()
            if templates:
                own = (templates[row] for row in left.tolist())
                allowed = [template[step] if step < len(template) else [end] for template in own]
                logits = logits + only(allowed, logits.shape[-1])
            chosen = torch.multinomial(logits.softmax(-1), 1, generator=self.generator)
            for row, token in zip(left.tolist(), chosen[:, 0].tolist(), strict=True):
                if not written[row] or written[row][-1] != end:
                    written[row].append(token)
            alive = torch.tensor([written[row][-1] != end for row in left.tolist()])
            if not alive.any():
                break
            ids = chosen
            places = places[:, -1:] + 1
            mask = torch.cat([mask, torch.ones_like(chosen)], dim=1)
            if alive.double().mean() < KEPT:
                cache.batch_select_indices(alive.nonzero()[:, 0])
                ids = ids[alive]
                places = places[alive]
                mask = mask[alive]
                left = left[alive]
        if templates:
            return [row[: len(template)] for row, template in zip(written, templates, strict=True)]
        return written


def only(allowed: Sequence[Sequence[int]], size: int) -> Tensor:
    """(rows, size): 0 for what each row allows, else -inf."""
    bias = torch.full((len(allowed), size), -torch.inf)
    for row, tokens in enumerate(allowed):
        bias[row, list(tokens)] = 0.0
    return bias


def padded_left(rows: Sequence[Sequence[int]], pad: int) -> tuple[Tensor, Tensor]:
    """Token ids and attention mask, (rows, longest)."""
    longest = max(map(len, rows))
    ids = torch.tensor([[pad] * (longest - len(row)) + list(row) for row in rows])
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
    return ids, mask

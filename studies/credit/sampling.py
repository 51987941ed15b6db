"""Many short responses of a small Qwen2 on a CPU: `generate` takes several times as long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from studies.toy_tasks.decoding import padded_left

DROPPED_EVERY = 8  # tokens; then rows that have ended leave the batch, and the cache grows


@dataclass(frozen=True)
class Rotation:
    """Cosine and sine of the places of a batch's next tokens, each (rows, 1, head size)."""

    cosine: Tensor
    sine: Tensor

    def turned(self, heads: Tensor) -> Tensor:
        """The heads (rows, heads, head size) turned to their place."""
        half = heads.shape[-1] // 2
        crossed = torch.cat([-heads[..., half:], heads[..., :half]], -1)
        return heads * self.cosine + crossed * self.sine


class CachedLayer:
    """A layer with joined projections, and the keys and values of the tokens so far.

    There is room for DROPPED_EVERY more; `keep` makes as much again.
    """

    def __init__(self, layer: Any, config: Any, seen: Any) -> None:
        attention = layer.self_attn
        parts = [attention.q_proj, attention.k_proj, attention.v_proj]
        self._weight = torch.cat([part.weight for part in parts])
        self._bias = torch.cat([part.bias for part in parts])
        self._feed = torch.cat([layer.mlp.gate_proj.weight, layer.mlp.up_proj.weight])
        self._inner = config.intermediate_size
        self._groups = config.num_key_value_heads
        self._head = config.hidden_size // config.num_attention_heads
        self._layer = layer
        self._keys = with_room(seen.keys)
        self._values = with_room(seen.values)

    def keep(self, rows: Tensor, tokens: int) -> None:
        """Keep the first `tokens` keys and values of these rows, and make room for more."""
        self._keys = with_room(self._keys[:, :, :tokens].index_select(0, rows))
        self._values = with_room(self._values[:, :, :tokens].index_select(0, rows))

    def forward(self, x: Tensor, place: int, rotation: Rotation, bias: Tensor) -> Tensor:
        """The hidden states (rows, width) of the tokens at this place, after the layer."""
        x = x + self._attended(self._layer.input_layernorm(x), place, rotation, bias)
        wide = F.linear(self._layer.post_attention_layernorm(x), self._feed)
        gated = F.silu(wide[:, : self._inner]) * wide[:, self._inner :]
        return x + self._layer.mlp.down_proj(gated)

    def _attended(self, x: Tensor, place: int, rotation: Rotation, bias: Tensor) -> Tensor:
        heads = F.linear(x, self._weight, self._bias).view(len(x), -1, self._head)
        turned = rotation.turned(heads[:, : -self._groups])
        self._keys[:, :, place] = turned[:, -self._groups :]
        self._values[:, :, place] = heads[:, -self._groups :]
        # The query heads of a key head attend as rows of one product, so that no keys are copied.
        query = turned[:, : -self._groups].reshape(len(x), self._groups, -1, self._head)
        seen = slice(place + 1)
        mixed = F.scaled_dot_product_attention(
            query, self._keys[:, :, seen], self._values[:, :, seen], bias[..., seen]
        )
        return self._layer.self_attn.o_proj(mixed.reshape(len(x), -1))


@dataclass(frozen=True)
class Sampled:
    """A response to each prompt.

    Attributes:
        responses: token ids, with the end token if it came.
        log_probs: the log-probability of each of these tokens.
    """

    responses: list[list[int]]
    log_probs: list[list[float]]


class Decoding:
    """The responses of a batch that are still being written, R of them.

    Attributes:
        rows: (R,) which prompts they answer.
        logits: (R, words) of their next token.
    """

    def __init__(self, model: Any, ids: Tensor, mask: Tensor, max_tokens: int) -> None:
        """Read the prompts: (R, tokens) ids, padded on the left, and their mask."""
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        output = model(ids, attention_mask=mask, position_ids=positions, use_cache=True)
        self.rows = torch.arange(len(ids))
        self.logits = output.logits[:, -1]
        self._model = model
        self._layers = []
        for layer, seen in zip(model.model.layers, output.past_key_values.layers, strict=True):
            self._layers.append(CachedLayer(layer, model.config, seen))
        # What attention adds to the scores of each place: -inf for padding.
        is_padding = F.pad(mask, (0, max_tokens), value=1)[:, None, None] == 0
        self._bias = torch.zeros(is_padding.shape, dtype=model.dtype)
        self._bias.masked_fill_(is_padding, -torch.inf)
        self._place = ids.shape[1]  # of the next token, among the keys and values
        self._positions = mask.sum(-1)  # of the next token, padding apart

    @property
    def drops_ended(self) -> bool:
        """Whether the responses that have ended are to be dropped before the next token."""
        return self._place % DROPPED_EVERY == DROPPED_EVERY - 1

    def keep(self, kept: Tensor) -> None:
        """Drop all responses but these of the R, and make room for more tokens."""
        self.rows = self.rows[kept]
        self._positions = self._positions[kept]
        self._bias = self._bias[kept]
        for layer in self._layers:
            layer.keep(kept, self._place)

    def append(self, tokens: Tensor) -> None:
        """Read (R,) next tokens, so that `logits` are those of the tokens behind them."""
        model = self._model.model
        rotation = self._rotation()
        x = model.embed_tokens(tokens)
        for layer in self._layers:
            x = layer.forward(x, self._place, rotation, self._bias)
        self.logits = self._model.lm_head(model.norm(x))
        self._place += 1
        self._positions = self._positions + 1

    def _rotation(self) -> Rotation:
        angle = self._positions[:, None] * self._model.model.rotary_emb.inv_freq
        dtype = self._model.dtype
        cosine = angle.cos().to(dtype).repeat(1, 2)[:, None]
        sine = angle.sin().to(dtype).repeat(1, 2)[:, None]
        return Rotation(cosine, sine)


@torch.no_grad()
def sample(
    model: PreTrainedModel, prompts: Sequence[list[int]], end: int, pad: int, max_tokens: int = 320
) -> Sampled:
    """Sample a response of at most `max_tokens` to each prompt at temperature 1."""
    ids, mask = padded_left(prompts, pad)
    decoding = Decoding(model, ids, mask, max_tokens)
    written = torch.full((len(prompts), max_tokens), end)
    log_probs = torch.zeros(len(prompts), max_tokens)
    alive = torch.ones(len(prompts), dtype=torch.bool)
    for step in range(max_tokens):
        scores = decoding.logits.float().log_softmax(-1)
        drawn = torch.multinomial(scores.exp(), 1)
        tokens = drawn[:, 0]
        written[decoding.rows, step] = tokens
        log_probs[decoding.rows, step] = scores.gather(-1, drawn)[:, 0]
        alive &= tokens != end
        if not alive.any():
            break
        if decoding.drops_ended:
            kept = alive.nonzero()[:, 0]
            decoding.keep(kept)
            tokens = tokens[kept]
            alive = alive[kept]
        decoding.append(tokens)
    # A row that has ended goes on until it is dropped; what follows its end is cut off.
    responses = [up_to(end, row) for row in written.tolist()]
    lengths = map(len, responses)
    own = [row[:length] for row, length in zip(log_probs.tolist(), lengths, strict=True)]
    return Sampled(responses, own)


def with_room(seen: Tensor) -> Tensor:
    """Keys or values (rows, heads, tokens, head size) with room for DROPPED_EVERY more tokens."""
    return F.pad(seen, (0, 0, 0, DROPPED_EVERY))


def up_to(end: int, row: list[int]) -> list[int]:
    """The tokens up to the first `end`, which is included; all if there is none."""
    return row[: row.index(end) + 1] if end in row else row

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

DROPPED_EVERY = 8  # tokens; then rows that have ended leave the batch


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

    Room for `max_tokens` more is allocated once.
    """

    def __init__(self, layer: Any, config: Any, seen: Any, max_tokens: int) -> None:
        attention = layer.self_attn
        parts = [attention.q_proj, attention.k_proj, attention.v_proj]
        self._weight = torch.cat([part.weight for part in parts])
        self._bias = torch.cat([part.bias for part in parts])
        self._feed = torch.cat([layer.mlp.gate_proj.weight, layer.mlp.up_proj.weight])
        self._inner = config.intermediate_size
        self._groups = config.num_key_value_heads
        self._head = config.hidden_size // config.num_attention_heads
        self._layer = layer
        self._keys = F.pad(seen.keys, (0, 0, 0, max_tokens))
        self._values = F.pad(seen.values, (0, 0, 0, max_tokens))

    def keep(self, alive: Tensor) -> None:
        """Drop the other rows."""
        self._keys = self._keys[alive]
        self._values = self._values[alive]

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


@torch.no_grad()
def sample(
    model: PreTrainedModel, prompts: Sequence[list[int]], end: int, pad: int, max_tokens: int = 320
) -> tuple[list[list[int]], list[list[float]]]:
    """A response to each prompt at temperature 1, and each token's log-probability.

    The end token is included if it came.
    """
    ids, mask = padded_left(prompts, pad)
    given = ids.shape[1]
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    out = model(ids, attention_mask=mask, position_ids=positions, use_cache=True)
    layers = []
    for layer, seen in zip(model.model.layers, out.past_key_values.layers, strict=True):
        layers.append(CachedLayer(layer, model.config, seen, max_tokens))
    hidden = F.pad(mask, (0, max_tokens), value=1)[:, None, None] == 0
    bias = torch.zeros(hidden.shape, dtype=model.dtype).masked_fill_(hidden, -torch.inf)
    rows = torch.arange(len(prompts))
    places = mask.sum(-1)
    logits = out.logits[:, -1]
    written: list[list[int]] = [[] for _ in prompts]
    likely: list[list[float]] = [[] for _ in prompts]
    for place in range(given, given + max_tokens):
        scores = logits.float().log_softmax(-1)
        token = torch.multinomial(scores.exp(), 1)
        columns = (rows.tolist(), token[:, 0].tolist(), scores.gather(-1, token)[:, 0].tolist())
        for row, one, score in zip(*columns, strict=True):
            if not written[row] or written[row][-1] != end:
                written[row].append(one)
                likely[row].append(score)
        alive = torch.tensor([written[row][-1] != end for row in rows.tolist()])
        if not alive.any():
            break
        token = token[:, 0]
        if place % DROPPED_EVERY == DROPPED_EVERY - 1:
            token = token[alive]
            rows = rows[alive]
            places = places[alive]
            bias = bias[alive]
            for layer in layers:
                layer.keep(alive)
        x = model.model.embed_tokens(token)
        angle = places[:, None] * model.model.rotary_emb.inv_freq
        cosine = angle.cos().to(x.dtype).repeat(1, 2)[:, None]
        sine = angle.sin().to(x.dtype).repeat(1, 2)[:, None]
        for layer in layers:
            x = layer.forward(x, place, Rotation(cosine, sine), bias)
        logits = model.lm_head(model.model.norm(x))
        places = places + 1
    return written, likely

"""Many short responses of a small Qwen2 on a CPU: `generate` takes several times as long."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from transformers import PreTrainedModel

from studies.toy_tasks.decoding import padded_left


@torch.no_grad()
def sample(
    model: PreTrainedModel, prompts: Sequence[list[int]], end: int, pad: int, max_tokens: int = 320
) -> tuple[list[list[int]], list[list[float]]]:
    """A response to each prompt at temperature 1, and each token's log-probability.

    The end token is included if it came. Projections are joined, the cache is allocated once, and
    rows that have ended leave the batch now and then.
    """
    c = model.config
    head = c.hidden_size // c.num_attention_heads
    groups = c.num_key_value_heads
    inner = c.intermediate_size
    ids, mask = padded_left(prompts, pad)
    given = ids.shape[1]
    out = model(
        ids, attention_mask=mask, position_ids=(mask.cumsum(-1) - 1).clamp(min=0), use_cache=True
    )
    caches = [
        F.pad(x, (0, 0, 0, max_tokens))
        for part in out.past_key_values.layers
        for x in (part.keys, part.values)
    ]
    hidden = F.pad(mask, (0, max_tokens), value=1)[:, None, None] == 0
    bias = torch.zeros(hidden.shape, dtype=model.dtype).masked_fill_(hidden, -torch.inf)
    layers = []
    for layer in model.model.layers:
        parts = [layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj]
        joined = (
            torch.cat([part.weight for part in parts]),
            torch.cat([part.bias for part in parts]),
        )
        feed = torch.cat([layer.mlp.gate_proj.weight, layer.mlp.up_proj.weight])
        norms = (layer.input_layernorm, layer.post_attention_layernorm)
        layers.append((joined, layer.self_attn.o_proj, feed, layer.mlp.down_proj, *norms))
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
        if place % 8 == 7:
            token = token[alive]
            rows = rows[alive]
            places = places[alive]
            bias = bias[alive]
            caches = [cache[alive] for cache in caches]
        x = model.model.embed_tokens(token)
        angle = places[:, None] * model.model.rotary_emb.inv_freq
        cos, sin = (f(angle).to(x.dtype).repeat(1, 2)[:, None] for f in (torch.cos, torch.sin))
        for number, (joined, project, feed, down, before, after) in enumerate(layers):
            keys, values = caches[2 * number : 2 * number + 2]
            heads = F.linear(before(x), *joined).view(len(x), -1, head)
            turned = heads[:, :-groups]
            turned = (
                turned * cos
                + torch.cat([-turned[..., head // 2 :], turned[..., : head // 2]], -1) * sin
            )
            keys[:, :, place] = turned[:, -groups:]
            values[:, :, place] = heads[:, -groups:]
            # The query heads of a key head attend as rows of one product, so that no keys are
            # copied.
            query = turned[:, :-groups].reshape(len(x), groups, -1, head)
            seen = slice(place + 1)
            mixed = F.scaled_dot_product_attention(
                query, keys[:, :, seen], values[:, :, seen], bias[..., seen]
            )
            x = x + project(mixed.reshape(len(x), -1))
            wide = F.linear(after(x), feed)
            x = x + down(F.silu(wide[:, :inner]) * wide[:, inner:])
        logits = model.lm_head(model.model.norm(x))
        places = places + 1
    return written, likely

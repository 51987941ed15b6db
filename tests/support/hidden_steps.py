"""The slow and obvious way to read what a response needs of its steps: a masked pass a step."""

import torch

LEAST = torch.finfo(torch.float32).min


def masks_without(model, tokens, hidden):
    """Additive masks in which tokens behind columns `hidden` do not see them."""
    column = torch.arange(tokens)
    visible = column[:, None] >= column
    visible &= ~(
        (column[:, None] >= hidden.stop) & (column >= hidden.start) & (column < hidden.stop)
    )
    window = getattr(model.config, "sliding_window", None) or tokens
    near = visible & (column[:, None] - column < window)

    def additive(seen):
        zeros = torch.zeros(1, 1, tokens, tokens, dtype=model.dtype)
        return zeros.masked_fill(~seen, torch.finfo(model.dtype).min)

    kinds = set(getattr(model.config, "layer_types", None) or ())
    if kinds > {"full_attention"}:
        return {"full_attention": additive(visible), "sliding_attention": additive(near)}
    return additive(near)


@torch.no_grad()
def token_log_probs(model, ids, hidden):
    """(T,) the log-probability of each token, nothing for the first, without columns `hidden`."""
    masks = masks_without(model, len(ids), hidden)
    positions = torch.arange(len(ids))[None]
    logits = model(ids[None], attention_mask=masks, position_ids=positions, use_cache=False).logits[
        0
    ]
    found = logits[:-1].log_softmax(-1).gather(-1, ids[1:, None]).squeeze(-1)
    return torch.cat([found.new_zeros(1), found]).double()


def slow_needs(model, ids, request, window=0):
    """(K,) n_k by the definition, of the (T,) ids of a row without padding."""
    answer = torch.tensor(request.branch.ids)
    ids = torch.cat([ids[: request.prefix_ends[-1] + 1], answer])
    bounds = [end + 1 for end in request.prefix_ends]
    groups = [range(start, own + 1) for start, own in zip(bounds, request.own_ends, strict=False)]
    places = [bounds[-1] + place for place, used in enumerate(request.branch.scored) if used]
    groups.append(places)
    plain = token_log_probs(model, ids, range(0))
    needs = []
    for step in range(len(bounds) - 1):
        drop = plain - token_log_probs(model, ids, range(bounds[step], bounds[step + 1]))
        last = len(groups) if window == 0 else step + window + 1
        later = groups[step + 1 : last]
        needs.append(max(drop[list(group)].mean() for group in later))
    return torch.stack(needs)

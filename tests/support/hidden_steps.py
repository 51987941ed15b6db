"""The slow and obvious way to compute `need`: for each step, a pass in which it is masked."""

import torch


def masks_without(model, tokens, hidden):
    """Additive (1, 1, T, T) masks in which tokens behind the columns `hidden` do not see them.

    Returns: a mask, or for a model with several kinds of layers a mask by kind.
    """
    key = torch.arange(tokens)
    query = key[:, None]
    is_hidden = (key >= hidden.start) & (key < hidden.stop)
    visible = (query >= key) & ~(is_hidden & (query >= hidden.stop))
    window = getattr(model.config, "sliding_window", None) or tokens
    near = visible & (query - key < window)

    def additive(seen):
        zeros = torch.zeros(1, 1, tokens, tokens, dtype=model.dtype)
        return zeros.masked_fill(~seen, torch.finfo(model.dtype).min)

    kinds = set(getattr(model.config, "layer_types", None) or ())
    if kinds > {"full_attention"}:
        return {"full_attention": additive(visible), "sliding_attention": additive(near)}
    return additive(near)


@torch.no_grad()
def token_log_probs(model, ids, hidden):
    """(T,) the log-probability of each token without the columns `hidden`; 0 for the first."""
    masks = masks_without(model, len(ids), hidden)
    positions = torch.arange(len(ids))[None]
    output = model(ids[None], attention_mask=masks, position_ids=positions, use_cache=False)
    log_probs = output.logits[0, :-1].log_softmax(-1)
    found = log_probs.gather(-1, ids[1:, None]).squeeze(-1)
    return torch.cat([found.new_zeros(1), found]).double()


def slow_needs(model, ids, request, window=0):
    """(K,) n_k by its definition, of the (T,) ids of a row without padding."""
    answer = torch.tensor(request.branch.ids)
    ids = torch.cat([ids[: request.prefix_ends[-1] + 1], answer])
    bounds = [end + 1 for end in request.prefix_ends]
    # The places of each step's own tokens, and last those of the answer's scored tokens.
    groups = []
    for start, own_end in zip(bounds, request.own_ends, strict=False):
        groups.append(list(range(start, own_end + 1)))
    scored = [place for place, is_scored in enumerate(request.branch.scored) if is_scored]
    groups.append([bounds[-1] + place for place in scored])
    plain = token_log_probs(model, ids, range(0))
    needs = []
    for step in range(len(bounds) - 1):
        drop = plain - token_log_probs(model, ids, range(bounds[step], bounds[step + 1]))
        end = len(groups) if window == 0 else step + window + 1
        needs.append(max(drop[places].mean() for places in groups[step + 1 : end]))
    return torch.stack(needs)

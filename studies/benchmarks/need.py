r"""What reading each step's need costs, beside the pass that gives log-probabilities and scores.

    python -m studies.benchmarks.need --lengths 1000 4000 --windows 1 2 4 --repeats 5

Builds a random model (Qwen2's layers) and runs on the same response, in one process and in turn:
the pass that gives the log-probabilities of its tokens anyway, with scores; and with the next W
steps read again without each step (`--swap.need_window`), or without one step of M
(`--swap.need_every`). The last column is the largest difference to a slow reference: float32 passes
of the whole row with a dense mask that hides the step.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import torch
from torch import Tensor
from transformers import PreTrainedModel

from openrlhf_swap.algorithm.signals import ANSWER_LOGPROBS, NEED
from openrlhf_swap.scoring.shared_prefix import read_shared_prefix
from studies.benchmarks.scoring import Case, build_model, median_seconds, model_parser

HIDES_NONE = 10**9  # an M that hides no step: log-probabilities and scores alone


def with_need(case: Case, window: int, every: int) -> Case:
    """The same responses, with need wanted of each."""
    wanted = {
        "wanted": (ANSWER_LOGPROBS.name, NEED.name),
        "need_window": window,
        "need_every": every,
    }
    requests = [replace(one, **wanted) for one in case.requests]
    return replace(case, requests=requests)


def run(case: Case) -> dict[str, list[Tensor]]:
    """Scores, and need where it is wanted."""
    return read_shared_prefix(case.model, case.ids, case.mask, case.requests)


def token_log_probs(model: PreTrainedModel, ids: Tensor, hidden: range, since: int) -> Tensor:
    """(T,) log-probabilities of a row's tokens, its columns `hidden` unseen from `since` on."""
    length = ids.shape[-1]
    seen = torch.ones(length, length, dtype=torch.bool).tril()
    seen[since:, hidden.start : hidden.stop] = False
    mask = torch.where(seen, 0.0, torch.finfo(torch.float32).min)[None, None].to(ids.device)
    logits = model(ids[None], attention_mask=mask, use_cache=False).logits[0].float()
    found = logits.log_softmax(-1)[:-1].gather(-1, ids[1:, None])[:, 0]
    return torch.cat([found.new_zeros(1), found])


def slow_needs(case: Case, window: int) -> Tensor:
    """(K,) need of each step of a single response, a pass over the whole row for each."""
    (request,) = case.requests
    answer = request.branch
    assert answer is not None
    given = torch.tensor(answer.ids, device=case.ids.device)
    row = torch.cat([case.ids[0], given])
    bounds = [end + 1 for end in request.prefix_ends]
    steps = len(bounds) - 1
    scored = [bounds[-1] + place for place, counts in enumerate(answer.scored) if counts]
    groups = [[*range(bounds[k], bounds[k + 1])] for k in range(steps)] + [scored]
    plain = token_log_probs(case.model, row, range(0), 0)
    needs = []
    for step in range(steps):
        since = bounds[step + 1]
        without = token_log_probs(case.model, row, range(bounds[step], since), since)
        last = steps if window == 0 else min(steps, step + window)
        losses = []
        for group in groups[step + 1 : last + 1]:
            # The first token behind the step is predicted by the step itself, and loses nothing.
            places = [place for place in group if place > since]
            losses.append((plain - without)[places].sum() / len(group))
        needs.append(torch.stack(losses).max())
    return torch.stack(needs).cpu()


def main() -> None:
    parser = model_parser(__doc__)
    parser.set_defaults(lengths=[1000, 4000])
    parser.add_argument("--windows", type=int, nargs="+", default=[1, 2, 4], help="W; 0 is all")
    parser.add_argument("--every", type=int, nargs="+", default=[1, 2], help="M; 1 hides all steps")
    parser.add_argument("--without-reference", action="store_true", help="do not read slowly too")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = build_model("qwen2", args, device)
    print(f"{args.dtype}, {device}, {torch.get_num_threads()} threads, K = {args.steps}")
    print("| tokens | window | every | scores, s | need adds | in CPU time | largest difference |")
    print("|---|---|---|---|---|---|---|")
    settings = list(product(args.windows, args.every))
    for length in args.lengths:
        scores = Case.build(model, [length], args, device)
        alone = with_need(scores, 1, HIDES_NONE)
        cases = [with_need(scores, *setting) for setting in settings]
        with torch.no_grad():
            passes = [lambda case=case: run(case) for case in (alone, *cases)]
            plain, *all_needs = median_seconds(passes, device, args.repeats)
            for (window, every), case, seconds in zip(settings, cases, all_needs, strict=True):
                difference = "-"
                if not args.without_reference:
                    found = run(case)[NEED.name][0]
                    differences = (found - slow_needs(case, window)).abs()
                    difference = f"{differences[~found.isnan()].max().item():.1e}"
                print(
                    f"| {length} | {window} | {every} | {plain.wall:.3f} "
                    f"| {seconds.wall / plain.wall - 1:+.0%} "
                    f"| {seconds.cpu / plain.cpu - 1:+.0%} | {difference} |",
                    flush=True,
                )
        ratio = seconds.cpu / plain.cpu
        meaning = f"need of the next {window}, of one step in {every}, to scores, {length} tokens"
        print(f"ratio {ratio:.2f}: {meaning}")


if __name__ == "__main__":
    main()

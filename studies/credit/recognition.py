r"""Does a signal know a redundant step from a needed one? Before any training.

    python -m studies.credit.recognition --windows 1 2 4 0

Samples 8 responses to each of 24 problems, reads the monotone gain and the need of each step of the
correct ones, and prints for each world the mean over responses of the AUC: how often a step whose
lines are all redundant has less of the signal than another step of the same response. Need is read
with each `--swap.need_window` of `--windows`; 0 is all steps to come.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import islice
from statistics import fmean

import pandas as pd
import torch
from torch import Tensor

from openrlhf_swap.algorithm.advantages import monotone_gains, needs
from studies.credit.plain_loop import RESPONSES, Loop
from studies.toy_tasks import NAMES, repeated

WORLDS = ("addition", "decomposition", "words", "word_pairs", "columns")  # those of the page


def auc(values: Tensor, redundant: Tensor) -> float | None:
    """The share of pairs of a redundant and another step in which the redundant one has less.

    Ties count half. None where there is no such pair.
    """
    differences = values[~redundant].unsqueeze(0) - values[redundant].unsqueeze(1)
    if differences.numel() == 0:
        return None
    wins = (differences > 0).double() + 0.5 * (differences == 0).double()
    return float(wins.mean())


def mean_auc(values: Tensor, redundant: Tensor, mask: Tensor) -> float:
    """The mean AUC over the responses that have one; all are (groups, responses, K)."""
    rows = zip(values.flatten(0, 1), redundant.flatten(0, 1), mask.flatten(0, 1), strict=True)
    each = [auc(value[steps], own[steps]) for value, own, steps in rows]
    return fmean(one for one in each if one is not None)


def recognised(
    world: str, problems: int, max_steps: int, windows: Sequence[int]
) -> dict[str, float]:
    """The mean AUC of each signal on a world."""
    torch.manual_seed(5)
    settings = {"max_steps": max_steps, "step_reward": "need"}
    loop = Loop(world, reads_need=True, **settings)
    asked = repeated(islice(loop.world.problems(77), problems), RESPONSES)
    prompts, responses = loop.respond(asked)
    batch = loop.batch(asked, prompts, responses)
    redundant = loop.redundant_steps(asked, responses, batch)
    gains = monotone_gains(batch.answer_logprobs, batch.step_mask)
    found = {"gain": mean_auc(gains, redundant, batch.step_mask)}
    for window in windows:
        reader = Loop(world, reads_need=True, need_window=window, **settings)
        need = needs(reader.batch(asked, prompts, responses))
        name = f"need of {window or 'all'}"
        found[name] = mean_auc(need, redundant, batch.step_mask)
        found[f"gain plus {name}"] = mean_auc(gains + need, redundant, batch.step_mask)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--worlds", nargs="+", choices=NAMES, default=WORLDS)
    parser.add_argument("--problems", type=int, default=24)
    parser.add_argument("--max-steps", type=int, default=25, help="K")
    parser.add_argument("--windows", type=int, nargs="+", default=[0], help="steps read again")
    args = parser.parse_args()
    sizes = (args.problems, args.max_steps, args.windows)
    rows = {world: recognised(world, *sizes) for world in args.worlds}
    table = pd.DataFrame.from_dict(rows, orient="index").rename_axis("world").reset_index()
    print(table.to_markdown(index=False, floatfmt=".2f"))


if __name__ == "__main__":
    main()

r"""Does a signal know a redundant step from a needed one? Before any training.

    export PYTHONPATH=$PWD/examples/worlds:$PWD/examples/studies
    python examples/studies/recognition.py

Samples 8 responses to each of 24 problems, reads the monotone gain and the need of each step of the
correct ones, and prints for each world the mean over responses of the AUC: how often a step whose
lines are all redundant has less of the signal than another step of the same response.
"""

from __future__ import annotations

import argparse
from itertools import islice
from statistics import fmean

import pandas as pd
import torch
from plain_loop import RESPONSES, Loop
from torch import Tensor
from world import NAMES

from openrlhf_swap.algorithm.advantages import monotone_gains, needs


def auc(values: Tensor, redundant: Tensor) -> float | None:
    """The share of pairs of a redundant and another step in which the redundant one has less.

    Ties count half. None where there is no such pair.
    """
    differences = values[~redundant].unsqueeze(0) - values[redundant].unsqueeze(1)
    if differences.numel() == 0:
        return None
    wins = (differences > 0).double() + 0.5 * (differences == 0).double()
    return float(wins.mean())


def recognised(world: str, problems: int, max_steps: int) -> dict[str, float]:
    """The mean AUC of each signal on a world."""
    torch.manual_seed(5)
    loop = Loop(world, reads_need=True, max_steps=max_steps, step_reward="need")
    asked = [one for one in islice(loop.world.problems(77), problems) for _ in range(RESPONSES)]
    prompts, responses = loop.respond(asked)
    batch = loop.batch(asked, prompts, responses)
    redundant = loop.redundant_steps(asked, responses, batch)
    gains = monotone_gains(batch.answer_logprobs, batch.step_mask)
    need = needs(batch)
    signals = {"gain": gains, "need": need, "gain plus need": gains + need}
    found = {}
    for name, values in signals.items():
        rows = zip(
            values.flatten(0, 1),
            redundant.flatten(0, 1),
            batch.step_mask.flatten(0, 1),
            strict=True,
        )
        each = [auc(value[mask], own[mask]) for value, own, mask in rows]
        found[name] = fmean(one for one in each if one is not None)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--worlds", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--problems", type=int, default=24)
    parser.add_argument("--max-steps", type=int, default=25, help="K")
    args = parser.parse_args()
    rows = {world: recognised(world, args.problems, args.max_steps) for world in args.worlds}
    table = pd.DataFrame.from_dict(rows, orient="index").rename_axis("world").reset_index()
    print(table.to_markdown(index=False, floatfmt=".2f"))


if __name__ == "__main__":
    main()

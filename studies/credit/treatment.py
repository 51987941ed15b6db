"""How far do two arms differ before any training?

Relative differences of A_proc, on the same responses.

    python -m studies.credit.treatment --world words

An experiment on which steps pay can only show something in a world in which it moves the
advantages. Of the untrained policy's responses, for each price: the norm of the difference of
A_proc (all tokens of all correct responses) between each arm and uniform weights, and between
`oracle` and `anti`, over the mean of the two norms. Below --gate the last one says that even a
deliberately wrong choice is hardly another treatment: do not train there. Arms: `arms.py`.
"""

from __future__ import annotations

import argparse
from itertools import islice

import torch
from tabulate import tabulate
from torch import Tensor

from openrlhf_swap.algorithm.advantages import process_advantages
from studies.credit.arms import PRICES, arm_settings, arm_signals, share_on_redundant
from studies.credit.plain_loop import RESPONSES, Loop
from studies.toy_tasks import NAMES, repeated

ARMS = ("no_penalty", "tau1", "0.25sd", "1sd", "mono0.25sd", "oracle", "anti", "shuffled")
GATE = 0.25


def difference(left: Tensor, right: Tensor) -> float:
    """||left - right|| over the mean of their norms; 0 where both are 0, 2 for opposites."""
    norms = (left.norm() + right.norm()) / 2
    return float((left - right).norm() / norms) if norms else 0.0


def treatments(
    world: str, count: int, max_steps: int, end: str = ""
) -> dict[str, dict[str, float]]:
    """By price and arm, the difference from uniform weights, and of `oracle` from `anti`.

    The arms have this `end`.
    """
    loop = Loop(world, max_steps=max_steps)
    problems = repeated(islice(loop.world.problems(1), count), RESPONSES)
    prompts, responses = loop.respond(problems)
    batch = loop.batch(problems, prompts, responses)
    redundant = loop.redundant_steps(problems, responses, batch)
    tokens = int(batch.lengths.max())

    def process(arm: str) -> Tensor:
        config = loop.config.replaced(**arm_settings(arm))
        normalised = arm_signals(arm, config, batch, redundant).normalised
        return process_advantages(normalised, batch.step_ends, batch.step_mask, tokens)

    print("share of the price that redundant steps pay, before training:")
    paying = [f"weights.{name}" for name in ARMS if name != "no_penalty"]
    for arm in ("steps.tau1", *paying):
        config = loop.config.replaced(**arm_settings(arm + end))
        signals = arm_signals(arm, config, batch, redundant)
        print(f"  {arm}{end}: {share_on_redundant(signals, redundant):.0%}")
    table = {}
    for price in PRICES:
        uniform = process(f"{price}.uniform{end}")
        found = {arm: process(f"{price}.{arm}{end}") for arm in ARMS}
        table[price] = {arm: difference(value, uniform) for arm, value in found.items()}
        table[price]["oracle against anti"] = difference(found["oracle"], found["anti"])
    return table


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--world", choices=NAMES, required=True)
    parser.add_argument(
        "--problems", type=int, default=64, help="each with 8 responses (default: 64)"
    )
    parser.add_argument("--max-steps", type=int, default=25, help="K")
    parser.add_argument("--floor", action="store_true", help="with --swap.step_noise 0.02")
    parser.add_argument(
        "--gate", type=float, default=GATE, help="least difference worth a training (default: .25)"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    table = treatments(args.world, args.problems, args.max_steps, "+floor" if args.floor else "")
    passes = {
        price: "yes" if row["oracle against anti"] >= args.gate else "no"
        for price, row in table.items()
    }
    rows = [
        [args.world, args.max_steps, price, *map("{:.2f}".format, row.values()), passes[price]]
        for price, row in table.items()
    ]
    header = ["world", "K", "price", *table["steps"], f"at least {args.gate:g}"]
    print(tabulate(rows, header, "github", disable_numparse=True))


if __name__ == "__main__":
    main()

r"""Which gain of a step tells lines that are needed from others?

It reads scored responses; nothing is trained.

    python -m openrlhf_swap.quickstart.evaluate --world studies.toy_tasks.decomposition \
        --model studies/toy_tasks/policies/decomposition \
        --problems outputs/data/test.jsonl --traces 100 --output outputs/base.json
    openrlhf-swap score --model studies/toy_tasks/policies/decomposition \
        --input outputs/base.traces.jsonl \
        --swap.step_tokens 3 --swap.close_template '</think>\n\n**Final Answer**\n\boxed{' \
        --output outputs/scored.jsonl
    python -m studies.comparison.gain_study --world decomposition \
        --scored outputs/scored.jsonl

The paper's local gain looks at one step. A line that prepares gains nothing by itself, and the step
that uses it gets all; the others here look further, or at a step's position. Per gain: how often a
needed line (essential or useful) has a larger one than another of the same response (ties count
half; 50% is chance), and the share of the penalty that falls on the needed lines, in which less is
better, for some temperatures. Correct responses only: others pay no penalty.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import torch
from tabulate import tabulate
from torch import Tensor

from openrlhf_swap.algorithm.advantages import local_gains, penalty_weights
from openrlhf_swap.command import Parser, run_command
from openrlhf_swap.errors import DataError
from openrlhf_swap.files import Row, read_rows
from openrlhf_swap.quickstart.world import thought_lines
from studies.comparison.to_go import gains_to_go
from studies.toy_tasks import NAMES, load

TEMPERATURES = (0.25, 1.0, float("inf"))
NEEDED = ("essential", "useful")

# Of a scored row: its lines, and what each is for.
Labelled = Callable[[Row], Sequence[tuple[str, str]]]


@dataclass(frozen=True)
class Scored:
    """A response: l_0..l_K, and which steps are needed."""

    answer_logprobs: Tensor
    needed: Tensor


def local(scores: Tensor) -> Tensor:
    """The paper's: l_k - l_{k-1}, (K,) of (K+1,)."""
    return local_gains(scores, torch.ones(len(scores) - 1, dtype=torch.bool))


def window(scores: Tensor, width: int) -> Tensor:
    """The mean local gain of this step and the width - 1 behind it.

    Steps past the end gain nothing.
    """
    later = torch.cat([scores[width:], scores[-1:].expand(min(width, len(scores)) - 1)])
    return (later - scores[:-1]) / width


def discounted(scores: Tensor, factor: float) -> Tensor:
    """The sum of factor^j g_{k+j}.

    A later gain counts for the steps before it, the less the further they are.
    """
    gains = local(scores)
    total = torch.zeros(())
    found = torch.empty_like(gains)
    for step in reversed(range(len(gains))):
        total = gains[step] + factor * total
        found[step] = total
    return found


def to_go(scores: Tensor) -> Tensor:
    """All that is still to be gained: the best score from here on, over the one before."""
    return gains_to_go(scores, torch.ones(len(scores) - 1, dtype=torch.bool))


def position(scores: Tensor) -> Tensor:
    """The earlier the more; looks at nothing."""
    return -torch.arange(len(scores) - 1, dtype=scores.dtype)


GAINS: dict[str, Callable[[Tensor], Tensor]] = {
    "position": position,
    "local": local,
    "window 2": lambda scores: window(scores, 2),
    "window 3": lambda scores: window(scores, 3),
    "window 4": lambda scores: window(scores, 4),
    "discounted 0.5": lambda scores: discounted(scores, 0.5),
    "discounted 0.8": lambda scores: discounted(scores, 0.8),
    "to go": to_go,
}


def read_scored(path: Path, labelled: Labelled) -> list[Scored]:
    """The correct responses in which some but not all steps are needed.

    Raises:
        DataError: when there is none.
    """
    found = []
    rows = 0
    for row in read_rows(path):
        rows += 1
        if row["correct"] and len(row["steps"]):
            needed = needed_steps(labelled(row), row["steps"])
            if needed.any() and not needed.all():
                scores = torch.tensor(row["answer_logprobs"], dtype=torch.float64)
                found.append(Scored(scores, needed))
    if not found:
        raise DataError(
            f"none of the {rows} responses of {path} is correct and has both needed and other steps"
        )
    return found


def needed_steps(lines: Sequence[tuple[str, str]], steps: Sequence[str]) -> Tensor:
    """(K,) bool: whether a line that is needed ends in the step.

    The lines stand in order, with their labels.
    """
    text = "".join(steps)
    position = 0
    ends = []
    for line, label in lines:
        position = text.find(line, position) + len(line)
        ends.append((position, label in NEEDED))
    needed = []
    start = 0
    for step in steps:
        needed.append(any(is_needed for end, is_needed in ends if start < end <= start + len(step)))
        start += len(step)
    return torch.tensor(needed)


def separation(gains: Tensor, needed: Tensor) -> float:
    """How often a needed step has a larger gain than one that is not; ties count half."""
    difference = gains[needed][:, None] - gains[~needed][None]
    return float((difference > 0).double().mean() + (difference == 0).double().mean() / 2)


def paid(gains: Tensor, needed: Tensor, temperature: float) -> float:
    """The share of the penalty that needed steps pay."""
    return float(penalty_weights(gains, torch.ones_like(needed), temperature)[needed].sum())


def table(responses: Sequence[Scored]) -> str:
    """A row a gain; means over responses."""
    rows = []
    for name, gain in GAINS.items():
        found = [(gain(one.answer_logprobs), one.needed) for one in responses]
        cells = [name, f"{fmean(separation(*pair) for pair in found):.1%}"]
        for temperature in TEMPERATURES:
            cells.append(f"{fmean(paid(*pair, temperature) for pair in found):.1%}")
        rows.append(cells)
    header = ["gain", "needed above redundant"]
    header += [f"on needed steps, tau {temperature:g}" for temperature in TEMPERATURES]
    return tabulate(rows, header, "github", disable_numparse=True)


def study(path: Path, labelled: Labelled) -> str:
    """The table of a file, and how much there is in it."""
    responses = read_scored(path, labelled)
    share = fmean(one.needed.double().mean().item() for one in responses)
    return f"{len(responses)} responses, {share:.1%} of their steps needed\n\n{table(responses)}"


def main(argv: list[str]) -> None:
    """Print the table."""
    parser = Parser("gain_study", __doc__)
    parser.add_argument("--world", choices=NAMES, default=NAMES[0])
    parser.add_argument("--scored", type=Path, required=True, help="what openrlhf_swap.score wrote")
    args = parser.parse_args(argv)
    world = load(args.world)

    def labelled(row: Row) -> list[tuple[str, str]]:
        labels = world.label_lines(row["problem"], row["response"])
        return list(zip(thought_lines(row["response"]), labels, strict=True))

    print(study(args.scored, labelled))


if __name__ == "__main__":
    sys.exit(run_command(main))

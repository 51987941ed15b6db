"""A pretrained language model learns to think shorter: all stages, each run once.

Weights, problems, traces, a supervised warm-up that teaches overthinking, and its evaluation; then,
for an objective, reinforcement learning, evaluation and a report. Killed in any stage, the same
command continues. Unknown flags go to the training, such as `--swap.step_noise 0.02`: give such
a run its own name with --run.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from openrlhf_swap.command import Parser, run_command
from openrlhf_swap.errors import ConfigError
from studies.smollm2.example import BATCH, FULL, NUMBERS, SMALL, Example
from studies.smollm2.over_seeds import FIRST_SEED, run_name
from studies.smollm2.stages import do


def main(argv: list[str]) -> None:
    """Run the requested stages that are not done yet."""
    parser = Parser("studies.smollm2", __doc__)
    parser.prog = "bash studies/smollm2/run.sh"
    parser.add_argument(
        "--small", action="store_true", help="one easy task, minutes instead of an hour"
    )
    parser.add_argument(
        "--objective", default="swap", help="one of docs/use/objectives.md (default: swap)"
    )
    parser.add_argument(
        "--run", help="name of the training's folder (default: swap; with another seed, swap_43)"
    )
    parser.add_argument(
        "--seed", type=int, default=FIRST_SEED, help="of the training (default: %(default)s)"
    )
    parser.add_argument(
        "--output", type=Path, help="folder (default: outputs/smollm2, with --small smollm2_small)"
    )
    parser.add_argument("--until", help="the last stage to run, such as warm_up (default: all)")
    for name in NUMBERS:
        parser.add_argument(
            f"--{name.replace('_', '-')}", type=int, help="overrides the size's own number"
        )
    args, extra = parser.parse_known_args(argv)
    numbers = {name: getattr(args, name) for name in NUMBERS}
    given = {name: value for name, value in numbers.items() if value is not None}
    size = replace(SMALL if args.small else FULL, **given)
    for name, value in given.items():
        least = BATCH if name == "rows" else 1
        if value < least:
            raise ConfigError(f"--{name.replace('_', '-')} is {value}; use at least {least}")
    output = args.output or Path("outputs") / ("smollm2_small" if args.small else "smollm2")
    name = args.run or run_name(args.objective, args.seed)
    if name == "base" or "/" in name:
        raise ConfigError(
            f"--run is {name}; use a name without a slash, and not base, which is the warm-up's"
        )
    stages = Example(output.resolve(), size, args.objective, name, args.seed, tuple(extra)).stages()
    names = [stage.name.removesuffix(f"_{name}") for stage in stages]
    if args.until not in (None, *names):
        raise ConfigError(f"--until is {args.until}; use one of {', '.join(names)}")
    if args.until:
        stages = stages[: names.index(args.until) + 1]
    output.mkdir(parents=True, exist_ok=True)
    for _ in do(stages, output / "stages"):
        pass


if __name__ == "__main__":
    sys.exit(run_command(main))

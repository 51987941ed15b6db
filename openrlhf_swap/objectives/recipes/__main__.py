"""Print the words of a recipe's flags, one a line, for a script.

python -m openrlhf_swap.objectives.recipes swap_r1
"""

import sys

from openrlhf_swap.command import Parser, run_command
from openrlhf_swap.objectives.recipes import NAMES, read_recipe


def main(argv: list[str]) -> None:
    """Print them; raises ConfigError for an unknown recipe."""
    parser = Parser("openrlhf_swap.objectives.recipes", __doc__)
    parser.add_argument("name", help=f"one of {', '.join(NAMES)}")
    for flag, words in read_recipe(parser.parse_args(argv).name).flags.items():
        print(flag, *words, sep="\n")


if __name__ == "__main__":
    sys.exit(run_command(main))

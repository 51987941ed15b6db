"""Write the page of the paper's Table 1: what each recipe sets, side by side, and where each value
comes from.

    python docs/make_recipes.py > docs/use/recipes.md

The values are those of `openrlhf-swap train --swap.recipe NAME --dry-run`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tabulate import tabulate

from openrlhf_swap.flags.configuration import configure
from openrlhf_swap.recipes import FlagFile

METHODS = ("thinkprune", "lc_r1", "adaptthink", "laser_d", "laser_de", "l1_exact", "l1_max", "swap")
PAGE = """\
# The paper's Table 1 as recipes

Made by `python docs/make_recipes.py > docs/use/recipes.md`: edit the recipes (`openrlhf_swap/recipes`), not this file.

Every method of the paper's main table as its authors run it, and the paper's own. `openrlhf-swap train --swap.recipe
NAME --dry-run` prints a column; all eight train with `python examples/studies/run_sweep.py --preset paper`
([how](objectives.md#sweeps)). **Bold: the recipe sets it**; otherwise it is this package's default.

{values}

Settings of one objective alone:

{own}

## Where each value comes from

{sources}
"""


def cell(name: str, column: Mapping[str, Any], recipe: FlagFile) -> str:
    """A value, bold where the recipe sets it."""
    value = column.get(name)
    if isinstance(value, list | tuple):
        value = ", ".join(map(str, value))
    text = "" if value is None else str(value)
    return f"**{text}**" if name in recipe.flags else text


def main() -> None:
    """Print the page."""
    runs = {name: configure(["--swap.recipe", name], on_cpu=False) for name in METHODS}
    columns = {name: {**run.values, **run.dump()} for name, run in runs.items()}
    recipes = {name: run.recipe for name, run in runs.items()}
    flags = sorted(
        {flag for recipe in recipes.values() for flag in recipe.flags} - {"swap.objective"}
    )
    shared = [flag for flag in flags if not flag.startswith("swap.")]
    values = [
        [f"`--{flag}`", *(cell(flag, columns[name], recipes[name]) for name in METHODS)]
        for flag in shared
    ]
    own = [
        (name, f"`--{flag}`", value, recipes[name].sources[flag])
        for name in METHODS
        for flag, value in recipes[name].flags.items()
        if flag in set(flags) - set(shared)
    ]
    sources = []
    for name, recipe in recipes.items():
        named = [f"`--{flag}`: {recipe.sources[flag]}" for flag in recipe.flags if flag in shared]
        lines = [f"**{name}**, {recipe.origin}.", "; ".join(named) + "."]
        lines += [f"Prompts: {recipe.prompt}."] if recipe.prompt else []
        lines += ["Not here: " + "; ".join(recipe.cannot) + "."] if recipe.cannot else []
        sources.append(" ".join(lines))
    print(
        PAGE.format(
            values=tabulate(values, ("", *METHODS), "github", disable_numparse=True),
            own=tabulate(
                own,
                ("method", "setting", "value", "at the origin"),
                "github",
                disable_numparse=True,
            ),
            sources="\n\n".join(sources),
        ),
        end="",
    )


if __name__ == "__main__":
    main()

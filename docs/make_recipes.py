"""Write the page of the paper's Table 1: what each recipe sets, from where, and what it lacks.

    python docs/make_recipes.py > docs/use/recipes.md

The values are those of `openrlhf-swap train --swap.recipe NAME --dry-run`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tabulate import tabulate

from openrlhf_swap.flags.configuration import configure
from openrlhf_swap.plan import DEEPSCALER_ROWS
from openrlhf_swap.recipes import NAMES, FlagFile, read_recipe

METHODS = ("thinkprune", "lc_r1", "adaptthink", "laser_d", "laser_de", "l1_exact", "l1_max", "swap")
OURS = ("own_bill", "needed")
PAGE = """\
# The paper's Table 1 as recipes

Made by `python docs/make_recipes.py > docs/use/recipes.md`: edit the recipes (`openrlhf_swap/recipes`), not this file.

Every method of the paper's main table as its authors run it, and the paper's own. `openrlhf-swap train --swap.recipe
NAME --dry-run` prints a column, the settings of the objective alone, and each value with its name at the origin. All
eight train with `python -m studies.comparison.run_sweep --preset paper` ([how](objectives.md#sweeps)). **Bold: the recipe
sets it**; otherwise it is this package's default.

{values}

`--swap.training_steps` is what the authors trained, whatever the size of the data set; with 0 `--train.num_episodes`
decides. What every recipe trains on DeepScaleR's 40,315 rows, beside its authors' own number:

{steps}

`--preset paper` trains none on more prompts than SWAP.

## From where, and what is missing

Not here in several: {missing}.

{sources}

## Ours

{ours}
"""


def cell(name: str, column: Mapping[str, Any], recipe: FlagFile) -> str:
    """A value, bold where the recipe sets it."""
    value = column.get(name)
    if name == "actor.loss_agg_mode" and column["actor.policy_loss_type"] == "gspo":
        value = "each response's mean, by gspo"
    if isinstance(value, list | tuple):
        value = ", ".join(map(str, value))
    text = "" if value is None else str(value)
    return f"**{text}**" if name in recipe.flags else text


def source(name: str, recipe: FlagFile, known: Collection[str]) -> str:
    """Where the values of a recipe come from, and what it lacks beside the known."""
    lines = [f"**{name}**, {recipe.origin}."]
    if recipe.prompt:
        lines.append(f"Prompts: {recipe.prompt}.")
    own = [lack for lack in recipe.cannot if lack not in known]
    if own:
        lines.append("Not here: " + "; ".join(own) + ".")
    return " ".join(lines)


def missing_in_several(recipes: Mapping[str, FlagFile]) -> dict[str, list[str]]:
    """What more than one recipe lacks, with the recipes' names."""
    lacking: dict[str, list[str]] = {}
    for name, recipe in recipes.items():
        for lack in recipe.cannot:
            lacking.setdefault(lack, []).append(name)
    return {lack: names for lack, names in lacking.items() if len(names) > 1}


def described(name: str) -> str:
    """A recipe of ours: what it is, and what it sets otherwise than swap_r1."""
    recipe = read_recipe(name)
    papers = read_recipe("swap_r1").flags
    settings = [
        f"`--{flag}` {value} ({recipe.sources[flag]})"
        for flag, value in recipe.flags.items()
        if papers.get(flag) != value
    ]
    return f"**{name}**, {recipe.origin}. {'; '.join(settings)}."


def steps(name: str) -> tuple[str, str, str, str]:
    """A recipe, the steps and prompts that it trains on DeepScaleR, and what its authors say."""
    run = configure(["--swap.recipe", name], on_cpu=False)
    prompts = run.args.rollout.batch_size
    total = run.run.total_steps(DEEPSCALER_ROWS // prompts, run.args.train.num_episodes)
    sources = read_recipe(name).sources
    authors = sources.get("swap.training_steps", sources.get("train.num_episodes", ""))
    if run.run.training_steps:
        authors = f"{run.run.training_steps} ({authors})"
    return name, f"{total:,}", f"{total * prompts:,}", authors


def main() -> None:
    """Print the page."""
    runs = {name: configure(["--swap.recipe", name], on_cpu=False) for name in METHODS}
    columns = {name: {**run.values, **run.dump()} for name, run in runs.items()}
    recipes = {name: run.recipe for name, run in runs.items()}
    flags = {flag for recipe in recipes.values() for flag in recipe.flags}
    shared = sorted(flag for flag in flags if not flag.startswith("swap."))
    shared.append("swap.training_steps")
    values = [
        [f"`--{flag}`", *(cell(flag, columns[name], recipes[name]) for name in METHODS)]
        for flag in shared
    ]
    several = missing_in_several(recipes)
    print(
        PAGE.format(
            values=table(("", *METHODS), values),
            steps=table(
                ("recipe", "steps", "prompts in all", "its authors' steps"),
                [steps(name) for name in (*METHODS, *sorted({*NAMES} - {*METHODS}))],
            ),
            missing="; ".join(f"{lack} ({', '.join(names)})" for lack, names in several.items()),
            sources="\n\n".join(source(name, recipes[name], several) for name in METHODS),
            ours="\n\n".join(map(described, OURS)),
        ),
        end="",
    )


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return tabulate(rows, headers, "github", disable_numparse=True)


if __name__ == "__main__":
    main()

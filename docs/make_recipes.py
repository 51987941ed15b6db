"""Write the page of recipes: what those of the paper's Table 1 set, and how long each trains.

    python docs/make_recipes.py > docs/use/recipes.md

The values are those of `openrlhf-swap train --swap.recipe NAME --dry-run`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tabulate import tabulate

from openrlhf_swap.flags.configuration import configure
from openrlhf_swap.plan import DEEPSCALER_ROWS
from openrlhf_swap.recipes import NAMES, FlagFile, read_recipe

METHODS = ("thinkprune", "lc_r1", "adaptthink", "laser_d", "laser_de", "l1_exact", "l1_max", "swap")
OURS = ("own_bill", "needed")
PAGE = """\
# Recipes

Made by `python docs/make_recipes.py > docs/use/recipes.md`: edit the recipes (`openrlhf_swap/recipes`), not this file.

An objective is one part of what its authors do. Their learning rates, clip ranges, KL terms, filters and lengths are
flags of OpenRLHF. `--swap.recipe NAME` sets all of them, and the objective:

```bash
openrlhf-swap train --swap.recipe dler --dry-run    # what it sets, each value with its name at the origin
openrlhf-swap train --swap.recipe dler --actor.model_name_or_path MODEL --data.prompt_dataset PROMPTS \\
    --data.input_key problem --data.label_key answer
```

At its start a run prints the recipe, how its authors ask, and which parts of it this trainer does not have.

## Flags in a file

```yaml
# mine.yaml: openrlhf-swap train --config mine.yaml
flags:
  swap.recipe: dler
  swap.grader: multiple_choice
  actor.adam.lr: 2e-6
  actor.eps_clip_low_high: [0.2, 0.28]
  ds.packing_samples: true
```

`--config FILE` works with `train`, `plan` and `eval run`. The command line wins over the file, the file over a recipe,
a recipe over the package's defaults; `--no-ds.packing_samples` turns a switch off. Every training writes all of its
settings as such a file, `run.yaml`.

## The paper's Table 1

All eight train with `python -m studies.comparison.run_sweep --preset paper`, none on more prompts than SWAP ([hours and
expected numbers](sizing.md#the-papers-table-1)). **Bold: the recipe sets it**; otherwise it is this package's default.

{values}

## Steps

`--swap.training_steps` is what the authors trained, whatever the size of the data set; with 0 `--train.num_episodes`
decides. Here with DeepScaleR's 40,315 rows, beside what the authors say:

{steps}

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
    print(
        PAGE.format(
            values=table(("", *METHODS), values),
            steps=table(
                ("recipe", "steps", "prompts in all", "its authors' steps"),
                [steps(name) for name in (*METHODS, *sorted({*NAMES} - {*METHODS}))],
            ),
            ours="\n\n".join(map(described, OURS)),
        ),
        end="",
    )


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return tabulate(rows, headers, "github", disable_numparse=True)


if __name__ == "__main__":
    main()

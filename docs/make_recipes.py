"""Write the page of recipes: how long each trains, and what ours set.

python docs/make_recipes.py > docs/use/recipes.md
"""

from __future__ import annotations

from tabulate import tabulate

from openrlhf_swap.flags.configuration import configure
from openrlhf_swap.plan import DEEPSCALER_ROWS
from openrlhf_swap.recipes import NAMES, read_recipe

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

At its start a run prints the recipe, its authors' prompt, and which parts of it this trainer does not have.

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

## All recipes

`--swap.training_steps` is what the authors trained, whatever the size of the data set; with 0 `--train.num_episodes`
decides. The table is for DeepScaleR's 40,315 rows. The first eight are the paper's Table 1 ([hours and expected
numbers](sizing.md#the-papers-table-1)); `python -m studies.comparison.run_sweep --preset paper` trains them all, none
on more prompts than SWAP.

{steps}

## Ours

{ours}
"""


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
    """A recipe, the steps that it trains on DeepScaleR and their prompts, and their source."""
    run = configure(["--swap.recipe", name], on_cpu=False)
    prompts = run.args.rollout.batch_size
    total = run.run.total_steps(DEEPSCALER_ROWS // prompts, run.args.train.num_episodes)
    sources = read_recipe(name).sources
    authors = sources.get("swap.training_steps", sources.get("train.num_episodes", ""))
    return name, f"{total:,}", str(prompts), authors


def main() -> None:
    """Print the page."""
    names = (*METHODS, *sorted({*NAMES} - {*METHODS}))
    headers = ("recipe", "steps", "prompts in a step", "where the steps come from")
    print(
        PAGE.format(
            steps=tabulate(map(steps, names), headers, "github", disable_numparse=True),
            ours="\n\n".join(map(described, OURS)),
        ),
        end="",
    )


if __name__ == "__main__":
    main()

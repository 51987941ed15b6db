"""The preset of the paper trains the methods of its page, and recipes have their authors' numbers."""

import runpy

import pytest
from run_sweep import PRESETS
from support.paths import ROOT

from openrlhf_swap.flags.configuration import configure


def test_the_preset_of_the_paper_trains_the_methods_of_the_page():
    assert (
        tuple(PRESETS["paper"]) == runpy.run_path(str(ROOT / "docs" / "make_recipes.py"))["METHODS"]
    )


@pytest.mark.parametrize("name", [name for rows in PRESETS.values() for name in rows])
def test_every_row_of_a_preset_names_its_objective(name):
    flags = next(rows[name]["train"] for rows in PRESETS.values() if name in rows)
    assert configure(flags, on_cpu=True).method.objective == name


# By hand from the authors' scripts: mini-batch of responses, rates, KL, temperature and longest
# response.
NUMBERS = {
    "thinkprune": (2048, 1e-6, 0, 1.0, 4000),
    "lc_r1": (96, 2e-6, 0.04, 0.9, 8192),
    "adaptthink": (2048, 2e-6, 0, 0.6, 16384),
    "laser_d": (512, 1e-6, 1e-3, 0.6, 16384),
    "laser_de": (512, 1e-6, 1e-3, 0.6, 16384),
    "l1_exact": (1024, 1e-6, 1e-3, 0.6, 4096),
    "l1_max": (1024, 4e-6, 1e-3, 0.6, 4500),
    "swap": (2048, 1e-6, 0, 0.6, 12000),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_the_numbers_of_a_recipe(name):
    args = configure(["--swap.recipe", name], on_cpu=False).args
    found = (
        args.train.batch_size,
        args.actor.adam.lr,
        args.algo.kl.init_coef,
        args.rollout.temperature,
    )
    assert (*found, args.rollout.max_new_tokens) == NUMBERS[name]
    assert args.actor.adam.betas == [0.9, 0.999] and args.actor.adam.weight_decay == (
        0.0 if name == "lc_r1" else 0.01
    )

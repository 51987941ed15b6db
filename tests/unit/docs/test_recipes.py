"""Recipes have their authors' numbers."""

import pytest

from openrlhf_swap.config import RunConfig
from openrlhf_swap.flags.configuration import configure

# By hand from the authors' scripts: mini-batch of responses, rates, KL, entropy bonus, temperature
# and longest response; and the steps that they trained, or their passes over DeepScaleR.
NUMBERS = {
    "thinkprune": (2048, 1e-6, 0, 1e-3, 1.0, 4000, 540),
    "lc_r1": (96, 2e-6, 0.04, 0, 0.9, 8192, 3359),
    "adaptthink": (2048, 2e-6, 0, 0, 0.6, 16384, 314),
    "laser_d": (512, 1e-6, 1e-3, 1e-3, 0.6, 16384, 900),
    "laser_de": (512, 1e-6, 1e-3, 1e-3, 0.6, 16384, 900),
    "l1_exact": (1024, 1e-6, 1e-3, 1e-3, 0.6, 4096, 700),
    "l1_max": (1024, 4e-6, 1e-3, 1e-3, 0.6, 4500, 120),
    "swap": (2048, 1e-6, 0, 0, 0.6, 12000, 623),
    "autothink": (512, 1e-6, 0, 1e-3, 0.6, 24576, 6 * 314),
    "grpo_lead": (240, 1e-6, 0, 1e-3, 0.8, 12288, 3 * 1343),
    "short_rl": (512, 1e-6, 1e-3, 1e-3, 0.6, 8192, 5 * 314),
    "sas": (512, 1e-6, 1e-3, 0, 1.0, 4096, 2 * 314),
    "saber": (256, 1e-6, 0, 1e-3, 0.7, 20480, 314),
    "attnpo": (1024, 2e-6, 0, 0, 1.0, 16384, 314),
    "step_grpo": (640, 1e-6, 1e-2, 0, 1.0, 16384, 100),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_the_numbers_of_a_recipe(name):
    run = configure(["--swap.recipe", name], on_cpu=False)
    args = run.args
    steps = run.run.total_steps(40_315 // args.rollout.batch_size, args.train.num_episodes)
    assert NUMBERS[name] == (
        args.train.batch_size,
        args.actor.adam.lr,
        args.algo.kl.init_coef,
        args.actor.entropy_coef or 0,
        args.rollout.temperature,
        args.rollout.max_new_tokens,
        steps,
    )
    decay = 0.0 if name == "lc_r1" else 0.01
    assert args.actor.adam.betas == [0.9, 0.999] and args.actor.adam.weight_decay == decay


@pytest.mark.parametrize(("steps", "a_pass", "total"), [(0, 314, 628), (540, 20, 540), (9, 0, 9)])
def test_steps_of_a_run_over_data_of_any_size(steps, a_pass, total):
    assert RunConfig(training_steps=steps).total_steps(a_pass, 2) == total

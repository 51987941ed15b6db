"""Recipes have their authors' numbers."""

import pytest

from openrlhf_swap.config import RunConfig
from openrlhf_swap.flags.configuration import configure

# By hand from the authors' scripts. The steps are those that they trained, or their passes over
# DeepScaleR.
#          mini-batch  rate  KL    entropy  temperature  longest  steps
NUMBERS = """
thinkprune       2048  1e-6  0     1e-3     1.0          4000     540
lc_r1              96  2e-6  0.04  0        0.9          8192     3359
adaptthink       2048  2e-6  0     0        0.6          16384    314
laser_d           512  1e-6  1e-3  1e-3     0.6          16384    900
laser_de          512  1e-6  1e-3  1e-3     0.6          16384    900
l1_exact         1024  1e-6  1e-3  1e-3     0.6          4096     700
l1_max           1024  4e-6  1e-3  1e-3     0.6          4500     120
swap             2048  1e-6  0     0        0.6          12000    623
autothink         512  1e-6  0     1e-3     0.6          24576    1884
grpo_lead         240  1e-6  0     1e-3     0.8          12288    4029
short_rl          512  1e-6  1e-3  1e-3     0.6          8192     1570
sas               512  1e-6  1e-3  0        1.0          4096     628
saber             256  1e-6  0     1e-3     0.7          20480    314
attnpo           1024  2e-6  0     0        1.0          16384    314
step_grpo         640  1e-6  1e-2  0        1.0          16384    100
crisp              32  1e-6  1     0        1.0          8192     100
"""


@pytest.mark.parametrize("row", NUMBERS.strip().splitlines())
def test_the_numbers_of_a_recipe(row):
    name, *numbers = row.split()
    batch_size, rate, kl, entropy, temperature, longest, steps = map(float, numbers)
    run = configure(["--swap.recipe", name], on_cpu=False)
    args = run.args
    assert args.train.batch_size == batch_size
    assert args.actor.adam.lr == rate
    assert args.algo.kl.init_coef == kl
    assert (args.actor.entropy_coef or 0) == entropy
    assert args.rollout.temperature == temperature
    assert args.rollout.max_new_tokens == longest
    a_pass = 40_315 // args.rollout.batch_size
    assert run.run.total_steps(a_pass, args.train.num_episodes) == steps
    assert args.actor.adam.betas == [0.9, 0.999]
    assert args.actor.adam.weight_decay == (0.0 if name == "lc_r1" else 0.01)


@pytest.mark.parametrize(("steps", "a_pass", "total"), [(0, 314, 628), (540, 20, 540), (9, 0, 9)])
def test_steps_of_a_run_over_data_of_any_size(steps, a_pass, total):
    assert RunConfig(training_steps=steps).total_steps(a_pass, 2) == total

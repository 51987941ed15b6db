"""Recipes: complete, accepted by the run's own checks, and overruled by the command line."""

import pytest
import yaml
from support.paths import POLICY

from openrlhf_swap import plan, train
from openrlhf_swap.config import RunConfig
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.flags.rules import arguments_of_objective, checked_arguments
from openrlhf_swap.flags.stock import parse_arguments
from openrlhf_swap.flags.swap import parse_swap_arguments
from openrlhf_swap.objectives.recipes import FOLDER, NAMES, describe, kept_flags, read_recipe, with_recipe
from openrlhf_swap.objectives.registry import OBJECTIVES

NEEDED = [
    "--actor.model_name_or_path",
    "m",
    "--data.prompt_dataset",
    "d",
    "--data.label_key",
    "answer",
    "--vllm.num_engines",
    "1",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_is_accepted_by_the_checks_of_a_run(name):
    config, run, rest = parse_swap_arguments(with_recipe([f"--swap.recipe={name}", *NEEDED]))
    assert run.recipe == name and config.objective in OBJECTIVES
    rest += ["--actor.num_gpus_per_node", "1"]  # how a step is shared is the machine's business
    checked_arguments(rest, config, RunConfig(), on_cpu=False)
    args = arguments_of_objective(rest, config, on_cpu=False)
    steps = args.rollout.batch_size * args.rollout.n_samples_per_prompt / args.train.batch_size
    assert steps == int(steps) and args.data.max_len > args.rollout.max_new_tokens


@pytest.mark.parametrize("name", NAMES)
def test_every_value_has_its_source(name):
    recipe, text = read_recipe(name), yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    assert set(recipe.sources) == set(recipe.flags) == {f"--{flag}" for flag in text["flags"]}
    assert all(source for flag, source in recipe.sources.items() if flag != "--swap.objective")
    assert recipe.origin and all(isinstance(what, str) for what in recipe.cannot)


def test_the_values_reach_the_parser():
    config, _, rest = parse_swap_arguments(with_recipe(["--swap.recipe", "dler"]))
    stock = parse_arguments(rest)
    assert config.objective == "dler"
    assert (stock.actor.eps_clip_low_high, stock.actor.dual_clip) == ([0.2, 0.28], 10.0)
    assert stock.algo.dynamic_filtering_enable and stock.algo.kl.use_loss
    assert (stock.algo.kl.init_coef, stock.actor.adam.lr) == (5e-4, 1e-6)
    options = parse_swap_arguments(with_recipe(["--swap.recipe", "lapo"]))[0].options
    assert options == {"first_stage_steps": "234", "limits": "4096,2048"}


def test_the_command_line_wins():
    given = ["--actor.adam.lr=3e-6", "--swap.recipe", "dler", "--rollout.batch_size", "8", "--actor.eps_clip", ".1"]
    stock = parse_arguments(parse_swap_arguments(with_recipe([*given, "--no-algo.kl.use_loss"]))[2])
    assert (stock.actor.adam.lr, stock.rollout.batch_size, stock.actor.eps_clip) == (3e-6, 8, 0.1)
    # OpenRLHF takes the pair where there is one, so the recipe's must go with the single value.
    assert stock.actor.eps_clip_low_high is None and not stock.algo.kl.use_loss
    assert stock.rollout.n_samples_per_prompt == 16
    recipe = read_recipe("dler")
    assert "--rollout.batch_size" not in kept_flags(recipe, given)
    lines = describe(recipe, given)
    assert "  --rollout.batch_size 512 (the command line wins)  # train_batch_size" in lines
    assert "  --actor.dual_clip 10.0  # clip_ratio_c" in lines
    assert any(line.startswith("  not here: gen_batch_size") for line in lines)
    assert with_recipe(["--other", "1"]) == ["--other", "1"] and with_recipe([]) == []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--swap.recipe", "dlr"], r"--swap\.recipe is 'dlr'; did you mean dler\?"),
        (["--swap.recipe", "dler", "--no-actor.dual_clip"], r"--no-actor\.dual_clip is not a switch of the recipe"),
        (["--swap.recipe", "swap", "--no-x"], "it has: none"),
    ],
)
def test_what_no_recipe_has_is_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        with_recipe(given)


def test_a_dry_run_prints_what_would_be_set(capsys):
    assert train.main(["--swap.recipe", "lapo", "--dry-run", "--actor.adam.lr", "1"]) == 0
    *lines, command = capsys.readouterr().out.splitlines()
    assert "[swap]   --swap.lapo.limits 4096,2048  # generate_max_len of each stage" in lines
    assert "--algo.kl.init_coef 1e-4" in command and command.endswith("--swap.recipe lapo --actor.adam.lr 1")


def test_a_plan_sees_the_recipe():
    flags = ["--gpu", "h100", "--model", str(POLICY), "--swap.recipe", "autothink", "--vllm.num_engines", "1"]
    flags += ["--actor.num_gpus_per_node", "1"]
    config, _, args = plan.training_command(*plan._parser().parse_known_args(flags))
    assert (config.objective, args.rollout.max_new_tokens) == ("autothink", 24576)

"""OpenRLHF's command line as we read it, and as OpenRLHF itself does."""

import argparse
import runpy
import sys

import pytest
from support.paths import POLICY
from support.scripts import python

from openrlhf_swap.flags.configuration import configure
from openrlhf_swap.flags.stock import nested, stock_parser

NEEDED = "--actor.model_name_or_path m --data.prompt_dataset d --vllm.num_engines 2"
GIVEN = "--rollout.batch_size 7 --actor.adam.betas 0.8 0.9 --train.dynamic_batch_enable"
THRESHOLD = "--algo.advantage.is_correction_threshold 2 --algo.kl.use_loss"


@pytest.fixture
def run_cli(monkeypatch):
    """Runs OpenRLHF's CLI until it has its arguments; returns its parser and the arguments."""
    import openrlhf_swap.integration  # noqa: F401  # prepares the process for OpenRLHF

    parse = argparse.ArgumentParser.parse_args

    class Parsed(Exception):
        """Ends the CLI."""

    def parse_and_stop(parser):
        raise Parsed(parser, parse(parser))

    def run(argv, cli):
        with monkeypatch.context() as patch, pytest.raises(Parsed) as parsed:
            patch.setattr(sys, "argv", ["train.py", *argv])
            patch.setattr(argparse.ArgumentParser, "parse_args", parse_and_stop)
            runpy.run_module(f"openrlhf.cli.{cli}", run_name="__main__", alter_sys=True)
        return parsed.value.args

    return run


@pytest.mark.parametrize(
    ("cli", "given"), [("train_ppo_ray", ""), ("train_ppo_ray", GIVEN), ("train_sft", "")]
)
def test_arguments_are_parsed_and_nested_as_openrlhf_does(run_cli, cli, given):
    from openrlhf.utils.config import hierarchize

    parser, flat = run_cli(given.split(), cli)
    ours = nested(vars(stock_parser(cli).parse_args(given.split())))
    theirs = hierarchize(flat)
    if cli == "train_ppo_ray":
        # The default has the time of day, which may have gone on by a minute.
        ours.logger.wandb.run_name = theirs.logger.wandb.run_name
    assert ours == theirs
    shown = [each.format_help().partition("options:")[2] for each in (stock_parser(cli), parser)]
    assert shown[0] == shown[1]


@pytest.mark.parametrize("given", ["", GIVEN, THRESHOLD])
def test_arguments_reach_the_training_as_openrlhf_completes_them(monkeypatch, given):
    import openrlhf_swap.integration  # noqa: F401  # prepares the process for OpenRLHF

    flags = f"{NEEDED} {given} --algo.kl.init_coef 0.1"
    ours = configure(flags.split(), on_cpu=False)
    argv = ["train.py"]
    for name in ours.named:
        argv += _words(name, ours.values[name])
    trained = []

    def stop(args):
        trained.append(args)
        sys.exit()

    monkeypatch.setattr(sys, "argv", argv)
    monkeypatch.setattr("openrlhf.utils.get_strategy", stop)
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    with pytest.raises(SystemExit):
        runpy.run_module("openrlhf.cli.train_ppo_ray", run_name="__main__", alter_sys=True)
    # These are the flags of ours that are not named after swap.
    assert vars(ours.args.data).pop("chat_template_kwargs") is None
    assert vars(ours.args.rollout).pop("thought_budget") is None
    assert vars(vars(ours.args).pop("agent")) == {"keep_thoughts": "all"}
    assert trained == [ours.args]


def _words(name, value):
    """A flag and its value as words of a command line."""
    if value is None or value is False:
        return []
    if value is True:
        return [f"--{name}"]
    values = value if isinstance(value, list | tuple) else [value]
    return [f"--{name}", *map(str, values)]


LABEL = f"{NEEDED} --data.label_key a"


def test_what_is_wrong_is_found_without_torch():
    """A flag, a value, a rule, a model and a file."""
    lines = (
        "--rollout.batchsize 8",
        "--swap.length_coef much",
        f"{LABEL} --train.batch_size 7",
        f"{LABEL} --actor.model_name_or_path /no/such",
        f"{LABEL} --actor.model_name_or_path {POLICY} --data.prompt_dataset no.csv",
    )
    code = (
        "import sys, openrlhf_swap.train, openrlhf_swap.plan\n"
        "from openrlhf_swap.command import run_command\n"
        f"print([run_command(openrlhf_swap.train.main, line.split()) for line in {lines}])\n"
        "print({'torch', 'openrlhf', 'ray', 'vllm', 'transformers'} & set(sys.modules))"
    )
    output = python("-c", code)
    assert output.stdout == "[2, 2, 2, 2, 2]\nset()\n", output.stderr

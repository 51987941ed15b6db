"""OpenRLHF's command line as we read it, and as OpenRLHF itself does."""

import argparse
import runpy
import subprocess
import sys

import pytest
import torch
from support.paths import ROOT

from openrlhf_swap.errors import ConfigError
from openrlhf_swap.flags.defaults import DEFAULTS, as_words, with_defaults
from openrlhf_swap.flags.device import is_cpu_build
from openrlhf_swap.flags.stock import parse_arguments, stock_parser
from openrlhf_swap.objectives.registry import OBJECTIVES

GIVEN = ["--rollout.batch_size", "7", "--actor.adam.betas", "0.8", "0.9", "--ds.packing_samples", "--use_ms"]


@pytest.fixture
def run_cli(monkeypatch):
    """Runs OpenRLHF's CLI up to where it has its arguments; gives its parser and them."""
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
    ("cli", "argv"),
    [("train_ppo_ray", []), ("train_ppo_ray", GIVEN), ("train_ppo_ray", as_words(DEFAULTS)), ("train_sft", [])],
)
def test_arguments_are_parsed_and_nested_as_openrlhf_does(run_cli, cli, argv):
    from openrlhf.utils.config import hierarchize

    parser, flat = run_cli(argv, cli)
    ours, theirs = parse_arguments(argv, cli), hierarchize(flat)
    if cli == "train_ppo_ray":
        assert ours.algo.kl.init_coef == (0 if argv == as_words(DEFAULTS) else 0.01)  # ours are applied by train.py
        # By default it has the time of day, which may have gone on by a minute.
        assert ours.logger.wandb.run_name[:4] == theirs.logger.wandb.run_name[:4] == "ppo_"
        ours.logger.wandb.run_name = theirs.logger.wandb.run_name
    assert ours == theirs
    stock, read = ({tuple(action.option_strings) for action in p._actions} for p in (parser, stock_parser(cli)))
    assert stock == read and len(read) > 50


def test_a_wrong_flag_has_a_remedy(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["pytest"])
    stock_parser.cache_clear()  # it names the command by which it was called first
    with pytest.raises(ConfigError, match=r"^unrecognized arguments: --rollout.batchsize 8; did you mean --rollout.b"):
        parse_arguments(["--rollout.batchsize", "8"])
    with pytest.raises(ConfigError, match=r"^unrecognized arguments: --q; openrlhf-swap train --help lists"):
        parse_arguments(["--q"])


def test_whether_torch_has_an_accelerator_is_read_without_it():
    assert is_cpu_build() == (torch.version.cuda is None and torch.version.hip is None)


def test_a_command_line_is_read_and_checked_without_torch():
    code = (
        "import sys; from openrlhf_swap.config import SwapConfig, RunConfig; from openrlhf_swap.flags import rules\n"
        "import openrlhf_swap.flags.engines, openrlhf_swap.flags.swap, openrlhf_swap.train, openrlhf_swap.plan\n"
        "given = ['--actor.model_name_or_path', 'm', '--data.prompt_dataset', 'd', '--data.label_key', 'a']\n"
        "rules.checked_arguments(given, SwapConfig(), RunConfig(), on_cpu=True)\n"
        "print({'torch', 'openrlhf', 'ray', 'vllm', 'deepspeed', 'transformers'} & set(sys.modules))"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert output.stdout == "set()\n"


def test_no_rule_that_runs_before_an_objective_is_imported_reads_the_flags_that_one_sets():
    """Otherwise it could refuse what the objective's flags allow, or the other way round."""
    common = set(with_defaults([], None, on_cpu=False))
    theirs = {word for name in OBJECTIVES for word in with_defaults([], name, on_cpu=False)} - common
    flags = {word.removeprefix("--").rpartition(".")[2] for word in theirs if word.startswith("--")}
    assert flags == {"policy_loss_type", "enable_prefix_caching"}
    rules = (ROOT / "openrlhf_swap" / "flags" / "rules.py").read_text(encoding="utf-8")
    assert not any(flag in rules for flag in flags)

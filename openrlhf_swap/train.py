"""Train with SWAP's advantages on OpenRLHF.

    python -m openrlhf_swap.train [--swap.* flags] [OpenRLHF's flags]

Takes every flag of `openrlhf.cli.train_ppo_ray` and the `--swap.*` flags. Some of OpenRLHF's defaults are replaced by
the method's (`integration/startup/defaults.py`); what you give on the command line wins.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from textwrap import fill
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

from tabulate import tabulate

from openrlhf_swap.command import Parser, check_model_exists, check_writable, run_command
from openrlhf_swap.config import RunConfig, SwapConfig, short_name, type_name
from openrlhf_swap.errors import ConfigError, DataError
from openrlhf_swap.files import to_line, write_text
from openrlhf_swap.flags import (
    NEEDED,
    add_swap_arguments,
    parse_stock_arguments,
    parse_swap_arguments,
    prompt_capacity,
)
from openrlhf_swap.objectives.recipes import NAMES, describe, named_recipe, read_recipe, with_recipe
from openrlhf_swap.runs import checkpoints
from openrlhf_swap.runs.console import quiet_console
from openrlhf_swap.runs.provenance import command_line, made_of

MODULE = "openrlhf_swap.train"
SECRET = "--logger.wandb.key"
RESUME = "--ckpt.load_enable"
RUN_NAME = "--logger.wandb.run_name"
DRY_RUN = "--dry-run"
FINISHED = "finished.json"  # in the output folder: the command of a run that came to its end
DATA_FILES = (".jsonl", ".json", ".csv", ".parquet")


def main(argv: list[str]) -> int:
    """Run the command."""
    if show := next((LISTS[word] for word in argv if word in LISTS), None):
        show()
        return 0
    given = [word for word in argv if word not in ("-h", "--help", DRY_RUN)]
    flags = with_recipe(given)
    config, run, rest = parse_swap_arguments(flags)
    if {"-h", "--help"} & set(argv):
        return _print_help(config.objective)
    if recipe := named_recipe(given):
        print("\n".join(f"[swap] {line}" for line in describe(recipe, given)))
    if DRY_RUN in argv:
        print(command_line(MODULE, redacted(flags)))
        return 0
    _check_quickly(run, rest)
    content = {"swap": {**config.to_dict(), **run.to_dict()}, "given": redacted([w for w in rest if w != RESUME])}
    finished = Path(run.output_dir) / FINISHED
    if RESUME in rest and finished.exists() and json.loads(finished.read_text()) == json.loads(to_line(content)):
        print(f"[swap] the run in {run.output_dir} is finished; to train on, give more --train.num_episodes")
        return 0
    with nullcontext() if run.verbose else quiet_console(run.log, "[swap]", "--swap.verbose"):
        _train(config, run, rest, argv)
    write_text(finished, to_line(content, indent=2))
    return 0


def _check_quickly(run: RunConfig, given: list[str]) -> None:
    """What can be refused before anything heavy is imported.

    Args:
        run: the run's settings.
        given: OpenRLHF's flags.

    Raises:
        ConfigError: for a flag that is missing, or whose value cannot be used.
        DataError: for a file that is not there.
        CheckpointError: when a checkpoint would be overwritten.
    """
    stock = parse_stock_arguments(given)
    if not stock:
        return
    if missing := next((flag for flag in NEEDED if not stock[flag]), None):
        raise ConfigError(f"--{missing} is missing; {NEEDED[missing]}")
    if {"--data.max_len", "--rollout.max_new_tokens"} <= set(given):
        prompt_capacity(stock["data.max_len"], stock["rollout.max_new_tokens"])
    for flag, folder in (("--swap.output_dir", run.output_dir), ("--ckpt.path", stock["ckpt.path"])):
        check_writable(flag, Path(folder))
    check_model_exists("--actor.model_name_or_path", stock["actor.model_name_or_path"])
    for flag in ("data.prompt_dataset", "eval.dataset"):
        for file in (stock[flag] or "").split(","):
            if file.endswith(DATA_FILES) and not Path(file).exists():
                raise DataError(f"--{flag} is {file}, which is not there; give another file, or a data set of the hub")
    if not stock["ckpt.load_enable"]:
        checkpoints.refuse_to_overwrite(Path(stock["ckpt.path"]))


def _train(config: SwapConfig, run: RunConfig, given: list[str], typed: list[str]) -> None:
    from openrlhf_swap.integration import patches

    print(command_line(MODULE, redacted(typed)))  # a resumed run appends to the log
    patches.check_versions()

    from openrlhf_swap.integration.runtime.cpu import is_cpu_build, set_cpu_environment
    from openrlhf_swap.integration.startup.defaults import as_words, with_defaults, without
    from openrlhf_swap.integration.startup.preflight import resolve_run
    from openrlhf_swap.objectives.base import absolute_paths
    from openrlhf_swap.objectives.registry import objective_class

    on_cpu = is_cpu_build()
    if on_cpu:
        set_cpu_environment()
    argv = with_defaults(given, config.objective, on_cpu)
    args = patches.parse_arguments(argv)
    # Ray's actors may run in another folder than this command, so what is relative becomes absolute.
    folders = {
        "--ckpt.path": args.ckpt.path,
        "--ckpt.output_dir": args.ckpt.output_dir,
        "--logger.tensorboard_dir": args.logger.tensorboard_dir,
    }
    argv += as_words({flag: str(Path(folder).absolute()) for flag, folder in folders.items() if folder})
    run_name, run_id = _tracked_run(Path(run.output_dir), args.ckpt.load_enable)
    if not any(word.startswith(RUN_NAME) for word in given):
        argv += [RUN_NAME, run_name or args.logger.wandb.run_name]
    args = patches.parse_arguments(argv)
    config = config.replaced(options=absolute_paths(objective_class(config.objective), config.options))
    run = run.replaced(output_dir=str(Path(run.output_dir).absolute()))
    config, data = resolve_run(args, config, run, on_cpu)
    if data != args.data.prompt_dataset:
        argv = [*without(argv, "--data.prompt_probs"), "--data.prompt_dataset", data, "--data.prompt_split", "train"]
    names = {"run_name": args.logger.wandb.run_name, "run_id": run_id}
    given_data = {"data": args.data.prompt_dataset, "weights": args.actor.model_name_or_path}
    used = {} if data == args.data.prompt_dataset else {"data_used": data}
    origin = made_of(MODULE, redacted(typed), **given_data, **used)
    origin["command_with_defaults"] = command_line(MODULE, redacted(argv))
    _write_configuration(config, run, {**origin, **names})
    print(f"[swap] {_decided(args, config)}")

    from openrlhf_swap.integration.startup.launch import launch

    launch(argv, args, config, run, on_cpu)
    policy, rest = map(os.path.relpath, (args.ckpt.output_dir, run.output_dir))
    print(f"[swap] finished; the policy is in {policy}, all else in {rest}")


def _decided(args: SimpleNamespace, config: SwapConfig) -> str:
    """What is trained how, in a line."""
    engines, actors = args.vllm.num_engines, args.actor.num_nodes * args.actor.num_gpus_per_node
    return (
        f"training {args.actor.model_name_or_path} with {config.objective}: {args.rollout.batch_size} prompts x "
        f"{args.rollout.n_samples_per_prompt} responses a step, up to {args.rollout.max_new_tokens} tokens each; "
        f"{actors} policy process{'es' * (actors > 1)} under ZeRO-{args.ds.zero_stage}, "
        f"{engines} vLLM engine{'s' * (engines > 1)} with {args.vllm.gpu_memory_utilization:.0%} of the memory"
    )


def _tracked_run(folder: Path, resumed: bool) -> tuple[str | None, str]:
    """Name and id under which TensorBoard and W&B know the run: a resumed one goes on under those that it had."""
    path = folder / checkpoints.CONFIGURATION
    before = json.loads(path.read_text(encoding="utf-8")) if resumed and path.exists() else {}
    return before.get("run_name"), before.get("run_id") or uuid4().hex[:16]


def _write_configuration(config: SwapConfig, run: RunConfig, more: dict[str, Any]) -> None:
    """What the run is, for later: its settings, what it was made of, and what trackers call it."""
    folder = Path(run.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    content = {"swap": {**config.to_dict(), **run.to_dict()}, **more}
    write_text(folder / checkpoints.CONFIGURATION, to_line(content, indent=2))
    (folder / FINISHED).unlink(missing_ok=True)


def redacted(argv: list[str]) -> list[str]:
    """A command line without the key of a tracker."""
    hidden = ["***" if before == SECRET else word for before, word in zip(["", *argv], argv, strict=False)]
    return [f"{SECRET}=***" if word.startswith(f"{SECRET}=") else word for word in hidden]


def _print_objectives() -> None:
    """Each objective in a line, then its recipe and its settings."""
    from openrlhf_swap.objectives.ablation import ABLATION
    from openrlhf_swap.objectives.registry import OBJECTIVES, objective_class

    for name in OBJECTIVES:
        kind = objective_class(name)
        changes = ABLATION[name](SwapConfig(objective=name)) if name in ABLATION else {}
        words = "".join(f"; {field} {value}" for field, value in changes.items())
        print(f"{name:16} {(kind.__doc__ or '').splitlines()[0]}{words}")
        if name in NAMES:
            print(f"{'':16}   --swap.recipe {name}: all that {read_recipe(name).origin} sets")
        for setting, spec in kind.Settings.declared().items():
            print(f"{'':16}   --swap.{name}.{setting} {spec.default!r}: {spec.description}")


def _print_metrics() -> None:
    """What each metric says, for a terminal."""
    from openrlhf_swap.runs.metric_names import METRICS

    rows = [(name, fill(text, 80)) for name, text in METRICS.items()]
    print(tabulate(rows, ("metric", "meaning"), "simple"))


LISTS = {"--list-objectives": _print_objectives, "--help-metrics": _print_metrics}


def _print_help(objective: str) -> int:
    """Our flags, also those of an objective that is given as a class, our defaults, then OpenRLHF's own help."""
    from openrlhf_swap.objectives.registry import OBJECTIVES, objective_class

    parser = Parser(MODULE, __doc__)
    add_swap_arguments(parser)
    parser.add_argument("--help-metrics", action="store_true", help="explain each metric that a run logs, and exit")
    parser.add_argument("--list-objectives", action="store_true", help="each objective with its settings, and exit")
    parser.add_argument(DRY_RUN, action="store_true", help="print the command, a recipe's flags written out, and exit")
    parser.print_help()
    print("\nSETTINGS of single objectives:")
    for name in dict.fromkeys((*OBJECTIVES, objective)):
        for setting, spec in objective_class(name).Settings.declared().items():
            flag = f"--swap.{short_name(name)}.{setting} {type_name(spec).upper()}"
            print(f"  {flag}  {spec.description} (default: {spec.default!r})")
    from openrlhf_swap.integration import patches
    from openrlhf_swap.integration.startup.defaults import DEFAULTS

    print("\nDEFAULTS that differ from OpenRLHF's:")
    for flag, value in DEFAULTS.items():
        print(f"  {flag} {value}")
    print("\nAll flags of OpenRLHF:\n")
    try:
        patches.parse_arguments(["--help"])
    except SystemExit:
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(run_command(main))

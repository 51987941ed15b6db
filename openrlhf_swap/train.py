"""Train with SWAP's advantages on OpenRLHF.

    openrlhf-swap train [--swap.* flags] [OpenRLHF's flags]

Takes every flag of `openrlhf.cli.train_ppo_ray` and the `--swap.*` flags. Some of OpenRLHF's defaults are replaced by
ours (`flags/defaults.py`); what you give on the command line takes precedence.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import nullcontext
from operator import attrgetter
from pathlib import Path
from textwrap import fill
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

from tabulate import tabulate

from openrlhf_swap.command import Parser, check_model_exists, check_writable, run_command
from openrlhf_swap.config import RunConfig, SwapConfig, short_name, type_name
from openrlhf_swap.data.rows import DATA_FILES, check_quickly
from openrlhf_swap.files import to_line, write_text
from openrlhf_swap.flags.defaults import DEFAULTS, FOLDERS, with_defaults, with_folders, without
from openrlhf_swap.flags.device import is_cpu_build
from openrlhf_swap.flags.grader_rules import check_grader
from openrlhf_swap.flags.paths import with_whole_paths
from openrlhf_swap.flags.placement import crowded, policy_ranks
from openrlhf_swap.flags.rules import arguments_of_objective, checked_arguments, columns_of
from openrlhf_swap.flags.run_file import write_run_file
from openrlhf_swap.flags.stock import parse_arguments, stock_parser
from openrlhf_swap.flags.swap import add_swap_arguments, parse_swap_arguments
from openrlhf_swap.objectives.recipes import (
    CONFIG,
    NAMES,
    describe,
    named_recipe,
    read_recipe,
    with_file,
    with_recipe,
)
from openrlhf_swap.objectives.registry import OBJECTIVES, objective_class
from openrlhf_swap.packages.versions import check_version
from openrlhf_swap.runs import checkpoints
from openrlhf_swap.runs.card import try_write_card
from openrlhf_swap.runs.console import quiet_console
from openrlhf_swap.runs.lock import locked
from openrlhf_swap.runs.model_code import refuse_model_code
from openrlhf_swap.runs.private_ray import private_ray
from openrlhf_swap.runs.provenance import command_line, made_of

MODULE = "openrlhf-swap train"
SECRET = "--logger.wandb.key"
RESUME = "--ckpt.load_enable"
RUN_NAME = "--logger.wandb.run_name"
DRY_RUN = "--dry-run"
FINISHED = "finished.json"  # in the output folder: the command of a finished run


def main(argv: list[str]) -> int:
    """Run the command."""
    if show := next((LISTS[word] for word in argv if word in LISTS), None):
        show()
        return 0
    given = [word for word in argv if word not in ("-h", "--help", DRY_RUN)]
    flags = with_recipe(given)
    config, run, told = parse_swap_arguments(flags)
    if {"-h", "--help"} & set(argv):
        return _print_help(config.objective)
    if recipe := named_recipe(with_file(given)):
        print("\n".join(f"[swap] {line}" for line in describe(recipe, given)))
    if DRY_RUN in argv:
        print(command_line(MODULE, redacted(flags)))
        return 0
    rest = with_folders(told, Path(run.output_dir))
    checkpoint_folder = _check_quickly(config, run, rest)
    content = {"swap": {**config.to_dict(), **run.to_dict()}, "given": redacted([w for w in told if w != RESUME])}
    finished = Path(run.output_dir) / FINISHED
    if RESUME in told and _read_record(finished) == json.loads(to_line(content)):
        print(f"[swap] the run in {run.output_dir} is finished; to train further, raise --train.num_episodes")
        return 0
    with locked({"--swap.output_dir": Path(run.output_dir), "--ckpt.path": checkpoint_folder}):
        console = nullcontext() if run.verbose else quiet_console(run.log, "[swap]", "--swap.verbose")
        try:
            with private_ray(), console:
                _train(config, run, rest, argv)
        except KeyboardInterrupt:
            saved = checkpoints.newest(checkpoint_folder)
            remedy = f"start again with {RESUME} to resume from {saved}" if saved else "no checkpoint was written yet"
            raise KeyboardInterrupt(f"; {remedy}") from None  # `run_command` prints it
        write_text(finished, to_line(content, indent=2))
    return 0


def _read_record(path: Path) -> dict[str, Any]:
    """A JSON file that an earlier start wrote; {} if there is none or, after a line that says so, if it is torn."""
    try:
        record = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError):
        record = None
    if isinstance(record, dict):
        return record
    print(f"[swap] {path} cannot be read and is ignored")
    return {}


def _check_quickly(config: SwapConfig, run: RunConfig, given: list[str]) -> Path:
    """Refuse what can be refused before anything slow is imported; returns `--ckpt.path`.

    Args:
        config: the method's settings.
        run: the run's.
        given: OpenRLHF's flags, its folders included.

    Raises:
        SwapError: for a flag, a file that does not exist, another OpenRLHF, or a checkpoint that would be overwritten.
    """
    on_cpu = is_cpu_build()
    args = checked_arguments(given, config, run, on_cpu)
    folders = {flag: attrgetter(flag.removeprefix("--"))(args) for flag in FOLDERS}
    for flag, folder in {"--swap.output_dir": run.output_dir, **folders}.items():
        check_writable(flag, Path(folder))
    check_model_exists("--actor.model_name_or_path", args.actor.model_name_or_path)
    refuse_model_code("--actor.model_name_or_path", args.actor.model_name_or_path, run.trust_remote_code)
    for flag, files in (("--data.prompt_dataset", args.data.prompt_dataset), ("--eval.dataset", args.eval.dataset)):
        for file in map(str.strip, (files or "").split(",")):
            if file.endswith(DATA_FILES):
                check_quickly(flag, file, columns_of(args))
    if not args.ckpt.load_enable:
        checkpoints.refuse_to_overwrite(Path(args.ckpt.path))
    check_grader(arguments_of_objective(given, config, on_cpu), config, run)
    return Path(args.ckpt.path)


def _train(config: SwapConfig, run: RunConfig, given: list[str], typed: list[str]) -> None:
    on_cpu = is_cpu_build()
    if on_cpu and (warning := crowded(parse_arguments(with_defaults(given, config.objective, on_cpu)))):
        print(f"[swap] warning: {warning}", flush=True)  # before the imports, which take long themselves
    from openrlhf_swap.integration import patches

    print(command_line(MODULE, redacted(typed)))  # a resumed run appends to the log
    patches.check_versions()

    from openrlhf_swap.integration.runtime.cpu import set_cpu_environment
    from openrlhf_swap.integration.startup.preflight import resolve_run
    from openrlhf_swap.objectives.base import absolute_paths

    if on_cpu:
        set_cpu_environment()
    argv = _settled(with_defaults(given, config.objective, on_cpu))
    args = parse_arguments(argv)
    run_name, run_id = _tracked_run(Path(run.output_dir), args.ckpt.load_enable)
    named = any(word.startswith(RUN_NAME) for word in given)
    if not named:
        argv += [RUN_NAME, run_name or args.logger.wandb.run_name]
    args = parse_arguments(argv)
    config = config.replaced(options=absolute_paths(objective_class(config.objective), config.options))
    run = run.replaced(output_dir=str(Path(run.output_dir).absolute()))
    config, data, evaluation = resolve_run(args, config, run)
    settled = argv if named else without(argv, RUN_NAME)  # the data sets as they were given
    if data != args.data.prompt_dataset:
        argv = [*without(argv, "--data.prompt_probs"), "--data.prompt_dataset", data, "--data.prompt_split", "train"]
    if evaluation != args.eval.dataset:
        argv = [*argv, "--eval.dataset", str(evaluation), "--eval.split", "train"]
    names = {"run_name": args.logger.wandb.run_name, "run_id": run_id}
    given_data = {"data": args.data.prompt_dataset, "weights": args.actor.model_name_or_path}
    used = {} if data == args.data.prompt_dataset else {"data_used": data}
    origin = made_of(MODULE, redacted(typed), **given_data, **used)
    origin["command_with_defaults"] = command_line(MODULE, redacted(argv))
    _write_configuration(config, run, {**origin, **names})
    write_run_file(Path(run.output_dir), settled, config, run)
    print(f"[swap] {_decided(args, config)}")

    from openrlhf_swap.integration.startup.launch import launch

    launch(with_whole_paths(argv), args, config, run, on_cpu)  # records have the names that were given
    try_write_card(Path(args.ckpt.output_dir), Path(run.output_dir))
    policy, rest = map(os.path.relpath, (args.ckpt.output_dir, run.output_dir))
    print(f"[swap] finished; the policy is in {policy}, everything else in {rest}")


def _settled(argv: list[str]) -> list[str]:
    r"""A command line with whole paths of the folders that are written to, and newlines for the \n of a template.

    Ray's actors may run in another folder than this command.
    """
    args = parse_arguments(argv)
    words = list(argv)
    for name in ("ckpt.path", "ckpt.output_dir", "logger.tensorboard_dir"):
        if folder := attrgetter(name)(args):
            words += [f"--{name}", str(Path(folder).absolute())]
    if template := args.data.input_template:
        words.append("--data.input_template=" + template.replace("\\n", "\n"))
    return words


def _decided(args: SimpleNamespace, config: SwapConfig) -> str:
    """One line that says what is trained and how."""
    engines, actors = args.vllm.num_engines, policy_ranks(args)
    return (
        f"training {args.actor.model_name_or_path} with {config.objective}: {args.rollout.batch_size} prompts x "
        f"{args.rollout.n_samples_per_prompt} responses a step, up to {args.rollout.max_new_tokens} tokens each; "
        f"{actors} policy process{'es' * (actors > 1)} under ZeRO-{args.ds.zero_stage}, "
        f"{engines} vLLM engine{'s' * (engines > 1)} with {args.vllm.gpu_memory_utilization:.0%} of the memory"
    )


def _tracked_run(folder: Path, resumed: bool) -> tuple[str | None, str]:
    """Name and id of the run for TensorBoard and W&B; a resumed run keeps those it had."""
    before = _read_record(folder / checkpoints.CONFIGURATION) if resumed else {}
    return before.get("run_name"), before.get("run_id") or uuid4().hex[:16]


def _write_configuration(config: SwapConfig, run: RunConfig, more: dict[str, Any]) -> None:
    """Record the run: its settings, its provenance, and its name and id for trackers."""
    folder = Path(run.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    content = {"swap": {**config.to_dict(), **run.to_dict()}, **more}
    write_text(folder / checkpoints.CONFIGURATION, to_line(content, indent=2))
    (folder / FINISHED).unlink(missing_ok=True)


def redacted(argv: list[str]) -> list[str]:
    """A command line without the tracker's key."""
    hidden = ["***" if before == SECRET else word for before, word in zip(["", *argv], argv, strict=False)]
    return [f"{SECRET}=***" if word.startswith(f"{SECRET}=") else word for word in hidden]


def _print_objectives() -> None:
    """Print each objective on a line, followed by its recipe and its settings."""
    from openrlhf_swap.objectives.ablation import ABLATION

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
    """Print the meaning of each metric."""
    from openrlhf_swap.runs.metrics import METRICS

    rows = [(name, fill(text, 80)) for name, text in METRICS.items()]
    print(tabulate(rows, ("metric", "meaning"), "simple"))


LISTS = {"--list-objectives": _print_objectives, "--help-metrics": _print_metrics}


def _print_help(objective: str) -> int:
    """Print our flags (also of an objective given as a class), our defaults, and then OpenRLHF's own help."""
    parser = Parser(MODULE, __doc__)
    add_swap_arguments(parser)
    parser.add_argument("--help-metrics", action="store_true", help="explain each metric that a run logs, and exit")
    parser.add_argument("--list-objectives", action="store_true", help="list objectives and their settings, and exit")
    parser.add_argument(CONFIG, metavar="FILE", help="YAML file of flags, such as a run's run.yaml; flags here win")
    parser.add_argument(DRY_RUN, action="store_true", help="print the command with a recipe's flags, and exit")
    parser.print_help()
    print("\nSETTINGS of single objectives:")
    for name in dict.fromkeys((*OBJECTIVES, objective)):
        for setting, spec in objective_class(name).Settings.declared().items():
            flag = f"--swap.{short_name(name)}.{setting} {type_name(spec).upper()}"
            print(f"  {flag}  {spec.description} (default: {spec.default!r})")
    print("\nDEFAULTS that differ from OpenRLHF's:")
    for flag, value in DEFAULTS.items():
        print(f"  {flag} {value}")
    for flag, folder in FOLDERS.items():
        print(f"  {flag} {folder}, in --swap.output_dir")
    print("\nAll flags of OpenRLHF:\n")
    check_version("openrlhf")
    stock_parser().print_help()
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main))

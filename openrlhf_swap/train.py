"""Train with SWAP's advantages on OpenRLHF.

    openrlhf-swap train [--swap.* flags] [OpenRLHF's flags]

Takes every flag of `openrlhf.cli.train_ppo_ray` and the `--swap.*` flags. Some of OpenRLHF's
defaults are replaced by ours (`flags/configuration.py`); what the command line says wins.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from openrlhf_swap.command import check_writable, run_command
from openrlhf_swap.config import SwapConfig, extra
from openrlhf_swap.data.files import DATA_FILES, check_quickly
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.files import Row, to_line, write_text
from openrlhf_swap.flags.configuration import (
    DEFAULTS,
    FOLDERS,
    SECRET,
    Configuration,
    add_config,
    add_objective,
    configure,
    training_parser,
)
from openrlhf_swap.flags.placement import policy_ranks
from openrlhf_swap.flags.rules import check_flags, check_objective, columns_of
from openrlhf_swap.flags.stock import complete
from openrlhf_swap.objectives.registry import GROUPS, objective_class
from openrlhf_swap.process.console import quiet_console
from openrlhf_swap.process.ctrl_c import ctrl_c_after
from openrlhf_swap.process.locks import locked
from openrlhf_swap.process.private_ray import private_ray
from openrlhf_swap.recipes import NAMES, as_words, find_value, read_recipe
from openrlhf_swap.runs import checkpoints
from openrlhf_swap.runs.card import equation, try_write_card
from openrlhf_swap.runs.model_code import check_model_files
from openrlhf_swap.runs.provenance import made_of

COMMAND = "openrlhf-swap train"
MADE_FROM = ("actor.model_name_or_path", "data.prompt_dataset", "swap.objective")
RUN_NAME = "logger.wandb.run_name"
DRY_RUN = "--dry-run"
RUN_FILE = """\
# All settings of the run in {folder}: openrlhf-swap train --config {folder}/run.yaml
# Flags on the command line win; a new run needs another --swap.output_dir, and another folder for
# each --ckpt and --logger flag that names one below.
"""


def main(argv: list[str]) -> int:
    if "--list-objectives" in argv:
        _print_objectives()
        return 0
    if {"-h", "--help"} & set(argv):
        _print_help(find_value(argv, "--swap.objective"))
        return 0
    configuration = configure([word for word in argv if word != DRY_RUN])
    for line in _recipe_lines(configuration):
        print(f"[swap] {line}")
    if DRY_RUN in argv:
        check_objective(configuration)  # other checks may need the machine, the model or the data
        print(_as_yaml(configuration), end="")
        return 0
    _check_quickly(configuration)
    output = Path(configuration.run.output_dir)
    record = output / checkpoints.CONFIGURATION
    settings = json.loads(to_line({**configuration.dump(), "ckpt.load_enable": True}))
    if configuration.args.ckpt.load_enable:
        finished = _read_record(record).get("finished")
        if finished == settings:
            print(
                f"[swap] the run in {output} is finished; to train further, raise "
                "--train.num_episodes, or --swap.training_steps if it is set"
            )
            return 0
        if finished and checkpoints.newest(Path(configuration.args.ckpt.path)) is None:
            _refuse_to_replace(output, finished, settings)
    _train_alone(configuration, argv)
    write_text(record, to_line({**_read_record(record), "finished": settings}, indent=2))
    return 0


def _refuse_to_replace(
    output: Path,
    finished: Any,
    settings: Any,
) -> None:
    """Raise ConfigError if another run has finished in a folder, without a checkpoint.

    Nothing of it could be continued: its policy would be replaced by that of this run.
    """
    for name in MADE_FROM:
        before = finished.get(name)
        if before != settings.get(name):
            raise ConfigError(
                f"--{name} is {settings.get(name)}, but --swap.output_dir {output} holds the "
                f"policy of a finished run with {before}; give another --swap.output_dir"
            )


def _train_alone(configuration: Configuration, argv: list[str]) -> None:
    """Train while no other run writes into the same folders; on Ctrl-C say how to resume."""
    output = Path(configuration.run.output_dir)
    ckpt = configuration.args.ckpt
    folders = {
        "--swap.output_dir": output,
        "--ckpt.path": Path(ckpt.path),
        "--ckpt.output_dir": Path(ckpt.output_dir),
    }
    console: AbstractContextManager[Any] = nullcontext()
    if not configuration.run.verbose:
        console = quiet_console(output / "train.log", "[swap]", "--swap.verbose")
    with locked(folders):
        try:
            with private_ray(), console:
                _train(configuration, redacted(argv))
        except KeyboardInterrupt:
            path = Path(ckpt.path)
            remedy = checkpoints.how_to_resume(path) + checkpoints.how_to_end(path)
            raise KeyboardInterrupt(f"; {remedy}") from None  # `run_command` prints it


def _read_record(path: Path) -> Row:
    """A JSON file that an earlier start wrote.

    It is {} if there is none, and, after a line that says so, if the file is torn.
    """
    if not path.exists():
        return {}
    with suppress(ValueError, RecursionError):
        record = json.loads(path.read_bytes())
        if isinstance(record, dict):
            return record
    print(f"[swap] {path} cannot be read and is ignored")
    return {}


def _check_quickly(configuration: Configuration) -> None:
    """Refuse what can be refused before the slow imports."""
    check_flags(configuration)
    args = configuration.args
    run = configuration.run
    check_writable("--swap.output_dir", Path(run.output_dir))
    for name in FOLDERS:
        check_writable(f"--{name}", Path(configuration.values[name]))
    model = args.actor.model_name_or_path
    check_model_files("--actor.model_name_or_path", model, run.trust_remote_code)
    data_sets = {
        "--data.prompt_dataset": args.data.prompt_dataset,
        "--eval.dataset": args.eval.dataset or "",
    }
    for flag, names in data_sets.items():
        for name in map(str.strip, names.split(",")):
            if name.endswith(DATA_FILES):
                check_quickly(flag, name, columns_of(args))
    if not args.ckpt.load_enable:
        checkpoints.refuse_to_overwrite(Path(args.ckpt.path))
    check_objective(configuration)  # last, because its import takes a second


def _train(configuration: Configuration, words: list[str]) -> None:
    notes = complete(configuration.values)[1]
    command = shlex.join([*COMMAND.split(), *words])
    print(f"{command}\n{notes}", end="")  # a resumed run appends to the log
    with ctrl_c_after():  # in the middle of torch's import it would abort the process
        from openrlhf_swap.integration import patches

        patches.check_versions()
        from openrlhf_swap.integration.startup.places import check_gpus
        from openrlhf_swap.integration.startup.preflight import resolve_run
        from openrlhf_swap.integration.startup.ray import starting_ray

    output = Path(configuration.run.output_dir).absolute()
    names = _tracked_run(configuration, output)
    run = configuration.run.replaced(output_dir=str(output))
    named = configuration.replace_flags({RUN_NAME: names["run_name"]})
    resolved = resolve_run(replace(named, method=_whole_paths(configuration.method), run=run))
    # Records have the data sets that were given.
    _write_records(replace(named, method=resolved.method, run=run), words, names)
    args = resolved.args
    print(f"[swap] {_opening(resolved)}")
    whole = resolved.use_whole_paths()
    placed: dict[str, int] = {}
    if not whole.on_cpu:
        whole, placed = check_gpus(whole)
    with starting_ray(whole) as wait_for_ray:
        # This import takes longer than Ray does to start.
        from openrlhf_swap.integration.startup.launch import launch

        launch(whole, wait_for_ray, placed)
    try_write_card(Path(args.ckpt.output_dir), output)
    policy, rest = map(os.path.relpath, (args.ckpt.output_dir, output))
    print(f"[swap] finished; the policy is in {policy}, everything else in {rest}")


def _whole_paths(method: SwapConfig) -> SwapConfig:
    """The method with whole paths for the files that settings of its objective name."""
    options = dict(method.options)
    for name, spec in objective_class(method.objective).Settings.declared().items():
        if extra(spec)["is_path"] and options.get(name):
            options[name] = str(Path(options[name]).absolute())
    return method.replaced(options=options)


def _opening(configuration: Configuration) -> str:
    """What a run trains, in one line."""
    args = configuration.args
    engines = args.vllm.num_engines
    actors = policy_ranks(args)
    return (
        f"training {args.actor.model_name_or_path} with {configuration.method.objective}: "
        f"{args.rollout.batch_size} prompts x {args.rollout.n_samples_per_prompt} responses a "
        f"step, up to {args.rollout.max_new_tokens} tokens each; "
        f"{actors} policy process{'es' * (actors > 1)} under ZeRO-{args.ds.zero_stage}, "
        f"{engines} vLLM engine{'s' * (engines > 1)} "
        f"with {args.vllm.gpu_memory_utilization:.0%} of the memory"
    )


def _tracked_run(configuration: Configuration, output: Path) -> dict[str, str]:
    """Name and id of the run for TensorBoard and W&B; a resumed run keeps those it had."""
    args = configuration.args
    before = _read_record(output / checkpoints.CONFIGURATION) if args.ckpt.load_enable else {}
    name = args.logger.wandb.run_name
    if RUN_NAME not in configuration.named:
        name = before.get("run_name") or name
    return {"run_name": name, "run_id": before.get("run_id") or uuid4().hex[:16]}


def _write_records(
    given: Configuration,
    words: list[str],
    names: dict[str, str],
) -> None:
    """Write the records of a run into its folder.

    swap_config.json says what the run is made of, and run.yaml starts it again.
    """
    output = Path(given.run.output_dir)
    args = given.args
    output.mkdir(parents=True, exist_ok=True)
    inputs = {"data": args.data.prompt_dataset, "weights": args.actor.model_name_or_path}
    content = {
        "swap": {**given.method.model_dump(), **given.run.model_dump()},
        "flags": given.dump(),
        **made_of(COMMAND, words, **inputs),
        **names,
    }
    write_text(output / checkpoints.CONFIGURATION, to_line(content, indent=2))
    settings = _as_yaml(given.use_whole_paths())
    write_text(output / "run.yaml", RUN_FILE.format(folder=output) + settings)


def _as_yaml(configuration: Configuration) -> str:
    import yaml

    flags = {"flags": configuration.dump()}
    return str(yaml.safe_dump(flags, sort_keys=False, allow_unicode=True, width=1000))


def redacted(words: list[str]) -> list[str]:
    """A command line without the tracker's key."""
    flag = f"--{SECRET}"
    hidden = []
    for before, word in zip(["", *words], words, strict=False):
        if before == flag:
            word = "***"
        elif word.startswith(f"{flag}="):
            word = f"{flag}=***"
        hidden.append(word)
    return hidden


def _recipe_lines(configuration: Configuration) -> list[str]:
    """What a recipe sets, each value with its source, and what cannot be done here."""
    recipe = configuration.recipe
    if not recipe.name:
        return []
    lines = [f"recipe {recipe.name}, after {recipe.origin}:"]
    for name, value in recipe.flags.items():
        line = "  " + " ".join(as_words({name: value}))
        if name in configuration.overruled:
            line += " (overruled)"
        if recipe.sources[name]:
            line += f"  # {recipe.sources[name]}"
        lines.append(line)
    if recipe.prompt:
        lines.append(f"  prompt: {recipe.prompt}")
    return lines + [f"  not here: {missing}" for missing in recipe.cannot]


def _print_objectives() -> None:
    """Print each objective, its recipe and its settings, by what a user has or wants."""
    for title, group in GROUPS.items():
        print(f"\n{title}:")
        for name in group:
            print(f"{name:16} {equation(name)}")
            if name in NAMES:
                print(f"{'':16}   --swap.recipe {name}: all that {read_recipe(name).origin} sets")
            for setting, spec in objective_class(name).Settings.declared().items():
                print(f"{'':16}   --swap.{name}.{setting} {spec.default!r}: {spec.description}")
    print("\ndocs/use/which_objective.md has three or four of them to begin with")


def _print_help(objective: str | None) -> None:
    """Print all flags, and with an objective those of its own."""
    parser = training_parser()
    parser.description = __doc__
    add_config(parser)
    if objective:
        add_objective(parser, objective)
    text = "list objectives and their own settings, and exit"
    parser.add_argument("--list-objectives", action="store_true", help=text)
    text = "print all settings as a YAML file for --config, and exit"
    parser.add_argument(DRY_RUN, action="store_true", help=text)
    parser.print_help()
    print("\nDEFAULTS that differ from OpenRLHF's:")
    folders = {name: f"{folder}, in --swap.output_dir" for name, folder in FOLDERS.items()}
    for name, value in {**DEFAULTS, **folders}.items():
        print(f"  --{name} {value}")


if __name__ == "__main__":
    sys.exit(run_command(main))

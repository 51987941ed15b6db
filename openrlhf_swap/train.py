r"""Train with SWAP's advantages on OpenRLHF.

    openrlhf-swap train --actor.model_name_or_path MODEL --data.prompt_dataset prompts.jsonl \
        --data.input_key problem --data.label_key answer
    openrlhf-swap train --config mine.yaml --swap.recipe own_bill --swap.output_dir outputs/mine

Takes the `--swap.*` flags and every flag of OpenRLHF's `train_ppo_ray`. `--no-FLAG` turns a switch
off. Some of OpenRLHF's defaults are replaced; `--help-all` lists them.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from openrlhf_swap.command import check_writable, run_command
from openrlhf_swap.data.files import DATA_FILES, check_quickly
from openrlhf_swap.errors import ConfigError, StoppedBySignal
from openrlhf_swap.flags.configuration import (
    FOLDERS,
    Configuration,
    configure,
)
from openrlhf_swap.flags.help import print_help, print_objectives
from openrlhf_swap.flags.rules import check_flags, check_objective, columns_of
from openrlhf_swap.process.console import MARK, quiet_console, say
from openrlhf_swap.process.ctrl_c import ctrl_c_after, saving_at_warning, stopped_like_ctrl_c
from openrlhf_swap.process.locks import is_locked, locked
from openrlhf_swap.process.private_ray import private_ray
from openrlhf_swap.recipes import as_words, find_value
from openrlhf_swap.runs import checkpoints
from openrlhf_swap.runs.model_code import check_model_files
from openrlhf_swap.runs.record import (
    COMMAND,
    as_yaml,
    is_finished,
    mark_finished,
    redacted,
)

DRY_RUN = "--dry-run"


def main(argv: list[str]) -> int:
    if "--list-objectives" in argv:
        print_objectives()
        return 0
    if {"-h", "--help", "--help-all"} & set(argv):
        print_help(__doc__, find_value(argv, "--swap.objective"), "--help-all" in argv)
        return 0
    words = [word for word in argv if word != DRY_RUN]
    configuration = configure(words)
    for line in _recipe_lines(configuration):
        say(line)
    if DRY_RUN in argv:
        check_objective(configuration)  # other checks may need the machine, the model or the data
        print(_settings_text(configuration, words), end="")
        return 0
    _check_quickly(configuration)
    if configuration.args.ckpt.load_enable and is_finished(configuration):
        say(
            f"the run in {configuration.run.output_dir} is finished; to train further, raise "
            "--train.num_episodes, or --swap.training_steps if it is set"
        )
        return 0
    _train_alone(configuration, argv)
    mark_finished(configuration)
    return 0


def _train_alone(configuration: Configuration, argv: list[str]) -> None:
    """Train while no other run writes into the same folders; on Ctrl-C say how to resume."""
    output = Path(configuration.run.output_dir)
    ckpt = configuration.args.ckpt
    folders = {
        "--swap.output_dir": output,
        "--ckpt.path": Path(ckpt.path),
        "--ckpt.output_dir": Path(ckpt.output_dir),
    }
    _refuse_places_inside_runs(folders)
    console: AbstractContextManager[Any] = nullcontext()
    if not configuration.run.verbose:
        console = quiet_console(output / "train.log", MARK, "--swap.verbose")
    with locked(folders):
        try:
            with stopped_like_ctrl_c(), saving_at_warning(), private_ray(), console:
                _train(configuration, redacted(argv))
        except KeyboardInterrupt as error:
            end = checkpoints.how_to_end(Path(ckpt.path))
            remedy = f"; {checkpoints.how_to_resume(ckpt)}{end}"
            # `run_command` prints it.
            if isinstance(error, StoppedBySignal):
                raise StoppedBySignal(error.number, remedy) from None
            raise KeyboardInterrupt(remedy) from None


def _refuse_places_inside_runs(folders: Mapping[str, Path]) -> None:
    """Raise ConfigError for a folder, by its flag, inside that of another run under way."""
    own = {folder.resolve() for folder in folders.values()}
    for flag, folder in folders.items():
        for outer in folder.resolve().parents:
            is_of_a_run = outer not in own and (outer / checkpoints.CONFIGURATION).exists()
            if is_of_a_run and is_locked(outer):
                raise ConfigError(
                    f"{flag} is {folder}, which is inside {outer}, where another run is under way; "
                    "use a place outside of it"
                )


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
    command = shlex.join([*COMMAND.split(), *words])
    print(f"{command}\n{configuration.notes}", end="")  # a resumed run appends to the log
    with ctrl_c_after():  # in the middle of torch's import it would abort the process
        from openrlhf_swap.integration import patches

        patches.check_versions()
        from openrlhf_swap.integration.startup.start import start

    start(configuration, words)


def _settings_text(configuration: Configuration, words: list[str]) -> str:
    """All settings as YAML; comments mark those that a machine with GPUs would not have."""
    on_gpu = configure(words, on_cpu=False)
    lines = []
    for line in as_yaml(configuration).splitlines():
        name = line.partition(":")[0].strip()
        if configuration.values.get(name) != on_gpu.values.get(name):
            line += "  # because this machine has no GPU"
        lines.append(f"{line}\n")
    return "".join(lines)


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


if __name__ == "__main__":
    sys.exit(run_command(main))

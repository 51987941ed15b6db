"""The record of a run in its folder: what it is made of, and whether it is finished."""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from openrlhf_swap.errors import ConfigError
from openrlhf_swap.files import Row, to_line, write_text
from openrlhf_swap.flags.configuration import SECRET, Configuration, without_secrets
from openrlhf_swap.process.console import say
from openrlhf_swap.runs import checkpoints
from openrlhf_swap.runs.provenance import fingerprint, identity_of, is_same, made_of

COMMAND = "openrlhf-swap train"
MADE_FROM = ("actor.model_name_or_path", "data.prompt_dataset", "swap.objective")
RUN_NAME = "logger.wandb.run_name"
RUN_FILE = """\
# All settings of the run in {folder}: openrlhf-swap train --config {folder}/run.yaml
# Flags on the command line win; a new run needs another --swap.output_dir, and another folder for
# each --ckpt and --logger flag that names one below.
"""


@dataclass(frozen=True)
class TrackedRun:
    """What TensorBoard and W&B call a run; a resumed run keeps what it had."""

    run_name: str
    run_id: str


def tracked_run(given: Configuration) -> TrackedRun:
    """The names of a run: a resumed run's are read from its folder."""
    args = given.args
    before: Row = {}
    if args.ckpt.load_enable:
        before = read_record(Path(given.run.output_dir))
    run_id = before.get("run_id") or uuid4().hex[:16]
    name = args.logger.wandb.run_name
    if RUN_NAME not in given.named:
        # OpenRLHF's default is the minute, in which another run may begin.
        name = before.get("run_name") or f"{name}_{run_id[:4]}"
    return TrackedRun(name, run_id)


def read_record(output: Path) -> Row:
    """The record that an earlier start wrote into a run's folder.

    It is {} if there is none, and, after a line that says so, if the file is torn.
    """
    path = output / checkpoints.CONFIGURATION
    if not path.exists():
        return {}
    with suppress(ValueError, RecursionError):
        record = json.loads(path.read_bytes())
        if isinstance(record, dict):
            return record
    say(f"{path} cannot be read and is ignored")
    return {}


def write_record(
    given: Configuration, words: list[str], tracked: TrackedRun, starts: Sequence[Row]
) -> None:
    """Write swap_config.json, which says what a run is made of, and run.yaml, which repeats it.

    `words` are those of the command line, without what is secret; `starts` are the starts with
    settings of their own, this one included.
    """
    output = Path(given.run.output_dir)
    output.mkdir(parents=True, exist_ok=True)
    record = {
        "swap": {**given.method.model_dump(), **given.run.model_dump()},
        "flags": given.dump(),
        **made_of(COMMAND, words, **_inputs(given)),
        "run_name": tracked.run_name,
        "run_id": tracked.run_id,
        "starts": starts,
    }
    write_text(output / checkpoints.CONFIGURATION, to_line(record, indent=2))
    settings = as_yaml(given.use_whole_paths())
    write_text(output / "run.yaml", RUN_FILE.format(folder=output) + settings)


def _inputs(configuration: Configuration) -> dict[str, str]:
    """What a run is made from: names of data and model, by role."""
    args = configuration.args
    return {"data": args.data.prompt_dataset, "weights": args.actor.model_name_or_path}


def as_yaml(configuration: Configuration) -> str:
    """All settings of a run, as `--config` reads them."""
    import yaml

    flags = {"flags": configuration.dump()}
    return str(yaml.safe_dump(flags, sort_keys=False, allow_unicode=True, width=1000))


def redacted(words: list[str]) -> list[str]:
    """A command line without the tracker's key and the secrets of addresses."""
    flag = f"--{SECRET}"
    hidden = []
    for before, word in zip(["", *words], words, strict=False):
        if before == flag:
            word = "***"
        elif word.startswith(f"{flag}="):
            word = f"{flag}=***"
        hidden.append(without_secrets(word))
    return hidden


def is_finished(configuration: Configuration) -> bool:
    """Whether the run of a configuration with `--ckpt.load_enable` has ended before.

    It has ended if its settings are the same, and the content of its model and its data.

    Raises ConfigError if another run has finished in its folder, without a checkpoint. Nothing of
    it could be continued: its policy would be replaced by that of this run.
    """
    output = Path(configuration.run.output_dir)
    record = read_record(output)
    finished = record.get("finished")
    if not finished:
        return False
    settings = _settings(configuration)
    changed = _changed_inputs(configuration, record)
    if finished == settings and not changed:
        return True
    if checkpoints.newest(Path(configuration.args.ckpt.path)) is None:
        _refuse_to_replace(output, finished, settings, changed)
    return False


def _changed_inputs(configuration: Configuration, record: Row) -> list[str]:
    """The names of the data sets and the model whose content is not the recorded one."""
    if "starts" not in record:  # an earlier version hashed other files and blocks
        return []
    changed = []
    recorded = record.get("inputs", {})
    for role, names in _inputs(configuration).items():
        for name, before in zip(names.split(","), recorded.get(role, []), strict=False):
            now = identity_of(fingerprint(name))
            if not is_same(now, identity_of(before)):
                changed.append(name)
    return changed


def _refuse_to_replace(output: Path, finished: Row, settings: Row, changed: list[str]) -> None:
    for name in changed:
        raise ConfigError(
            f"{name} has changed, but --swap.output_dir {output} holds the policy of a finished "
            "run that was made from it before; give another --swap.output_dir"
        )
    for name in MADE_FROM:
        before = finished.get(name)
        if before != settings.get(name):
            raise ConfigError(
                f"--{name} is {settings.get(name)}, but --swap.output_dir {output} holds the "
                f"policy of a finished run with {before}; give another --swap.output_dir"
            )


def mark_finished(configuration: Configuration) -> None:
    """Record that the run of a configuration has ended, so that it is not started again."""
    output = Path(configuration.run.output_dir)
    record = {**read_record(output), "finished": _settings(configuration)}
    write_text(output / checkpoints.CONFIGURATION, to_line(record, indent=2))


def _settings(configuration: Configuration) -> Row:
    """The settings of a run by flag, as they are read again from a file."""
    settings: Row = json.loads(to_line({**configuration.dump(), "ckpt.load_enable": True}))
    return settings

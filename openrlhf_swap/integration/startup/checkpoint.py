"""The checkpoint that a run goes on from, and the settings of all starts that led to it."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

from openrlhf_swap.config import short_name
from openrlhf_swap.errors import CheckpointError, reader_errors
from openrlhf_swap.files import Row, parse_row, to_line, write_text
from openrlhf_swap.flags.configuration import Configuration, without_secrets
from openrlhf_swap.flags.placement import policy_ranks
from openrlhf_swap.flags.resume import BOUND, NAMED
from openrlhf_swap.integration.startup.model import MODEL
from openrlhf_swap.objectives.registry import objective_class
from openrlhf_swap.runs import checkpoints
from openrlhf_swap.runs.provenance import (
    code_identity,
    grader_identity,
    identity,
    identity_of_list,
    is_same,
    notes_on,
    refuse_other_settings,
    shown,
)

REMEDY = (
    "resume with that, or start a new run (another --ckpt.path and --swap.output_dir), from the "
    "exported policy (--actor.model_name_or_path) if you like"
)
RANKS = "--actor.num_nodes x --actor.num_gpus_per_node"


@dataclass(frozen=True)
class ChosenCheckpoint:
    """Where a run begins.

    Attributes:
        folder: `--ckpt.path`.
        step: the last step that the checkpoint has; 0 where the run begins at the first one.
        bound: the settings that may not differ from those of the checkpoint, by flag.
        named: the settings that may differ, and are told then, by flag.
        earlier: the earlier starts whose steps are in the checkpoint, oldest first. Each has
            `after_step`, the last step before it, and its `settings`, bound and named ones.
        messages: lines about the choice.
    """

    folder: Path
    step: int
    bound: Row
    named: Row
    earlier: tuple[Row, ...] = ()
    messages: tuple[str, ...] = ()

    @property
    def settings(self) -> Row:
        """The settings of this start, as they are read again from a file."""
        settings: Row = json.loads(to_line({**self.bound, **self.named}))
        return settings

    @property
    def recorded(self) -> Row:
        """The settings with which the checkpoint was written; empty if they are unknown."""
        settings: Row = self.earlier[-1]["settings"] if self.earlier else {}
        return settings

    @property
    def starts(self) -> list[Row]:
        """The starts with settings of their own, this one included."""
        has_all = self.settings.keys() <= self.recorded.keys()
        if has_all and not _changes(self.settings, self.recorded):
            return list(self.earlier)
        return [*self.earlier, {"after_step": self.step, "settings": self.settings}]

    def with_setting(self, flag: str, value: object) -> "ChosenCheckpoint":
        """Bind the checkpoints to one more setting.

        Raises ConfigError if the checkpoint to go on from was written with another value.
        """
        bound = replace(self, bound={**self.bound, flag: value})
        bound.check()
        return bound

    def check(self) -> None:
        """Raise ConfigError if the checkpoint was written with other bound settings."""
        work = f"the checkpoint in {self.folder} was written"
        refuse_other_settings(self.bound, self.recorded, work, REMEDY)

    def write(self) -> None:
        """Record the settings for whoever goes on from a checkpoint of this run."""
        self.folder.mkdir(parents=True, exist_ok=True)
        starts = {"starts": self.starts}
        write_text(self.folder / checkpoints.ORIGIN, to_line(starts, indent=1))


def choose_checkpoint(given: Configuration) -> ChosenCheckpoint:
    """Choose the checkpoint that a run goes on from, and delete incomplete ones.

    Raises ConfigError for a checkpoint of a run with other bound settings, and CheckpointError for
    one that is damaged, or whose record of settings cannot be read.
    """
    args = given.args
    folder = Path(args.ckpt.path)
    bound = _bound_settings(given)
    named = _named_settings(given)
    if not args.ckpt.load_enable:
        return ChosenCheckpoint(folder, 0, bound, named)
    tag, messages = checkpoints.recover(folder)
    if tag is None:
        return ChosenCheckpoint(folder, 0, bound, named, messages=tuple(messages))
    step = checkpoints.step_of(tag)
    earlier = tuple(start for start in _read_starts(folder) if start["after_step"] < step)
    chosen = ChosenCheckpoint(folder, step, bound, named, earlier)
    chosen.check()
    if not earlier:
        messages.append(f"{folder / checkpoints.ORIGIN} is missing: no settings are compared")
    messages += [f"other than in {tag}: {line}" for line in _changes(named, chosen.recorded)]
    messages += notes_on(bound, chosen.recorded)
    return replace(chosen, messages=tuple(messages))


def _read_starts(folder: Path) -> list[Row]:
    """The recorded starts of a run; none if there is no record."""
    origin = folder / checkpoints.ORIGIN
    if not origin.exists():
        return []
    remedy = "delete it to resume without a check of the settings"
    with reader_errors(f"{origin} cannot be read ({{reason}}); {remedy}", CheckpointError):
        record = parse_row(origin.read_bytes())
        if "starts" not in record:  # as version 0.3 wrote it, of one start alone
            return [{"after_step": 0, "settings": record}] if record else []
        return [
            {"after_step": int(start["after_step"]), "settings": dict(start["settings"])}
            for start in record["starts"]
        ]


def _changes(now: Row, recorded: Row) -> list[str]:
    """A line for each setting that is recorded with another value."""
    lines = []
    for flag, value in json.loads(to_line(now)).items():
        before = recorded.get(flag, value)
        if not is_same(value, before):
            lines.append(f"{flag} {shown(before)} -> {shown(value)}")
    return lines


def _bound_settings(given: Configuration) -> Row:
    """The settings that a checkpoint is bound to, by flag.

    DeepSpeed splits its state by the number of ranks, wherever they are. The rows of the data are
    bound when they have been read.
    """
    values = given.values
    special = {
        "swap.objective",
        "actor.model_name_or_path",
        "actor.num_nodes",
        "actor.num_gpus_per_node",
        "data.prompt_dataset",
    }
    return {
        "--swap.objective": given.method.objective,
        MODEL: identity(values["actor.model_name_or_path"]),
        RANKS: policy_ranks(given.args),
        **{f"--{name}": values[name] for name in sorted(BOUND - special)},
    }


def _named_settings(given: Configuration) -> Row:
    """The settings that a resumed run may change, by flag, the objective's own included."""
    ours = {**given.method.model_dump(), **given.run.model_dump()}
    every = {**given.values, **{f"swap.{name}": value for name, value in ours.items()}}
    settings = {f"--{name}": every[name] for name in sorted(NAMED)}
    objective = given.method.objective
    kind = objective_class(objective)
    if ":" in objective:
        settings["the code of --swap.objective"] = code_identity(objective)
    name = short_name(objective)
    own = kind.Settings(f"swap.{name}", **given.method.options).model_dump()
    settings |= {f"--swap.{name}.{setting}": value for setting, value in own.items()}
    settings["--swap.grader"] = grader_identity(given.run.grader)
    for flag in ("eval.dataset", "train.agent_func_path", "reward.remote_url"):
        value = given.values[flag]
        settings[f"--{flag}"] = identity_of_list(without_secrets(value)) if value else None
    return settings

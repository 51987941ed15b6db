"""The checkpoint that a run goes on from, and the settings that it is bound to."""

from dataclasses import dataclass
from pathlib import Path

from openrlhf_swap.errors import CheckpointError, reader_errors
from openrlhf_swap.files import Row, parse_row, to_line, write_text
from openrlhf_swap.flags.configuration import Configuration
from openrlhf_swap.flags.placement import policy_ranks
from openrlhf_swap.integration.startup.model import MODEL
from openrlhf_swap.runs import checkpoints
from openrlhf_swap.runs.provenance import identity, refuse_other_settings

REMEDY = (
    "resume with that, or start a new run (another --ckpt.path and --swap.output_dir), from the "
    "exported policy (--actor.model_name_or_path) if you like"
)


@dataclass(frozen=True)
class ChosenCheckpoint:
    """Where a run begins.

    Attributes:
        folder: `--ckpt.path`.
        settings: what this run's checkpoints are bound to, by flag.
        recorded: the same of the run that wrote the checkpoint to go on from; empty where the run
            begins at the first step.
        messages: lines about the choice.
    """

    folder: Path
    settings: Row
    recorded: Row
    messages: tuple[str, ...] = ()

    def with_setting(self, flag: str, value: object) -> "ChosenCheckpoint":
        """Bind the checkpoints to one more setting.

        Raises ConfigError if the checkpoint to go on from was written with another value.
        """
        bound = ChosenCheckpoint(self.folder, {**self.settings, flag: value}, self.recorded)
        bound.check()
        return bound

    def check(self) -> None:
        """Raise ConfigError if the checkpoint was written with other settings."""
        work = f"the checkpoint in {self.folder} was written"
        refuse_other_settings(self.settings, self.recorded, work, REMEDY)

    def write(self) -> None:
        """Record the settings for whoever goes on from a checkpoint of this run."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_text(self.folder / checkpoints.ORIGIN, to_line(self.settings, indent=1))


def choose_checkpoint(given: Configuration) -> ChosenCheckpoint:
    """Choose the checkpoint that a run goes on from, and delete incomplete ones.

    Raises ConfigError for a checkpoint of a run with other settings, and CheckpointError for a
    record of settings that cannot be read.
    """
    args = given.args
    folder = Path(args.ckpt.path)
    settings = _settings_of(given)
    if not args.ckpt.load_enable:
        return ChosenCheckpoint(folder, settings, recorded={})
    tag, messages = checkpoints.recover(folder)
    origin = folder / checkpoints.ORIGIN
    recorded: Row = {}
    if tag and origin.exists():
        remedy = "delete it to resume without a check of the settings"
        with reader_errors(f"{origin} cannot be read ({{reason}}); {remedy}", CheckpointError):
            recorded = parse_row(origin.read_bytes())
    chosen = ChosenCheckpoint(folder, settings, recorded, tuple(messages))
    chosen.check()
    return chosen


def _settings_of(given: Configuration) -> Row:
    """The settings that a checkpoint is bound to, by flag.

    DeepSpeed splits its state by the last two; the place in the data counts batches of prompts.
    """
    args = given.args
    return {
        "--swap.objective": given.method.objective,
        MODEL: identity(args.actor.model_name_or_path),
        "--ds.lora.rank": args.ds.lora.rank,
        "--rollout.batch_size": args.rollout.batch_size,
        "--actor.num_nodes x --actor.num_gpus_per_node": policy_ranks(args),
        "--ds.zero_stage": args.ds.zero_stage,
    }

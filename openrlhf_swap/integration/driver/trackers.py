"""TensorBoard and W&B: OpenRLHF's loggers, with every setting and with runs that resume."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from openrlhf.utils.logging_utils import TensorboardLogger, WandbLogger
from torch.utils.tensorboard import SummaryWriter

from openrlhf_swap.config import FlagSettings
from openrlhf_swap.files import to_line
from openrlhf_swap.runs import checkpoints


def hyper_parameters(args: Any) -> dict[str, Any]:
    """Every setting of a run by its flag, without API keys, and the run's provenance."""
    settings = {name: value for name, value in _flat(vars(args)) if name != "logger.wandb.key"}
    path = Path(args.swap_run.output_dir) / checkpoints.CONFIGURATION
    origin = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return {**settings, **{name: value for name, value in origin.items() if name != "swap"}}


def _flat(settings: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, SimpleNamespace):
            yield from _flat(vars(value), f"{prefix}{name}.")
        elif isinstance(value, FlagSettings):
            yield from _flat(value.model_dump(), "swap.")
        else:
            yield prefix + name, value


class SwapTensorboard(TensorboardLogger):
    """OpenRLHF's logger, which also gets the settings."""

    writer: SummaryWriter

    def __init__(self, args: Any) -> None:
        super().__init__(args)
        settings = to_line(hyper_parameters(args), indent=2)
        self.writer.add_text("settings", "".join(f"    {line}\n" for line in settings.splitlines()))

    def resume_after(self, step: int) -> None:
        """Make TensorBoard drop the steps that a resumed run repeats."""
        folder = self.writer.log_dir
        self.writer.close()
        self.writer = SummaryWriter(folder, purge_step=step + 1)


class SwapWandb(WandbLogger):
    """OpenRLHF's logger; a resumed run keeps its id, and the API key is not logged with the settings."""

    samples_table: Any

    def __init__(self, args: Any) -> None:
        settings, tracker = hyper_parameters(args), args.logger.wandb
        os.environ.setdefault("WANDB_API_KEY", tracker.key)
        os.environ.setdefault("WANDB_DIR", args.swap_run.output_dir)
        os.environ |= {"WANDB_RESUME": "allow", "WANDB_RUN_ID": settings["run_id"]}
        keyless = SimpleNamespace(**{**vars(tracker), "key": None})
        super().__init__(SimpleNamespace(**settings, logger=SimpleNamespace(wandb=keyless)))

    def log_train(self, global_step: int, logs_dict: dict[str, Any]) -> None:
        """Overrides OpenRLHF's: a step's response gets a table of its own.

        W&B stores a table whole each time, so OpenRLHF's table of all steps grows with the square of their number.
        """
        self.samples_table = self.handle.Table(columns=self.samples_table.columns)
        super().log_train(global_step, logs_dict)

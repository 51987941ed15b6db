"""TensorBoard and W&B: OpenRLHF's loggers with one name for each metric, hyperparameters, and resumable runs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from openrlhf.utils.logging_utils import TensorboardLogger, WandbLogger
from torch.utils.tensorboard import SummaryWriter

from openrlhf_swap.config import FlagSettings
from openrlhf_swap.files import to_line
from openrlhf_swap.runs import checkpoints
from openrlhf_swap.runs.metric_names import named_evaluation

SAMPLE = "generated_samples"  # OpenRLHF's name for one response of a step: its text and reward
SAMPLE_CHARACTERS = 2_000  # of a response that W&B gets, at its beginning and at its end
_OF_A_TRACKER = {"logger.wandb.key"}


def hyper_parameters(args: Any) -> dict[str, Any]:
    """Every setting of a run by its flag, without API keys, and the run's provenance."""
    path = Path(args.swap_run.output_dir) / checkpoints.CONFIGURATION
    origin = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    flat = {name: value for name, value in _flat(vars(args)) if name not in _OF_A_TRACKER}
    return {**flat, **{name: value for name, value in origin.items() if name != "swap"}}


def _flat(settings: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found = []
    for name, value in settings.items():
        if isinstance(value, SimpleNamespace | FlagSettings):
            inner = vars(value) if isinstance(value, SimpleNamespace) else value.to_dict()
            found += _flat(inner, "swap." if isinstance(value, FlagSettings) else f"{prefix}{name}.")
        else:
            found.append((prefix + name, value))
    return found


def _ends(text: str, characters: int) -> str:
    """A text, or this many characters of its beginning and of its end."""
    left_out = len(text) - 2 * characters
    return f"{text[:characters]}\n[{left_out} characters]\n{text[-characters:]}" if left_out > 0 else text


class SwapTensorboard(TensorboardLogger):
    """OpenRLHF's logger, with our metric names, which are grouped already."""

    writer: SummaryWriter

    def __init__(self, args: Any) -> None:
        """Takes the arguments of a run and logs them as text."""
        super().__init__(args)
        settings = to_line(hyper_parameters(args), indent=2)
        self.writer.add_text("settings", "".join(f"    {line}\n" for line in settings.splitlines()))

    def log_train(self, global_step: int, logs_dict: dict[str, Any]) -> None:
        """Log a step's numbers and one of its responses."""
        logs = dict(logs_dict)
        if sample := logs.pop(SAMPLE, None):
            text, reward = sample
            self.writer.add_text("sample", f"{text}\n\nreward {reward:g}", global_step)
        self._add(global_step, logs)

    def log_eval(self, global_step: int, logs_dict: dict[str, Any]) -> None:
        """Log the numbers of an evaluation, given by OpenRLHF's names."""
        self._add(global_step, named_evaluation(logs_dict))

    def go_on_after(self, step: int) -> None:
        """Make TensorBoard drop the steps that a resumed run repeats."""
        folder = self.writer.log_dir
        self.writer.close()
        self.writer = SummaryWriter(folder, purge_step=step + 1)

    def _add(self, step: int, numbers: dict[str, float]) -> None:
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, step)


class SwapWandb(WandbLogger):
    """OpenRLHF's logger; a resumed run keeps its id, and the API key is not logged."""

    def __init__(self, args: Any) -> None:
        """Takes the arguments of a run."""
        import wandb

        settings, tracker = hyper_parameters(args), args.logger.wandb
        if not wandb.api.api_key and os.environ.get("WANDB_MODE") not in ("offline", "disabled"):
            wandb.login(key=tracker.key)
        wandb.init(
            entity=tracker.org,
            project=tracker.project,
            group=tracker.group,
            name=tracker.run_name,
            id=settings.get("run_id"),
            resume="allow",
            dir=os.environ.get("WANDB_DIR", args.swap_run.output_dir),
            config=settings,
        )
        wandb.define_metric("step")
        wandb.define_metric("*", step_metric="step")
        self.handle = wandb

    def log_train(self, global_step: int, logs_dict: dict[str, Any]) -> None:
        """Log a step's numbers, and one of its responses, without its middle if it is long."""
        logs = dict(logs_dict)
        if sample := logs.pop(SAMPLE, None):
            text, reward = sample
            # A table of its own: W&B stores a table whole each time, so one of all steps would grow with their square.
            row = [global_step, _ends(text, SAMPLE_CHARACTERS), reward]
            logs["sample"] = self.handle.Table(columns=["step", "text", "reward"], data=[row])
        self.handle.log({**logs, "step": global_step})

    def log_eval(self, global_step: int, logs_dict: dict[str, Any]) -> None:
        """Log the numbers of an evaluation, given by OpenRLHF's names."""
        self.handle.log({**named_evaluation(logs_dict), "step": global_step})

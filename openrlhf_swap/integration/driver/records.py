"""The records of a run's steps: files, console lines, TensorBoard and W&B."""

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
from openrlhf.utils.logging_utils import TensorboardLogger, WandbLogger
from tensorboard.compat.proto.event_pb2 import Event, SessionLog

from openrlhf_swap.errors import RunError
from openrlhf_swap.files import Row, read_rows
from openrlhf_swap.packages import import_named
from openrlhf_swap.process.console import say
from openrlhf_swap.runs import checkpoints
from openrlhf_swap.runs.guards import Guards
from openrlhf_swap.runs.metrics import (
    EVALUATIONS,
    Metrics,
    append_metrics,
    drop_metrics_after,
    set_aside_rollouts_after,
    step_line,
    write_rollouts,
)

MakeTable = Callable[[], list[Row]]


def is_due(step: int, every: int) -> bool:
    """Whether what happens `every` so many steps is due after a step; never for less than 1."""
    return every > 0 and step % every == 0


class SwapWandb(WandbLogger):
    """OpenRLHF's logger, with every setting, without the API key, and with runs that resume."""

    samples_table: Any

    def __init__(self, args: Any) -> None:
        folder = args.swap_run.output_dir
        tracker = args.logger.wandb
        recorded = json.loads(Path(folder, checkpoints.CONFIGURATION).read_text(encoding="utf-8"))
        os.environ.setdefault("WANDB_API_KEY", tracker.key)
        os.environ.setdefault("WANDB_DIR", folder)
        os.environ |= {"WANDB_RESUME": "allow", "WANDB_RUN_ID": recorded["run_id"]}
        keyless = SimpleNamespace(**{**vars(tracker), "key": None})
        super().__init__(SimpleNamespace(**recorded, logger=SimpleNamespace(wandb=keyless)))

    def log_train(self, global_step: int, logs_dict: Row) -> None:
        """Overrides WandbLogger: each step has a table of its own.

        W&B stores a growing table whole each time.
        """
        self.samples_table = self.handle.Table(columns=self.samples_table.columns)
        super().log_train(global_step, logs_dict)


class Records:
    """The files in `--swap.output_dir`, the console and the trackers of one run."""

    def __init__(self, args: SimpleNamespace, guards: Guards, last_step: int | None) -> None:
        """`last_step` is the number of the run's last step, where it is known."""
        self._args = args
        self._folder = Path(args.swap_run.output_dir)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._last_step = last_step
        self._tensorboard = TensorboardLogger(args) if args.logger.tensorboard_dir else None
        wandb = SwapWandb(args) if args.logger.wandb.key else None
        self._trackers = [tracker for tracker in (wandb, self._tensorboard) if tracker]
        own = args.swap_run.tracker
        self._tell: Any = import_named(own, "--swap.tracker") if own else lambda *_: None
        self.guards = guards

    def resume(self, step: int) -> None:
        """Remove what was written of the steps after this one, which are repeated.

        Tables of their rollouts are set aside.
        """
        drop_metrics_after(self._folder, step)
        set_aside_rollouts_after(self._folder, step)
        if self._tensorboard:  # it then replaces these steps, as for SummaryWriter's `purge_step`
            start = SessionLog(status=SessionLog.START)
            event = Event(step=step + 1, session_log=start)
            self._tensorboard.writer.file_writer.add_event(event)

    def guard(self, step: int, metrics: Metrics, table: MakeTable) -> None:
        """Tell what the guards say of a step; where they stop the run, its table is written."""
        try:
            lines = self.guards.observe(step, metrics)
        except RunError:  # it says to look at the rollouts
            write_rollouts(self._folder, step, table())
            raise
        for line in lines:
            say(line)

    def write_step(
        self,
        step: int,
        metrics: Metrics,
        sample: tuple[str, float] | None = None,
        table: MakeTable | None = None,
    ) -> None:
        """Write a step's metrics, a response with its reward, and the table of rollouts if due.

        A step that was skipped before its update has no response and no table.
        """
        metrics = metrics | {"memory/host_used_gib": psutil.virtual_memory().used / 2**30}
        append_metrics(self._folder, step, metrics)
        self._tell(step, metrics)
        if "swap/accuracy" in metrics:  # otherwise a warning has told about the step
            say(step_line(step, self._last_step, metrics))
        if is_due(step, self._args.logger.logging_steps):
            shown: Row = metrics | {"generated_samples": sample} if sample else metrics
            for tracker in self._trackers:
                tracker.log_train(step, shown)
        if table and is_due(step, self._args.swap_run.rollouts_every):
            write_rollouts(self._folder, step, table())

    def write_evaluation(self, step: int, metrics: Metrics) -> None:
        """Write an evaluation's metrics, which have OpenRLHF's names."""
        for tracker in self._trackers:
            tracker.log_eval(step, metrics)
        append_metrics(self._folder, step, metrics, EVALUATIONS)
        self._tell(step, metrics)
        correct = [
            f"{name.removeprefix('eval_').removesuffix('_pass1')} {share:.1%}"
            for name, share in metrics.items()
            if name.endswith("_pass1")
        ]
        tokens = metrics.get("eval_response_length_mean", math.nan)
        say(f"evaluation after step {step}: {', '.join(correct)} correct, {tokens:.0f} tokens")

    def has_evaluation(self, step: int) -> bool:
        """Whether an evaluation after this training step is recorded."""
        return any(row.get("step") == step for row in read_rows(self._folder / EVALUATIONS))

    def close(self) -> None:
        """Close TensorBoard and the other trackers."""
        for tracker in self._trackers:
            tracker.close()

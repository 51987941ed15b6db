"""W&B: OpenRLHF's logger, with every setting, without the API key, and with runs that resume."""

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from openrlhf.utils.logging_utils import WandbLogger

from openrlhf_swap.runs import checkpoints


class SwapWandb(WandbLogger):
    samples_table: Any

    def __init__(self, args: Any) -> None:
        """Log what the run has recorded about itself; a resumed run keeps its id."""
        folder, tracker = args.swap_run.output_dir, args.logger.wandb
        recorded = json.loads(Path(folder, checkpoints.CONFIGURATION).read_text(encoding="utf-8"))
        os.environ.setdefault("WANDB_API_KEY", tracker.key)
        os.environ.setdefault("WANDB_DIR", folder)
        os.environ |= {"WANDB_RESUME": "allow", "WANDB_RUN_ID": recorded["run_id"]}
        keyless = SimpleNamespace(**{**vars(tracker), "key": None})
        super().__init__(SimpleNamespace(**recorded, logger=SimpleNamespace(wandb=keyless)))

    def log_train(self, global_step: int, logs_dict: dict[str, Any]) -> None:
        """Overrides OpenRLHF's: a step's response gets a table of its own.

        W&B stores a table whole each time, so OpenRLHF's table of all steps grows with the square of their number.
        """
        self.samples_table = self.handle.Table(columns=self.samples_table.columns)
        super().log_train(global_step, logs_dict)

"""Which checkpoint was the best so far, by the evaluations during the training."""

from collections.abc import Mapping
from typing import Any

from openrlhf_swap.errors import ConfigError

States = dict[str, Any]
"""What a checkpoint keeps of the loop, by name."""


class BestCheckpoint:
    """The largest value of one metric of the evaluations.

    `--ckpt.best_metric_key` names the metric; an empty one takes the first share of correct
    answers, and "none" looks for no best checkpoint.
    """

    def __init__(self, asked: str) -> None:
        self._asked = asked or ""
        self.key = self._asked
        self.value = float("-inf")

    def observe(self, metrics: Mapping[str, float]) -> bool:
        """Whether an evaluation is better than all before it.

        Raises ConfigError for a metric that the evaluations do not measure.
        """
        if self.key == "none":
            return False
        if not self.key:
            shares = sorted(name for name in metrics if name.endswith("_pass1"))
            if not shares:
                return False
            self.key = shares[0]
        if self.key not in metrics:
            raise ConfigError(
                f"--ckpt.best_metric_key is {self.key!r}, which no evaluation measures; use one of "
                f"{', '.join(metrics)}"
            )
        is_best = metrics[self.key] > self.value
        self.value = max(self.value, metrics[self.key])
        return is_best

    def states(self) -> States:
        """What a checkpoint keeps, by OpenRLHF's names."""
        return {"best_eval_metric_key": self.key, "best_eval_metric_value": self.value}

    def resume(self, states: States) -> None:
        """Go on from a checkpoint's states, unless the flag names another metric than they do."""
        kept = states.get("best_eval_metric_key")
        if not kept or (self._asked and self._asked != kept):
            return
        self.key = kept
        self.value = states["best_eval_metric_value"]

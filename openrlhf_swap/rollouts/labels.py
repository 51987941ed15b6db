"""What the reward function gets as a label: a reference answer, and for other verifiers than math-verify its row."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from openrlhf_swap.rollouts.answers import as_text

_START = '{"reference_answer": '  # OpenRLHF carries one text a response, so a label with a row is JSON


@dataclass(frozen=True)
class Label:
    """A reference answer with the problem and the other columns of its row, as far as those travel with it."""

    answer: str
    problem: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, label: object) -> Label:
        """The label that a text stands for: one of `text()`, or a bare reference answer, which may be a number."""
        if not (isinstance(label, str) and label.startswith(_START)):
            return cls(as_text(label))
        row = json.loads(label)
        return cls(row["reference_answer"], row["problem"], row["metadata"])

    def text(self) -> str:
        """The label as one text."""
        row = {"reference_answer": self.answer, "problem": self.problem, "metadata": dict(self.metadata)}
        return json.dumps(row, ensure_ascii=False, default=str)

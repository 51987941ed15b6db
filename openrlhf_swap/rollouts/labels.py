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
    """A reference answer with the problem and the other columns of its row, as far as those travel with it.

    Attributes:
        answer: the reference answer; of a label that cannot be read, the whole text.
        problem: as text; empty for a bare answer.
        metadata: the other columns.
        fault: why a text that begins as a label is none.
    """

    answer: str
    problem: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    fault: str = ""

    @classmethod
    def of(cls, label: object) -> Label:
        """The label that a text stands for: one of `text()`, or a bare reference answer, which may be a number.

        Never raises, as rewards are made of it in the middle of a run: see `fault`.
        """
        if not (isinstance(label, str) and label.startswith(_START)):
            return cls(as_text(label))
        try:
            row = json.loads(label)
        except (ValueError, RecursionError) as error:
            return cls(label, fault=str(error))
        kinds = {"reference_answer": str, "problem": str, "metadata": dict}
        wrong = [name for name, kind in kinds.items() if not isinstance(row.get(name), kind)]
        if wrong:
            return cls(label, fault=f"{wrong[0]} is missing, or no {kinds[wrong[0]].__name__}")
        return cls(*(row[name] for name in kinds))

    def text(self) -> str:
        """The label as one text."""
        row = {"reference_answer": self.answer, "problem": self.problem, "metadata": dict(self.metadata)}
        return json.dumps(row, ensure_ascii=False, default=str)

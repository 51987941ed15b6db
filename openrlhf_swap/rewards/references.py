"""What a response is graded against: the reference answer, and the row that it stands in."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from openrlhf_swap.errors import DataError
from openrlhf_swap.files import parse_value

Metadata = Mapping[str, Any]
"""The other columns of a row, by name."""

# OpenRLHF carries one text a response, so an answer with its row is JSON.
_LABEL_START = '{"reference_answer": '


def answer_text(answer: object) -> str:
    """An answer that is text or a number as text; empty for anything else."""
    if isinstance(answer, bool) or not isinstance(answer, str | int | float):
        return ""
    return str(answer)


def given_answer(answer: object) -> str:
    """An answer that a caller gives as text or as a number; DataError for anything else."""
    number = answer.item() if hasattr(answer, "item") else answer
    text = answer_text(number)
    if not text and number != "":
        raise DataError(f"answer is {answer!r} ({type(answer).__name__}); give a text, or a number")
    return text


@dataclass(frozen=True)
class Reference:
    r"""What a response is graded against.

    Attributes:
        answer: the reference answer; for math-verify bare or in `$...$` or `\boxed{...}`.
        problem: as text, for other verifiers; empty if only the answer is known.
        metadata: the other columns of the row, for these verifiers too: what JSON can hold.
    """

    answer: str
    problem: str = ""
    metadata: Metadata = field(default_factory=dict)

    def label(self) -> str:
        """All of it as the text that OpenRLHF passes to the reward function."""
        row = {
            "reference_answer": self.answer,
            "problem": self.problem,
            "metadata": {**self.metadata},
        }
        return json.dumps(row, ensure_ascii=False, default=str)

    @classmethod
    def parse(cls, label: object) -> "Reference":
        """The reference of a label, or of a bare answer; ValueError for half a label."""
        if not (isinstance(label, str) and label.startswith(_LABEL_START)):
            return cls(answer_text(label))
        match parse_value(label.encode()):
            case {"reference_answer": str(answer), "problem": str(problem), "metadata": dict(rest)}:
                return cls(answer, problem, rest)
        raise ValueError("reference_answer, problem or metadata is missing or of another type")

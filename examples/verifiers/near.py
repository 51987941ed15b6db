"""How near a number is to the right one."""

from typing import Any

from openrlhf_swap.rewards.statements import last_boxed
from openrlhf_swap.rewards.verifiers import Verdict


def verify(problem: str, answer: str, response: str, metadata: dict[str, Any]) -> Verdict:
    try:
        off = abs(int(last_boxed(response) or "") - int(answer))
    except ValueError:
        return Verdict(0.0, answered=False)
    return Verdict(1 / (1 + off / 100), correct=off == 0, why=f"{off} off")

"""A grading process with the real limits and a grading that costs nothing, or hangs where the text has a tower."""

import sys
from types import ModuleType

from openrlhf_swap.rewards import worker

sys.modules["math_verify"] = ModuleType("math_verify")  # `serve` imports it, which takes longer than all the rest
TOWER = "9^{9^{9^{9}}}"


def grade(text, answer, thought_closed):
    while TOWER in text:
        pass
    return f"\\boxed{{{answer}}}" in text


worker.grade = grade
serve = worker.serve

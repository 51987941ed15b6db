"""A grading process with the real limits and a verifier that costs nothing.

It hangs where the response has a tower of powers.
"""

from openrlhf_swap.rewards import verifiers
from openrlhf_swap.rewards.grader import serve

__all__ = ["serve"]
TOWER = "9^{9^{9^{9}}}"
verifiers.BUILT_IN[verifiers.MATH] = "support.quick_grading:verify"


def verify(problem, answer, response, metadata):
    while TOWER in response:
        pass
    return f"\\boxed{{{answer}}}" in response

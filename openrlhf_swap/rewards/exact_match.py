"""`regex:PATTERN`: the answer that a regular expression finds must be the reference answer, letter by letter."""

from __future__ import annotations

import re

from openrlhf_swap.errors import ConfigError
from openrlhf_swap.rewards.verifiers import FLAG, NO_ANSWER, Metadata, Verdict, Verify

LONGEST_SHOWN = 60


def by_pattern(pattern: str) -> Verify:
    """A verifier that takes the last match: its first group, or all of it if the pattern has none.

    Raises:
        ConfigError: for an empty pattern, or one that is not a regular expression.
    """
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"{FLAG} is 'regex:{pattern}', which is not a regular expression: {error}") from None
    if not pattern:
        raise ConfigError(f"{FLAG} is 'regex:'; put the pattern behind it, such as 'regex:Answer: (.+)'")

    def verify(problem: str, answer: str, response: str, metadata: Metadata) -> Verdict:
        matches = list(expression.finditer(response))
        if not matches or (found := matches[-1][1 if expression.groups else 0]) is None:
            return NO_ANSWER
        stated = found.strip()
        return Verdict(float(stated == answer.strip()), why=f"read {stated[:LONGEST_SHOWN]!r}", stated=stated)

    return verify

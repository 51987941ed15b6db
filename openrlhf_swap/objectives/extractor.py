"""A function of the user's that says how much of a thought is needed, checked at each call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Integral

from openrlhf_swap.errors import ConfigError, ObjectiveError, reader_errors
from openrlhf_swap.packages.named import import_named
from openrlhf_swap.rollouts.reader import ResponseReader

Function = Callable[[Sequence[int], str, ResponseReader], int]


class Extractor:
    """Tokens from the start of a thought that are needed for its answer, by a function that a flag names."""

    def __init__(self, path: str, flag: str) -> None:
        """Import the function.

        Args:
            path: "module:function".
            flag: where the path comes from, for errors.

        Raises:
            ConfigError: when there is no such function.
        """
        self._what = f"{flag} is {path!r}"
        function: Function = import_named(path, flag)
        if not callable(function):
            raise ConfigError(f"{self._what}, which is not a function; use module:function")
        self._function = function

    def __call__(self, thought: Sequence[int], answer: str, reader: ResponseReader) -> int:
        """Tokens of the thought that are needed, from 0 (none of it names the answer) to all of them.

        Args:
            thought: token ids.
            answer: the reference answer.
            reader: turns tokens into text.

        Raises:
            ObjectiveError: when the function raises, or returns anything else.
        """
        call = f"for a thought of {len(thought)} tokens and answer {answer!r}"
        with reader_errors(f"{self._what}, which failed {call}: {{reason}}; mend the function", ObjectiveError):
            kept = self._function(thought, answer, reader)
        if isinstance(kept, bool) or not isinstance(kept, Integral) or not 0 <= kept <= len(thought):
            raise ObjectiveError(
                f"{self._what}, which returned {kept!r} {call}; expected a whole number of tokens from 0 to "
                f"{len(thought)}: mend the function"
            )
        return int(kept)

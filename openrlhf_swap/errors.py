"""Errors with a remedy. Each is also of the standard type that a caller may already handle."""

from collections.abc import Iterator
from contextlib import contextmanager

SETUP = "bash scripts/setup.sh in a checkout; the wheel goes into the environment that it makes"
"""How everything is installed, as a remedy."""


class SwapError(Exception):
    """Base of every error that this package raises on purpose."""


class ConfigError(SwapError, ValueError):
    """A setting is invalid; the message names the flag, its value and the remedy."""


class DataError(SwapError, ValueError):
    """A data set cannot be used; the message names the file or field and the remedy."""


class CompatibilityError(SwapError, RuntimeError):
    """An installed package is not the version that the integration was written for."""


class ObjectiveError(SwapError, ValueError):
    """An objective returned what cannot be trained on.

    The message names the objective, its method, and what was expected.
    """


class NonFiniteError(SwapError, ArithmeticError):
    """A score is NaN or infinite; the message says which."""


class CheckpointError(SwapError, OSError):
    """A checkpoint cannot be written or used; the message says why, and which one is usable."""


class RunError(SwapError, RuntimeError):
    """A run cannot go on; the message says why, and how to resume or what to look at."""


class StoppedBySignal(KeyboardInterrupt):
    """A signal has stopped a command as Ctrl-C would; `number` is the signal's."""

    def __init__(self, number: int, remedy: str = "") -> None:
        super().__init__(remedy)
        self.number = number


def check_text(name: str, value: object) -> None:
    """Raise DataError for what is no text, such as an answer that is a number."""
    if not isinstance(value, str):
        kind = type(value).__name__
        raise DataError(f"{name} is {value!r} ({kind}), which is no text; give a str")


def check_loaded(model: object, tokenizer: object) -> None:
    """Raise ConfigError for a name in the place of a model or a tokenizer, or for None."""
    if not hasattr(model, "config"):
        shown = model if isinstance(model, str) else type(model).__name__
        raise ConfigError(
            f"model is {shown}, which is no loaded model; give what "
            "AutoModelForCausalLM.from_pretrained returns"
        )
    if not hasattr(tokenizer, "convert_ids_to_tokens"):
        shown = tokenizer if isinstance(tokenizer, str) else type(tokenizer).__name__
        raise ConfigError(
            f"tokenizer is {shown}, which is no loaded tokenizer; give what "
            "AutoTokenizer.from_pretrained returns"
        )


def first_line(error: BaseException) -> str:
    """An exception as one line: the first line of its message, or its type if it has none."""
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__


@contextmanager
def reader_errors(message: str, kind: type[SwapError] = DataError) -> Iterator[None]:
    """Turn whatever the reader of a data set or a model raises into a SwapError of this kind.

    `{reason}` in its message becomes the first line of what was raised.
    """
    try:
        yield
    # No common base: hub, JSON, parquet, weights; tokenizers raises Exception itself.
    except Exception as error:
        raise kind(message.replace("{reason}", first_line(error))) from error

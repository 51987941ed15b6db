"""Errors with a remedy. Each also is the standard type that a caller may already handle."""


class SwapError(Exception):
    """Base of every error that this package raises on purpose."""


class ConfigError(SwapError, ValueError):
    """A setting is wrong; the message names the flag, its value and the remedy."""


class DataError(SwapError, ValueError):
    """A data set cannot be used; the message names the file or field and the remedy."""


class CompatibilityError(SwapError, RuntimeError):
    """An installed package is not the version that the integration was written for."""


class NonFiniteError(SwapError, ArithmeticError):
    """A score is NaN or infinite; the message says which."""


class InertRunError(SwapError, RuntimeError):
    """Training started, but the process term never reached an update; the message says why."""

"""Stands for OpenRLHF's command: writes down what is replaced while it runs."""

from support.observing import record

record(WHERE)  # noqa: F821 (given by who runs this)

"""Puts the parts of a group together that were sampled apart. Imports nothing heavy: it is a process of its own."""

from __future__ import annotations

from typing import Any


class Joiner:
    """A Ray actor; Ray waits for the parts before it calls `join`."""

    def join(self, *parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """All responses, part by part."""
        return [response for part in parts for response in part]

"""The problem of a row as a chat, and as plain text."""

import ast
import json
import re
from contextlib import suppress
from typing import NamedTuple

from openrlhf_swap.files import Row

EMPTY_PROBLEM = "an empty problem, or one that is neither text nor a chat"


class Chat(NamedTuple):
    """The messages of a problem, each of `role` and `content`, of which the last is the user's.

    A chat that cannot be used has no messages but a fault, worded to follow "dropped with".
    """

    messages: list[Row]
    fault: str | None = None


def read_chat(problem: object) -> Chat:
    """A problem as a chat.

    The problem is a text, or a list of messages of `role` and `content`. Such a list may be written
    out as text, and a content is a text or a list of parts.
    """
    messages = _listed_chat(problem) if isinstance(problem, str) else problem
    if isinstance(messages, str) and messages.strip():
        return Chat([{"role": "user", "content": messages}])
    if not isinstance(messages, list) or not messages:
        return Chat([], EMPTY_PROBLEM)
    chat = []
    for message in messages:
        turn = _read_turn(message)
        if turn is None:
            return Chat([], "a chat whose messages are no texts with role and content")
        chat.append(turn)
    last = chat[-1]["role"]
    if last != "user":
        return Chat([], f"a chat that ends with the {last}'s turn")
    return Chat(chat)


def _listed_chat(text: str) -> object:
    """The messages of a chat that JSON or Python wrote as text; any other text as it is."""
    if re.match(r"\s*\[\s*\{\s*[\"'](?:role|content)[\"']\s*:", text):
        for read in (json.loads, ast.literal_eval):
            with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
                return read(text.strip())
    return text


def _read_turn(message: object) -> Row | None:
    """A message of a chat as `role` and `content`; None unless both are texts."""
    if not isinstance(message, dict):
        return None
    role = message.get("role")
    content = message.get("content")
    if isinstance(content, list):
        content = _join_parts(content)
    if not isinstance(role, str) or not isinstance(content, str) or not content:
        return None
    return {"role": role, "content": content}


def _join_parts(parts: list[object]) -> str:
    """The parts of a message's content as one text; empty if one of them has no text."""
    texts = []
    for part in parts:
        text = part.get("text") if isinstance(part, dict) else None
        if text is None:
            return ""
        texts.append(str(text))
    return "\n".join(texts)


def problem_text(problem: object) -> str:
    """A problem as text: of a chat, what its user says."""
    if not isinstance(problem, list):
        return str(problem)
    texts = []
    for message in problem:
        if isinstance(message, dict) and message.get("role") == "user":
            texts.append(str(message.get("content", "")))
    return "\n".join(texts)

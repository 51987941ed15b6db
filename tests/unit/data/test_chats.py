"""Problems as chats."""

import json

import pytest

from openrlhf_swap.data.chats import read_chat


@pytest.mark.parametrize("write", [json.dumps, str])
def test_a_chat_held_as_text_is_a_chat(write):
    chat = [{"role": "system", "content": "Add."}, {"role": "user", "content": "1+1?"}]
    assert read_chat(write(chat)) == (chat, None)
    assert read_chat("[1, 2] + [3]?") == ([{"role": "user", "content": "[1, 2] + [3]?"}], None)

"""Environments for agents: what the page shows works."""

import asyncio
import re
import runpy
from types import SimpleNamespace

import pytest
from support.paths import ROOT


@pytest.fixture
def play(tokenizer):
    """Makes an agent's response from the texts of its turns."""
    from vllm import SamplingParams

    def play(path, label, *actions):
        texts = iter(actions)

        async def generate(*_, **__):
            text = next(texts)
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            output = SimpleNamespace(token_ids=ids, text=text, finish_reason="stop")
            return SimpleNamespace(outputs=[output])

        engine, prompt = SimpleNamespace(generate=generate), "<|user|>?<|assistant|><think>\n"
        agent = runpy.run_path(str(path))["AgentExecutor"]()
        given = (prompt, label, SamplingParams(), 999, tokenizer, engine)
        response = asyncio.run(agent.execute(*given))
        assert next(texts, None) is None
        start = response["action_ranges"][0][0]
        text = tokenizer.decode(response["observation_tokens"][start:])
        return text, response["reward"], response["extra_logs"]

    return play


def test_the_environment_on_the_page_works_as_printed(play, tmp_path):
    page = (ROOT / "docs" / "use" / "agents.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "lookup.py").write_text(code)
    _, reward, logs = play(tmp_path / "lookup.py", "42", "look up b", "look up c", "so 42")
    assert (reward, logs) == (1.0, {"calls": 2})
    assert play(tmp_path / "lookup.py", "42", "17")[1:] == (0.0, {"calls": 0})

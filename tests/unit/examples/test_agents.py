"""The environment for agents that the page shows."""

import asyncio
import runpy
from types import SimpleNamespace

import pytest
from support.paths import ROOT


@pytest.fixture
def play(tokenizer):
    """Lets an agent play turns of these texts; returns its reward and its number of calls."""
    from vllm import SamplingParams

    def play(path, label, *actions):
        texts = iter(actions)

        async def generate(*_, **__):
            text = next(texts)
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            output = SimpleNamespace(token_ids=ids, text=text, finish_reason="stop")
            return SimpleNamespace(outputs=[output])

        engine = SimpleNamespace(generate=generate)
        prompt = "<|user|>?<|assistant|><think>\n"
        agent = runpy.run_path(str(path))["AgentExecutor"]()
        playing = agent.execute(prompt, label, SamplingParams(), 999, tokenizer, engine)
        response = asyncio.run(playing)
        assert next(texts, None) is None
        return response["reward"], response["extra_logs"]["calls"]

    return play


def test_the_environment_on_the_page_works(play):
    agent = ROOT / "examples" / "agents" / "lookup.py"
    assert play(agent, "42", "look up b", "look up c", "so 42") == (1.0, 2)
    assert play(agent, "42", "17") == (0.0, 0)

"""Samples of an evaluation, with a small program in the place of the engine."""

import copy

import pytest
from support.engine_of_vllm import EngineOfVllm

from openrlhf_swap.evaluation import generate, run
from openrlhf_swap.evaluation.generate import SampleRequest
from openrlhf_swap.evaluation.samples import seed_of
from openrlhf_swap.rollouts.families import R1, prompt_ids

SETTINGS = {
    "temperature": 0.6,
    "top_p": 0.9,
    "max_tokens": 9,
    "seed": 3,
    "end_of_thought": "</think>",
}


@pytest.fixture
def sample(monkeypatch):
    """The rows of samples with this engine, each with the name of its benchmark."""

    def sample(engine, requests, settings):
        monkeypatch.setattr(generate, "open_engine", lambda model: engine)
        requests = [SampleRequest(*request) for request in requests]
        return list(generate.EvaluationEngine("model").sample(requests, settings))

    return sample


PLAIN = "{% for m in messages %}{{ m.content }}{% endfor %}"


def test_each_sample_is_written_with_its_seed_and_its_thought(sample, tokenizer):
    texts = {
        ("own", "p", 0): "a</think>b",
        ("own", "p", 1): "aa ",
        ("other", "q", 0): "b",
    }
    by_seed = {seed_of(*key, 3): text for key, text in texts.items()}
    engine = EngineOfVllm(tokenizer, lambda _, parameters: [by_seed[parameters.seed]], context=50)
    requests = [(*key, "1 + 1") for key in texts]
    too_long = ("own", "long", 0, "1 + 1" * 50)
    found = {}
    for benchmark, row in sample(engine, [*requests, too_long], SETTINGS):
        numbers = (row["tokens"], row["thinking_tokens"], row["truncated"])
        found[benchmark, row["id"], row["sample"]] = (row["text"], *numbers)
    assert found == {
        ("own", "p", 0): ("a</think>b", 3, 2, False),
        ("own", "p", 1): ("aa ", 3, 3, True),
        ("other", "q", 0): ("b", 1, 1, False),
        ("own", "long", 0): ("", 0, 0, True),
    }
    assert not row["looping"]
    assert len(engine.asked) == 3
    for ids, parameters in engine.asked:
        assert ids == prompt_ids(tokenizer, "1 + 1")
        assert parameters.temperature == 0.6
        assert parameters.top_p == 0.9
        assert parameters.max_tokens == 9


def test_a_thought_whose_end_is_several_tokens_ends_after_them(sample, tokenizer):
    engine = EngineOfVllm(tokenizer, lambda *_: ["ones: 1\nSo: 2"])
    settings = {**SETTINGS, "end_of_thought": "So: "}
    ((_, row),) = sample(engine, [("own", "p", 0, "1 + 1")], settings)
    before = tokenizer("ones: 1\n", add_special_tokens=False)["input_ids"]
    end = tokenizer("So: ", add_special_tokens=False)["input_ids"]
    assert len(end) > 1
    assert row["thinking_tokens"] == len(before) + len(end)


def test_prompts_have_the_arguments_of_the_template_and_the_system_prompt(sample, tokenizer):
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.chat_template = PLAIN + "{{ '<think>' if enable_thinking else '</think>' }}"
    engine = EngineOfVllm(tokenizer, lambda *_: ["2"])
    words = ["--model", "m", "--output", "o", "--system-prompt", "3."]
    args = run.parse_flags([*words, "--data.chat_template_kwargs", '{"enable_thinking": true}'])
    settings = {**vars(args), "end_of_thought": "</think>"}
    sample(engine, [("own", "p", 0, "1 + 1")], settings)
    assert tokenizer.decode(engine.asked[0][0]) == "3.1 + 1<think>"


def test_a_thought_beyond_its_budget_is_closed_and_goes_on(sample, tokenizer):
    """Texts that end in a space were cut off; the second sample ends within the budget."""
    ids = tokenizer("aaaa ", add_special_tokens=False)["input_ids"]
    close = tokenizer("\n</think>\n\n", add_special_tokens=False)["input_ids"]
    texts = {seed_of("own", "p", 0, 3): "aaaa ", seed_of("own", "p", 1, 3): "a</think>b"}
    engine = EngineOfVllm(tokenizer, lambda _, asked: [texts.get(asked.seed, "\\boxed{2}")])
    settings = {
        **SETTINGS,
        "max_tokens": 40,
        "thought_budget": len(ids),
        "close_template": R1.close_template,
    }
    rows = {}
    for _, row in sample(engine, [("own", "p", 0, "1 + 1"), ("own", "p", 1, "1 + 1")], settings):
        rows[row["sample"]] = row
    assert rows[0]["text"] == "aaaa \n</think>\n\n\\boxed{2}"
    assert rows[0]["closed_by_budget"]
    assert not rows[0]["truncated"]
    prompt = prompt_ids(tokenizer, "1 + 1")
    going_on, parameters = engine.asked[2]
    assert going_on == [*prompt, *ids, *close]
    assert parameters.max_tokens == 40 - len(ids) - len(close)
    assert rows[1]["text"] == "a</think>b"
    assert "closed_by_budget" not in rows[1]
    assert engine.asked[0][1].max_tokens == len(ids)

"""Samples of an evaluation, with a small program in the place of the engine."""

import copy

import pytest
from support.engine_of_vllm import EngineOfVllm

from openrlhf_swap.evaluation import generate, run
from openrlhf_swap.evaluation.generate import SampleRequest
from openrlhf_swap.evaluation.samples import seed_of
from openrlhf_swap.rollouts.families import prompt_ids

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
        return list(generate.Sampler("model").sample(requests, settings))

    return sample


def test_each_sample_is_written_with_its_seed_and_its_thought(sample, tokenizer):
    texts = {("own", "p", 0): "a</think>b", ("own", "p", 1): "aa ", ("other", "q", 0): "b"}
    by_seed = {seed_of(*one, 3): text for one, text in texts.items()}
    engine = EngineOfVllm(tokenizer, lambda _, parameters: [by_seed[parameters.seed]], context=50)
    requests = [(*one, "1 + 1") for one in texts] + [("own", "long", 0, "1 + 1" * 50)]
    found = {
        (name, row["id"], row["sample"]): row for name, row in sample(engine, requests, SETTINGS)
    }
    counts = {key: [*row.values()][2:] for key, row in found.items()}  # all but its key
    assert counts == {
        ("own", "p", 0): ["a</think>b", 3, 2, False],
        ("own", "p", 1): ["aa ", 3, 3, True],
        ("other", "q", 0): ["b", 1, 1, False],
        ("own", "long", 0): ["", 0, 0, True],  # it does not fit the context
    }
    assert list(found["own", "p", 0])[2:] == ["text", "tokens", "thinking_tokens", "truncated"]
    assert [ids for ids, _ in engine.asked] == 3 * [prompt_ids(tokenizer, "1 + 1")]
    for _, parameters in engine.asked:
        assert (parameters.temperature, parameters.top_p, parameters.max_tokens) == (0.6, 0.9, 9)


def test_a_thought_whose_end_is_several_tokens_ends_after_them(sample, tokenizer):
    engine = EngineOfVllm(tokenizer, lambda *_: ["ones: 1\nSo: 2"])
    ((_, row),) = sample(engine, [("own", "p", 0, "1 + 1")], {**SETTINGS, "end_of_thought": "So: "})
    before, end = (
        len(tokenizer(text, add_special_tokens=False)["input_ids"])
        for text in ("ones: 1\n", "So: ")
    )
    assert end > 1 and row["thinking_tokens"] == before + end


@pytest.mark.parametrize(("flags", "context"), [("", None), ("--max-model-len 70", 70)])
def test_an_engine_gets_the_context_that_the_longest_prompt_and_a_whole_response_need(
    tmp_path, monkeypatch, tokenizer, flags, context
):
    opened = []
    engine = EngineOfVllm(tokenizer, lambda *_: ["2"])
    monkeypatch.setattr(
        generate, "open_engine", lambda model, **options: opened.append(options) or engine
    )
    bare = copy.copy(tokenizer)
    bare.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    monkeypatch.setattr(generate, "read_tokenizer", lambda *_: bare)
    words = f"--model m --output {tmp_path} --max-tokens 50 --swap.end_of_thought </think> {flags}"
    texts = ("1234", "12678")  # a digit is a token
    requests = [SampleRequest("own", text, 0, text) for text in texts]
    generate.sample(run.parse(words.split()), requests, 2)
    options = {"tensor_parallel_size": 1, "trust_remote_code": False}
    assert opened == [{**options, "longest": 55, "max_model_len": context}]


def test_problems_are_rendered_with_the_arguments_of_the_template_and_a_system_prompt(
    sample, tokenizer
):
    tokenizer = copy.deepcopy(tokenizer)
    thought = "{{ '<think>' if enable_thinking else '</think>' }}"
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}" + thought
    engine = EngineOfVllm(tokenizer, lambda *_: ["2"])
    words = ["--model", "m", "--output", "o", "--system-prompt", "3."]
    args = run.parse([*words, "--data.chat_template_kwargs", '{"enable_thinking": true}'])
    sample(engine, [("own", "p", 0, "1 + 1")], {**vars(args), "end_of_thought": "</think>"})
    assert tokenizer.decode(engine.asked[0][0]) == "3.1 + 1<think>"

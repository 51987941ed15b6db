"""Samples of an evaluation, with a small program in the place of the engine."""

import copy

import pytest
from support.engine_of_vllm import EngineOfVllm
from support.paths import POLICY

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
    """Samples with this engine."""

    def sample(engine, requests, settings):
        monkeypatch.setattr(generate, "open_engine", lambda model: engine)
        return list(
            generate.Sampler("model").sample(
                [SampleRequest(*request) for request in requests], settings
            )
        )

    return sample


def test_each_sample_is_written_with_its_seed_and_its_thought(sample, tokenizer):
    texts = {("own", "p", 0): "a</think>b", ("own", "p", 1): "aa ", ("other", "q", 0): "b"}
    by_seed = {seed_of(*one, 3): text for one, text in texts.items()}
    engine = EngineOfVllm(tokenizer, lambda _, parameters: [by_seed[parameters.seed]], context=50)
    requests = [
        ("own", "p", 0, "1 + 1"),
        ("own", "p", 1, "1 + 1"),
        ("own", "long", 0, "1 + 1" * 50),
    ]
    sampled = sample(engine, [*requests, ("other", "q", 0, "2")], SETTINGS)

    assert [ids for ids, _ in engine.asked] == [
        prompt_ids(tokenizer, text) for text in ("1 + 1", "1 + 1", "2")
    ]
    for _, parameters in engine.asked:
        assert (parameters.temperature, parameters.top_p, parameters.max_tokens) == (0.6, 0.9, 9)
    rows = {(row["id"], row["sample"]): row for name, row in sampled if name == "own"}
    whole = {"text": "a</think>b", "tokens": 3, "thinking_tokens": 2, "truncated": False}
    assert rows["p", 0] == {"id": "p", "sample": 0, **whole}
    assert (rows["p", 1]["tokens"], rows["p", 1]["thinking_tokens"], rows["p", 1]["truncated"]) == (
        3,
        3,
        True,
    )
    # It does not fit the context: an empty response that counts as cut off.
    empty = {"text": "", "tokens": 0, "thinking_tokens": 0, "truncated": True}
    assert rows["long", 0] == {"id": "long", "sample": 0, **empty}
    assert (len(rows), len(sampled)) == (3, 4) and {
        row["id"] for name, row in sampled if name == "other"
    } == {"q"}


def test_a_thought_whose_end_is_several_tokens_ends_after_them(sample, tokenizer):
    engine = EngineOfVllm(tokenizer, lambda *_: ["ones: 1\nSo: 2"])
    ((_, row),) = sample(engine, [("own", "p", 0, "1 + 1")], {**SETTINGS, "end_of_thought": "So: "})
    before, end = (
        len(tokenizer(text, add_special_tokens=False)["input_ids"])
        for text in ("ones: 1\n", "So: ")
    )
    assert end > 1
    assert row["thinking_tokens"] == before + end


@pytest.mark.parametrize("flags", [[], ["--max-model-len", "70"]])
def test_an_engine_gets_the_context_that_the_longest_prompt_and_a_whole_response_need(
    tmp_path, monkeypatch, tokenizer, flags
):
    opened = []

    class Sampler:
        def __init__(self, model, **options):
            opened.append(options)

        def sample(self, *_):
            return iter(())

    bare = copy.copy(tokenizer)
    bare.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    monkeypatch.setattr(generate, "read_tokenizer", lambda *_: bare)
    monkeypatch.setattr(generate, "Sampler", Sampler)
    words = ["--model", str(POLICY), "--output", str(tmp_path), "--max-tokens", "50", *flags]
    requests = [
        SampleRequest("own", text, 0, text) for text in ("1234", "12678")
    ]  # a digit is a token
    generate.sample(run.parse(words), requests, 2)
    length = {"longest": 55, "max_model_len": 70 if flags else None}
    assert opened == [{"tensor_parallel_size": 1, "trust_remote_code": False, **length}]


def test_problems_are_rendered_with_the_arguments_of_the_template_and_a_system_prompt(
    sample, tokenizer
):
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}{{ '<think>' if enable_thinking else '</think>' }}"
    engine = EngineOfVllm(tokenizer, lambda *_: ["2"])
    words = [
        "--model",
        "m",
        "--output",
        "o",
        "--data.chat_template_kwargs",
        '{"enable_thinking": true}',
    ]
    args = run.parse([*words, "--system-prompt", "3."])
    sample(engine, [("own", "p", 0, "1 + 1")], {**vars(args), "end_of_thought": "</think>"})
    assert tokenizer.decode(engine.asked[0][0]) == "3.1 + 1<think>"

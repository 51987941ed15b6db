"""Sampling, with a small program in the place of the engine."""

import copy
import sys
from types import SimpleNamespace

import pytest

from openrlhf_swap.evaluation import generate
from openrlhf_swap.evaluation.samples import seed_of
from openrlhf_swap.files import read_rows
from openrlhf_swap.rollouts.reader import ResponseReader


class Engine:
    """What is used of vLLM's: one request is finished in a step, the last one first."""

    def __init__(self, answers, context):
        self.model_config = SimpleNamespace(max_model_len=context)
        self.answers, self.waiting, self.most, self.parameters = answers, [], 0, []

    def add_request(self, number, prompt, parameters):
        self.waiting.append(number)
        self.most = max(self.most, len(self.waiting))
        self.parameters.append(parameters)

    def get_num_unfinished_requests(self):
        return len(self.waiting)

    def has_unfinished_requests(self):
        return bool(self.waiting)

    def step(self):
        number = self.waiting.pop()
        text, ids, reason = self.answers[int(number)]
        made = SimpleNamespace(text=text, token_ids=ids, finish_reason=reason)
        return [SimpleNamespace(request_id=number, outputs=[made])]


@pytest.fixture
def sample(monkeypatch, tokenizer):
    """Runs a `Sampler` with an engine whose requests get these (text, ids, reason), in the order of the tasks."""

    def run(answers, *arguments):
        engine = Engine(answers, context=50)
        llm = SimpleNamespace(llm_engine=engine, get_tokenizer=lambda: tokenizer)
        opening = SimpleNamespace(open_engine=lambda model, **options: llm)
        monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(SamplingParams=SimpleNamespace))
        kinds = SimpleNamespace(RequestOutputKind=SimpleNamespace(FINAL_ONLY="whole responses"))
        monkeypatch.setitem(sys.modules, "vllm.sampling_params", kinds)
        monkeypatch.setitem(sys.modules, "openrlhf_swap.integration.generation.engine", opening)
        return engine, list(generate.Sampler("model").generate(*arguments))

    return run


def test_each_sample_is_written_with_its_seed_and_its_thought(tmp_path, monkeypatch, tokenizer, sample):
    monkeypatch.setattr(generate, "QUEUE", 2)
    (close,) = tokenizer("</think>", add_special_tokens=False)["input_ids"]
    tasks = [generate.SampleRequest("own", "p", 0, "1 + 1"), generate.SampleRequest("own", "p", 1, "1 + 1")]
    tasks += [generate.SampleRequest("own", "long", 0, "1 + 1" * 50), generate.SampleRequest("other", "q", 0, "2 + 2")]
    answers = [("a</think>b", [5, close, 7], "stop"), ("a", [5, 6], "length"), None, ("b", [8], "stop")]
    files = {name: tmp_path / f"{name}.jsonl" for name in ("own", "other")}
    files["own"].write_text('{"unfinished')
    settings = generate.SamplingSettings(temperature=0.6, top_p=0.9, max_tokens=9, seed=3)
    engine, counts = sample(answers, tasks, settings, "</think>", files)

    assert engine.most == 2
    fits = [task for task in tasks if task.id != "long"]
    assert [vars(parameters) for parameters in engine.parameters] == [
        {
            "temperature": 0.6,
            "top_p": 0.9,
            "max_tokens": 9,
            "seed": seed_of(task.benchmark, task.id, task.sample, 3),
            "output_kind": "whole responses",
            "skip_special_tokens": False,
        }
        for task in fits
    ]
    rows = {(row["id"], row["sample"]): row for row in read_rows(files["own"])}
    whole = {"text": "a</think>b", "tokens": 3, "thinking_tokens": 2, "truncated": False}
    assert rows["p", 0] == {"id": "p", "sample": 0, **whole}
    assert (rows["p", 1]["thinking_tokens"], rows["p", 1]["truncated"]) == (2, True)
    # It does not fit the context: an empty response that counts as cut off.
    empty = {"text": "", "tokens": 0, "thinking_tokens": 0, "truncated": True}
    assert rows["long", 0] == {"id": "long", "sample": 0, **empty}
    assert (len(rows), len(list(read_rows(files["other"])))) == (3, 1)
    assert sorted(counts) == [0, 1, 2, 3]


def test_the_longest_sequence_is_the_longest_prompt_and_a_whole_response(tokenizer):
    tokenizer = copy.copy(tokenizer)
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    settings = generate.SamplingSettings(temperature=0.6, top_p=0.9, max_tokens=100, seed=3)
    # A digit is a token.
    requests = [generate.SampleRequest("own", "p", 0, "1234"), generate.SampleRequest("own", "q", 0, "12678")]
    assert generate.longest_sequence(tokenizer, requests, settings) == 105
    assert generate.longest_sequence(tokenizer, requests[:1], settings) == 104


def test_a_thought_whose_end_is_several_tokens_ends_behind_them(tokenizer):
    task, reader = generate.SampleRequest("own", "p", 0, "1 + 1"), ResponseReader(tokenizer, "So: ")
    ids = tokenizer("ones: 1\nSo: 2", add_special_tokens=False)["input_ids"]
    before, end = (len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in ("ones: 1\n", "So: "))
    assert end > 1
    assert generate._row(task, "", ids, "stop", reader)["thinking_tokens"] == before + end

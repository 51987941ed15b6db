"""Generation for commands: the engine's context, and the loop that feeds it."""

import pytest
from support.engine_of_vllm import EngineOfVllm
from support.paths import POLICY
from vllm.sampling_params import RequestOutputKind

from openrlhf_swap import generate
from openrlhf_swap.command import Parser
from openrlhf_swap.errors import ConfigError


@pytest.mark.parametrize(
    ("options", "context"),
    [
        ({"longest": 100}, 100),
        ({"longest": 5000}, 1024),  # the policy's own
        ({"longest": 100, "max_model_len": 400}, 400),
        ({}, None),  # left to vLLM
    ],
)
def test_no_more_context_is_reserved_than_the_longest_sequence_takes(monkeypatch, options, context):
    monkeypatch.setattr("vllm.LLM", lambda model, **given: given)
    assert generate.open_engine(str(POLICY), **options)["max_model_len"] == context


@pytest.mark.parametrize(("words", "share"), [([], 0.2), (["--gpu-memory-utilization=.6"], 0.6)])
def test_an_engine_takes_no_more_of_the_memory_than_is_asked_for(monkeypatch, words, share):
    monkeypatch.setattr("vllm.LLM", lambda model, **given: given)
    parser = Parser("command")
    generate.add_gpu_share(parser)
    flags = vars(parser.parse_args(words))
    assert generate.open_engine(str(POLICY), **flags)["gpu_memory_utilization"] == share


@pytest.mark.parametrize("word", ["0", "1.5", "nan", "half"])
def test_what_is_no_share_of_the_memory_is_refused(word):
    parser = Parser("command")
    generate.add_gpu_share(parser)
    with pytest.raises(ConfigError, match=f"--gpu-memory-utilization: '{word}' is no share"):
        parser.parse_args(["--gpu-memory-utilization", word])


def test_responses_come_as_they_finish_and_a_prompt_that_does_not_fit_gets_empty_ones(
    monkeypatch, tokenizer
):
    monkeypatch.setattr(generate, "QUEUE", 2)

    def answer(ids, parameters):
        return [str(ids[0])] * parameters.n

    engine = EngineOfVllm(tokenizer, answer, context=3)
    taken = []

    def requests():
        for ids in ([7], [8, 8], [9, 9, 9], [10]):
            taken.append(ids)
            yield ids, {"n": 2, "seed": ids[0], "max_tokens": 5}

    finished = []
    counts = []
    for number, responses in generate.generate(engine, requests()):
        counts.append(len(taken))
        first, second = responses
        assert first.text == second.text
        assert first.finish_reason == second.finish_reason
        finished.append((number, first.text, first.finish_reason))
    assert finished == [
        (1, "8", "stop"),
        (2, "", "length"),
        (3, "10", "stop"),
        (0, "7", "stop"),
    ]
    assert counts == [2, 3, 4, 4]
    assert engine.peak == 2
    for ids, parameters in engine.asked:
        assert parameters.seed == ids[0]
        assert parameters.max_tokens == 5
        assert parameters.output_kind == RequestOutputKind.FINAL_ONLY
        assert not parameters.skip_special_tokens

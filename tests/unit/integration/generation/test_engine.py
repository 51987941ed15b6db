"""The context of an engine for a command that only generates."""

import pytest
from support.paths import POLICY

from openrlhf_swap.integration.generation.engine import open_engine


@pytest.mark.parametrize(
    ("options", "context"),
    [
        ({"longest": 100}, 100),
        ({"longest": 5000}, 1024),  # the policy's own
        ({"max_model_len": 400}, 400),
        ({}, None),  # left to vLLM
    ],
)
def test_no_more_context_is_reserved_than_the_longest_sequence_takes(monkeypatch, options, context):
    monkeypatch.setattr("vllm.LLM", lambda model, **given: given)
    assert open_engine(str(POLICY), **options).get("max_model_len") == context

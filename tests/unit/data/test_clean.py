"""Which rows are dropped, and for which reason."""

import pytest
from support.problems import DIE

from openrlhf_swap.data.benchmarks import Problem
from openrlhf_swap.data.clean import (
    DUPLICATE,
    EMPTY_PROBLEM,
    NEAR_BENCHMARK,
    SAME_AS_BENCHMARK,
    BenchmarkIndex,
    find_reasons,
    strip_template,
)
from openrlhf_swap.rewards.answers import EMPTY_ANSWER, UNPARSABLE_ANSWER
from openrlhf_swap.rewards.verifiers import Reference


def test_every_reason():
    index = BenchmarkIndex(
        {"math500": [Problem("m/1", "What is $3 + 4$?", "7")], "aime24": [Problem("a-1", DIE, "1")]}
    )
    table = [
        ("  \n", "1", {"reason": EMPTY_PROBLEM}),
        ("what is 3+4", "7", {"reason": SAME_AS_BENCHMARK, "benchmark": "math500", "benchmark_id": "m/1"}),
        (DIE + " Thanks", "", {"reason": NEAR_BENCHMARK, "benchmark": "aime24", "benchmark_id": "a-1"}),
        ("What is $3+5$?", " $ $ ", {"reason": EMPTY_ANSWER}),
        ("What is $3+5$?", r"\boxed{}", {"reason": UNPARSABLE_ANSWER}),
        ("What is $3+5$?", "8", None),  # the first with a usable answer
        ("What is $3 + 5$", "9", {"reason": DUPLICATE, "duplicate_of": 5}),
        ("What is $3+6$?", r"\frac{18}{2}", None),
    ]
    problems = [problem for problem, *_ in table]
    references = [Reference(answer) for _, answer, _ in table]
    assert find_reasons(problems, references, index) == [expected for *_, expected in table]
    # Without benchmarks their problems are rows like others.
    assert find_reasons(problems, references, None)[1] is None


@pytest.mark.parametrize(
    "rendered",
    [
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n<think>\n",
        "<|start_header_id|>user<|end_header_id|>\n\n{}<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
        "<\uff5cbegin▁of▁sentence\uff5c><\uff5cUser\uff5c>{}<\uff5cAssistant\uff5c><think>\n",
        "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\n{} [/INST]",
        "<bos><start_of_turn>user\n{}<end_of_turn>\n<start_of_turn>model\n",
        "[gMASK]<sop><|user|>\n{}<|assistant|>\n",
        "<|start|>system<|message|>Be brief.<|end|><|start|>user<|message|>{}<|end|><|start|>assistant",
        "<|im_user|>user<|im_middle|>{}<|im_end|><|im_assistant|>assistant<|im_middle|>",
        "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>{}<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
    ],
)
def test_the_users_turn_of_a_rendered_prompt(rendered):
    problem = "If $|a|<|b|$,\nwhat can a user say of $a^2$?"
    assert strip_template(rendered.replace("{}", problem)) == problem
    assert strip_template(problem) == problem
    longer = rendered.replace("{}", "Hello!") + "Good day!" + rendered.replace("{}", problem)
    assert strip_template(longer) == longer

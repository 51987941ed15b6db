"""The loop in one process: its sampler beside the model, arms by hand, two steps of a training."""

import json
import math
import sys
from itertools import islice

import plain_loop
import pytest
import stack_runs
import torch
from arms import arm_limit, arm_rewards, arm_settings, arm_signals
from plain_loop import Loop
from sampling import sample
from transformers import AutoModelForCausalLM
from treatment import difference
from world import CLOSE, rendered

from openrlhf_swap import StepTrace, SwapConfig
from openrlhf_swap.algorithm.batch import StepBatch


@pytest.fixture(scope="module")
def loop():
    return Loop("columns", step_price="weights")


def test_sampled_scores_are_the_models_own(loop):
    model = AutoModelForCausalLM.from_pretrained(
        plain_loop.POLICIES / "words", dtype=torch.float32
    ).eval()
    words = Loop("words")
    prompts = [
        words.reader.ids(f"<|user|>{p.question}<|assistant|><think>\n")
        for p in islice(words.world.problems(4), 6)
    ]
    end, pad = words.tokenizer.eos_token_id, words.tokenizer.pad_token_id
    torch.manual_seed(0)
    responses, scores = sample(model, prompts, end, pad, max_tokens=90)
    assert any(response[-1] == end for response in responses) and {
        len(prompt) for prompt in prompts
    } != {len(prompts[0])}
    for prompt, response, own in zip(prompts, responses, scores, strict=True):
        assert end not in response[:-1] and (response[-1] == end or len(response) == 90)
        with torch.no_grad():
            logits = model(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]
        expected = logits.log_softmax(-1).gather(-1, torch.tensor(response)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(own), expected, rtol=0, atol=1e-4)


def test_steps_are_redundant_if_all_of_their_lines_are(loop):
    problem = loop.world.from_question("Fill B1C2C3C4C5C6")
    # Lines have three tokens, a step at least three: the verification's first line has one, and
    # takes the next along.
    text = "B1>7\nwait B1>7\nC2>0\nlet me verify\nB1>7\nC3>0\n" + CLOSE
    response = loop.reader.ids(text)
    ends = loop.reader.step_ends(response)
    batch = StepBatch.from_traces(
        [[StepTrace(len(response), True, [-1.0] * (len(ends) + 1), ends)]]
    )
    assert loop.redundant_steps([problem], [response], batch)[0, 0].tolist() == [
        False,
        True,
        False,
        True,
        False,
    ]


def test_weights_by_labels_by_hand():
    # Gains 1, 0, 0 and 1, 0; redundant are the last step of the first response and the last of the
    # other.
    group = [
        StepTrace(30, True, [-3, -2, -2, -2], [4, 9, 19]),
        StepTrace(10, True, [-3, -2, -2], [3, 7]),
    ]
    batch = StepBatch.from_traces([group])
    redundant = torch.tensor([[[False, False, True], [False, True, False]]])

    def weights(kind):
        arm = f"weights.{kind}"
        return (
            arm_signals(arm, SwapConfig(**arm_settings(arm)), batch, redundant).weights[0].tolist()
        )

    assert weights("oracle") == [[0, 0, 1], [0, 1, 0]]
    assert weights("anti") == [[0.5, 0.5, 0], [1, 0, 0]]
    assert weights("uniform") == [pytest.approx([1 / 3] * 3), [0.5, 0.5, 0]]
    assert weights("tau1")[1][:2] == pytest.approx([1 / (1 + math.e), math.e / (1 + math.e)])
    torch.manual_seed(0)
    for shuffled, own in zip(weights("shuffled"), weights("0.25sd"), strict=True):
        assert sorted(shuffled) == pytest.approx(sorted(own))
    none = torch.zeros_like(redundant)  # where nothing is redundant, all pay
    assert arm_signals("weights.oracle", SwapConfig(), batch, none).weights[0, 1].tolist() == [
        0.5,
        0.5,
        0,
    ]
    assert arm_settings("zero.mono0.25sd") == {
        "step_baseline": "zero",
        "tau": "0.25sd",
        "weights_from": "monotone",
    }


def test_the_cheap_baselines_by_hand():
    # Half are correct, the longest of them has 40 tokens: 1 - .2 * 1/2 * L/40.
    group = [StepTrace(40, True), StepTrace(20, True), StepTrace(10, False), StepTrace(80, False)]
    batch = StepBatch.from_traces([group])
    assert arm_rewards("pass_rate_penalty", batch).tolist() == [pytest.approx([0.9, 0.95, 0, 0])]
    assert arm_rewards("grpo_limit80", batch).tolist() == [[1, 1, 0, 0]]
    assert [arm_limit(arm) for arm in ("grpo_limit80", "grpo", "weights.oracle")] == [80, 320, 320]


def test_a_run_of_the_stack_becomes_rows_of_the_loop(tmp_path, monkeypatch, loop):
    monkeypatch.setattr(stack_runs, "PROMPTS", 1)
    monkeypatch.setattr(stack_runs, "RESPONSES", 2)
    problem, test = islice(loop.world.problems(3), 2)
    full, short = (
        "".join(lines) + CLOSE
        for lines in (loop.world.shortest_lines(problem), ["let me verify\n"])
    )
    rows = [
        {"response": text, "reward": reward, "length": 20.0}
        for text, reward in ((full, 1.0), (short, 0.0))
    ]
    (tmp_path / "rollouts").mkdir()
    lines = [json.dumps({"prompt": rendered(problem.question), **row}) + "\n" for row in rows]
    (tmp_path / "rollouts" / "step_000001.jsonl").write_text("".join(lines))
    (tmp_path / "policy").symlink_to(stack_runs.POLICY)
    step, end = stack_runs.read_run(tmp_path, [problem], [test])
    assert step == {"step": 0, "accuracy": 0.5, "tokens": 20, "essential": 3, "redundant": 0.5}
    assert end["step"] is None and end["tokens"] > 10


def test_relative_differences_by_hand():
    left, right = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    assert difference(left, right) == pytest.approx(math.sqrt(2))
    assert (difference(left, -left), difference(left, left), difference(0 * left, 0 * left)) == (
        2,
        0,
        0,
    )


def test_a_run_writes_its_steps_and_is_not_repeated(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(plain_loop, "HELD_OUT", 4)
    monkeypatch.setattr(plain_loop, "PROMPTS", 2)
    words = [
        "plain_loop",
        "--world",
        "columns",
        "--arms",
        "weights.oracle",
        "--steps",
        "2",
        "--output",
        str(tmp_path),
    ]
    monkeypatch.setattr(sys, "argv", words)
    plain_loop.main()
    file = tmp_path / "columns-weights.oracle-0.3-25-1.jsonl"
    rows = list(map(json.loads, file.read_text().splitlines()))
    assert [row["step"] for row in rows] == [0, 1, None]
    assert all(0 <= row["accuracy"] <= 1 and row["tokens"] > 10 for row in rows)
    capsys.readouterr()
    plain_loop.main()
    assert capsys.readouterr().out == ""

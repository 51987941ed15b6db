"""`openrlhf-swap score`: scores by their definition, resumed runs, and faulty rows."""

import json
import random
import shutil
from itertools import pairwise

import pytest
import torch
from support.paths import POLICY
from transformers import AutoModelForCausalLM

from openrlhf_swap import score
from openrlhf_swap.algorithm.steps import segment_steps
from openrlhf_swap.command import run_command
from openrlhf_swap.config import SwapConfig
from openrlhf_swap.evaluation.page.contents import page_data
from openrlhf_swap.files import read_rows, write_rows
from openrlhf_swap.process.locks import locked_file
from openrlhf_swap.quickstart.addition import CLOSE, overthinking_trace, problems

CLOSE_FLAG = CLOSE.replace("\n", "\\n")
FLAGS = ["--swap.step_tokens", "8", "--swap.close_template", CLOSE_FLAG]


@pytest.fixture
def rows():
    """Six problems with a response each."""
    rng = random.Random(3)
    made = []
    for number, problem in zip(range(6), problems(21), strict=False):
        response = overthinking_trace(problem, rng)
        row = {"problem": problem.question, "answer": problem.answer, "response": response}
        made.append({**row, "source": number})
    return made


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(POLICY, dtype=torch.float32).eval()


def run(tmp_path, rows, *extra, name="scores.jsonl"):
    """Score rows, or lines as they are; returns status and scored rows."""
    source = tmp_path / "rows.jsonl"
    target = tmp_path / name
    lines = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
    source.write_bytes(b"".join(line + b"\n" for line in lines))
    files = ["--model", str(POLICY), "--input", str(source), "--output", str(target)]
    status = run_command(score.main, [*files, *FLAGS, *extra])
    return status, list(read_rows(target))


def ids_of(tokenizer, text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def mean_logprob(model, head, tail):
    """The mean log-probability of the tail's tokens, by a forward of the whole."""
    logits = model(torch.tensor([head + tail])).logits[0]
    logprobs = logits.log_softmax(-1)
    places = range(len(head) - 1, len(head) + len(tail) - 1)
    values = [logprobs[place, token].item() for place, token in zip(places, tail, strict=True)]
    return sum(values) / len(values)


def test_scores_against_the_definition(tmp_path, rows, tokenizer, model):
    status, scored = run(tmp_path, rows)
    assert status == 0
    status, slow = run(tmp_path, rows, "--swap.scoring", "per_prefix", name="slow.jsonl")
    assert status == 0
    for row, result, other in zip(rows, scored, slow, strict=True):
        assert row.items() <= result.items()
        ids = ids_of(tokenizer, row["response"])
        reasoning = ids[: ids.index(tokenizer.convert_tokens_to_ids("</think>"))]
        newlines = ["\n" in tokenizer.decode([token]) for token in reasoning]
        steps = result["steps"]
        assert result["step_ends"] == segment_steps(newlines, 8, 25)
        assert "".join(steps) == tokenizer.decode(reasoning)

        prompt = f"<|user|>{row['problem']}<|assistant|><think>\n"
        answer = ids_of(tokenizer, row["answer"])
        expected = []
        for count in range(len(steps) + 1):
            head = ids_of(tokenizer, prompt + "".join(steps[:count]) + CLOSE)
            expected.append(mean_logprob(model, head, answer))
        assert result["answer_logprobs"] == pytest.approx(expected, abs=1e-4)
        assert result["answer_logprobs"] == pytest.approx(other["answer_logprobs"], abs=1e-4)
        local = [after - before for before, after in pairwise(expected)]
        assert result["local_gains"] == pytest.approx(local, abs=1e-4)
        gains = []
        for place, value in enumerate(expected[1:], start=1):
            gains.append(max(0.0, value - max(expected[:place])))
        assert result["gains"] == pytest.approx(gains, abs=1e-4)


def test_an_interrupted_run_goes_on(tmp_path, rows):
    _, complete = run(tmp_path, rows)
    target = tmp_path / "scores.jsonl"
    lines = target.read_text().splitlines(keepends=True)
    target.write_text("".join(lines[:2]) + lines[2][:40])  # killed in the middle of a line
    _, resumed = run(tmp_path, rows)
    assert resumed == complete


def test_a_file_holds_the_rows_of_one_model_and_of_one_setting(tmp_path, rows, capsys):
    """How settings and models are compared is seen in test_provenance.py."""
    _, before = run(tmp_path, rows[:1])
    moved = shutil.copytree(POLICY, tmp_path / "moved")
    other = shutil.copytree(POLICY, tmp_path / "other")
    with open(other / "model.safetensors", "ab") as weights:
        weights.write(b" ")
    changes = {"--swap.step_tokens": "9", "--dtype": "bfloat16", "--swap.grader": "math"}
    changes["--model"] = str(other)
    for flag, value in changes.items():
        assert run(tmp_path, rows[:2], flag, value) == (2, before)
        line = capsys.readouterr().err.splitlines()[-1]
        assert line.startswith(f"error: {flag} is ")
        assert line.endswith("; use another --output")
    assert run(tmp_path, rows[:1], "--model", str(moved)) == (0, before)


def test_a_second_command_with_one_output_is_refused(tmp_path, rows, capsys):
    with locked_file("--output", tmp_path / "scores.jsonl"):
        assert run(tmp_path, rows[:1]) == (2, [])
    line = capsys.readouterr().err.splitlines()[-1]
    assert "where another run is under way (scores.jsonl.lock)" in line


def test_a_file_holds_the_scores_of_one_input(tmp_path, rows, capsys):
    """Blank lines count as lines, and new rows may follow; another text is another input."""
    target = tmp_path / "scores.jsonl"
    _, before = run(tmp_path, [b"", *rows[:2]])
    assert [row["row"] for row in before] == [1, 2]
    _, longer = run(tmp_path, [b"", *rows[:3]])
    assert longer[:2] == before
    write_rows(target, before)
    changed = {**rows[1], "response": rows[2]["response"]}
    others = (
        [b"", rows[0], changed],
        rows[:2],
        [b"", rows[0]],
        [b"", rows[0], b"not json"],
    )
    for other in others:
        assert run(tmp_path, other) == (2, before)
        line = capsys.readouterr().err.splitlines()[-1]
        assert line.startswith(f"error: --input is not the file that the rows in {target} are the")


BLANK = b'{"problem": "x", "answer": " $ $ ", "response": "y"}'
LONG = {"problem": "What is 1 + 1?", "answer": "2", "response": "ones: 1+1+0=02\n" * 200}
HOSTILE = {
    "not UTF-8": b'{"problem": "caf\xe9", "answer": "3", "response": "3"}',
    "not JSON": b"not json",
    "not a JSON object": b"[1]",
    "no answer": b'{"problem": "x", "response": "y"}',
    "the answer ' $ $ ' is empty; give every problem a non-empty answer": BLANK,
    "longer than the model's context of 1024 tokens": json.dumps(LONG).encode(),
    "no problem": b'{"problem": null, "answer": "3", "response": "3"}',
    "response is neither text nor a number": b'{"problem": "p", "answer": "3", "response": ["3"]}',
}


def test_no_row_stops_the_file(tmp_path, rows, capsys):
    no_steps = {"problem": "What is 1 + 2?", "answer": "3", "response": "</think>\n\n\\boxed{3}"}
    given = [rows[0], *HOSTILE.values(), no_steps, rows[1]]
    status, scored = run(tmp_path, given)
    assert status == 0
    printed = capsys.readouterr()
    counts = {}
    for line in printed.out.splitlines():
        count, outcome = line.split(maxsplit=1)
        counts[outcome] = int(count)
    assert counts == {"scored": 3, **{f"skipped: {fault}": 1 for fault in HOSTILE}}
    assert "row 2: not UTF-8 (byte 0xe9 at position 17; convert it with iconv)" in printed.err
    behind = 1 + len(HOSTILE)
    assert [row["row"] for row in scored] == [0, behind, behind + 1]
    assert scored[1]["steps"] == []
    assert scored[1]["gains"] == []
    assert len(scored[1]["answer_logprobs"]) == 1


def test_responses_are_graded_where_a_grader_is_named(tmp_path, rows):
    next_number = int(rows[0]["answer"]) + 1
    off_by_one = {**rows[0], "answer": str(next_number), "tolerance": 1}
    grader = "support.verifiers:nearness"
    status, scored = run(tmp_path, [off_by_one, rows[0]], "--swap.grader", grader)
    assert status == 0
    grades = [(row["correct"], row["score"], row["status"]) for row in scored]
    assert grades == [(True, 0.5, "ok"), (True, 1.0, "ok")]


AGENT = [
    {"action": "ones: 7+6+0=", "observation": "13\n"},
    {"action": "tens: 4+3+1=", "observation": "08\n"},
    {"action": "</think>\n\n\\boxed{83}", "observation": ""},
]
TURNS = ["--swap.steps", "turns"]


@pytest.fixture
def agent():
    """A row as a run writes it: with a rendered prompt, and a response without observations."""
    return {
        "prompt": "<|user|>What is 47 + 36?<|assistant|><think>\n",
        "answer": "83",
        "turns": AGENT,
        "response": "".join(turn["action"] for turn in AGENT),
        "reward": 1.0,
        "steps": [{"text": "ones", "end": 3}],
    }


def test_turns_are_scored_as_one_forward_for_each_prefix_scores_them(
    tmp_path, agent, tokenizer, model
):
    status, (row,) = run(tmp_path, [agent], *TURNS)
    assert status == 0
    assert row["steps"] == ["ones: 7+6+0=", "tens: 4+3+1="]
    head = ids_of(tokenizer, agent["prompt"])
    expected = []
    for turn in AGENT:
        closed = head + ids_of(tokenizer, CLOSE)
        expected.append(mean_logprob(model, closed, ids_of(tokenizer, "83")))
        head += ids_of(tokenizer, turn["action"]) + ids_of(tokenizer, turn["observation"])
    assert row["answer_logprobs"] == pytest.approx(expected, abs=1e-4)
    # Another observation is another input.
    other = [{**AGENT[0], "observation": "14\n"}, *AGENT[1:]]
    assert run(tmp_path, [{**row, "turns": other}], *TURNS)[0] == 2


def test_turns_alone_are_enough_and_their_observations_are_shown(tmp_path, agent):
    _, (whole,) = run(tmp_path, [agent], *TURNS)
    del agent["response"]
    _, (alone,) = run(tmp_path, [agent], *TURNS, name="alone")
    assert alone["answer_logprobs"] == whole["answer_logprobs"]
    (page,) = page_data([tmp_path / "alone"], SwapConfig(), 9)["problems"]
    ((shown,),) = page["columns"]
    assert [step.get("observation") for step in shown["steps"]] == [["13\n"], ["08\n"]]
    assert [step["turn"] for step in shown["steps"]] == [1, 2]

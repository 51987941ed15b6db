"""The page that the quickstart ends with."""

import json
import random
import re
from statistics import fmean, stdev

import pytest
from support.paths import POLICY

from openrlhf_swap.files import to_line, write_rows, write_text
from openrlhf_swap.quickstart.addition import CLOSE, Addition, overthinking_trace, shortest_trace
from openrlhf_swap.quickstart.before_after import write_page
from openrlhf_swap.quickstart.evaluate import write_traces

PROBLEM = Addition(478, 356)


@pytest.fixture(scope="module")
def page_data(tmp_path_factory):
    """The data of the page of a run whose files are written by hand."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "train").mkdir()
    swap = {"step_tokens": 8, "max_steps": 25, "newline_patience": 2.0, "close_template": CLOSE}
    write_text(folder / "train" / "swap_config.json", to_line({"swap": swap}))
    metrics = [
        {"step": 1, "swap/accuracy": 0.5, "length/mean": 99.0},
        {"step": 2, "swap/accuracy": 0.5, "length/mean": 98.0},
    ]
    write_rows(folder / "train" / "metrics.jsonl", metrics)
    rng = random.Random(0)
    long = [overthinking_trace(PROBLEM, rng) for _ in range(3)]
    write_responses(folder / "base.traces.jsonl", long)
    write_responses(folder / "trained.traces.jsonl", [shortest_trace(PROBLEM)] * 3)
    means = {"accuracy": 0.8, "tokens": 100.0, "redundant": 7.0, "essential": 3.0}
    seconds = dict.fromkeys(("generate", "score", "update", "sync", "total"), 1.0)
    summary = {"base": means, "trained": means | {"tokens": 40.0}, "seconds": seconds}
    page = write_page({"base": POLICY, "trained": POLICY}, summary, folder)
    data = re.search(r'id="data">(.*?)</script>', page.read_text(), re.DOTALL)
    return json.loads(data[1])


def write_responses(path, texts):
    """Write responses to the problem, all of them correct."""
    responses = []
    for text in texts:
        text = text.removesuffix("<|end|>")
        responses.append({"text": text, "tokens": len(text), "correct": True})
    asked = {"problem": PROBLEM.question, "answer": PROBLEM.answer}
    write_traces(path, [asked], [responses])


def test_the_quickstart_ends_with_a_page(page_data):
    (shown,) = page_data["problems"]
    assert shown["text"] == [PROBLEM.question]
    (table, *_) = page_data["summary"]["tables"]
    assert table["rows"][1] == ["tokens a response", "100.0", "40.0", "-60%"]
    before, after = shown["columns"]
    longest = max(before, key=lambda response: response["tokens"])
    assert sum(step["penalty"] for step in longest["steps"]) > 0
    curve = after[0]["curve"]
    assert curve[-1] > curve[0] + 1  # it has computed the answer


@pytest.mark.parametrize("credit", ["paper", "own"])
def test_the_page_opens_with_credits_by_hand(page_data, credit):
    """Of three equal responses nobody pays a penalty, and the group's steps are these, thrice."""
    steps = page_data["idea"]["sides"][1]["steps"]
    assert [step["text"] for step in steps] == shortest_trace(PROBLEM).splitlines()[:3]
    rewards = [step["gain"] for step in steps]
    if credit == "own":
        rewards = [step["gain"] + step["need"] for step in steps]
    mean = fmean(rewards)
    deviation = stdev(3 * rewards)
    first, second, third = ((reward - mean) / deviation for reward in rewards)
    expected = [first, second, third]
    if credit == "paper":
        expected = [first + second + third, second + third, third]
    assert [step[credit] for step in steps] == pytest.approx(expected, abs=2e-3)

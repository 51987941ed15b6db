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


def test_the_quickstart_ends_with_a_page(tmp_path):
    (tmp_path / "train").mkdir()
    swap = {"step_tokens": 8, "max_steps": 25, "newline_patience": 2.0, "close_template": CLOSE}
    write_text(tmp_path / "train" / "swap_config.json", to_line({"swap": swap}))
    metrics = [{"step": n, "swap/accuracy": 0.5, "length/mean": 100.0 - n} for n in (1, 2)]
    write_rows(tmp_path / "train" / "metrics.jsonl", metrics)
    problem = Addition(478, 356)
    rng = random.Random(0)
    asked = [{"problem": problem.question, "answer": problem.answer}]
    long = [overthinking_trace(problem, rng) for _ in range(3)]
    for name, texts in (("base", long), ("trained", [shortest_trace(problem)] * 3)):
        responses = [
            {"text": text.removesuffix("<|end|>"), "tokens": len(text), "correct": True}
            for text in texts
        ]
        write_traces(tmp_path / f"{name}.traces.jsonl", asked, [responses])
    means = {"accuracy": 0.8, "tokens": 100.0, "redundant": 7.0, "essential": 3.0}
    seconds = dict.fromkeys(("generate", "score", "update", "sync", "total"), 1.0)
    summary = {"base": means, "trained": means | {"tokens": 40.0}, "seconds": seconds}
    page = write_page({"base": POLICY, "trained": POLICY}, summary, tmp_path)
    data = json.loads(re.search(r'id="data">(.*?)</script>', page.read_text(), re.DOTALL)[1])
    (shown,) = data["problems"]
    assert shown["text"] == [problem.question]
    assert data["summary"]["tables"][0]["rows"][1] == ["tokens a response", "100.0", "40.0", "-60%"]
    before, after = shown["columns"]
    longest = max(before, key=lambda one: one["tokens"])
    assert sum(step["penalty"] for step in longest["steps"]) > 0
    assert after[0]["curve"][-1] > after[0]["curve"][0] + 1  # it has computed the answer
    # The credits of the short side of what the page opens with, from its numbers. Three equal
    # responses: nobody pays a penalty, and the group's steps are these, three times.
    short = data["idea"]["sides"][1]["steps"]
    assert [step["text"] for step in short] == shortest_trace(problem).splitlines()[:3]
    for credit, names, later in (("paper", ["gain"], 1), ("own", ["gain", "need"], 0)):
        rewards = [sum(step[name] for name in names) for step in short]
        mean = fmean(rewards)
        deviation = stdev(3 * rewards)
        normalised = [(reward - mean) / deviation for reward in rewards]
        expected = [own + later * sum(normalised[k + 1 :]) for k, own in enumerate(normalised)]
        assert [step[credit] for step in short] == pytest.approx(expected, abs=2e-3)

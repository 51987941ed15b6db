"""The quickstart: what it tells of its training, and the page it ends with, of two problems that
the policy scored.
"""

import json
import random
import re

import pytest
from addition import CLOSE, Addition, overthinking_trace, shortest_trace
from before_after import write_page
from evaluate import summarise, write_traces
from quickstart import warnings_in
from support.paths import ROOT

from openrlhf_swap.files import read_rows, to_line, write_rows, write_text

PROBLEMS = [Addition(478, 356), Addition(123, 456)]
MEANS = {"accuracy": 0.8, "tokens": 100.0, "redundant": 7.0, "essential": 3.0}


def response(text):
    return {"text": text.removesuffix("<|end|>"), "tokens": len(text), "correct": True}


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory):
    """What is there when the page is made: traces, the training's settings and metrics."""
    folder = tmp_path_factory.mktemp("quickstart")
    (folder / "train").mkdir()
    swap = {"step_tokens": 8, "max_steps": 25, "newline_patience": 2.0, "close_template": CLOSE}
    swap |= {"length_coef": 1.0, "tau": 1.0}
    write_text(folder / "train" / "swap_config.json", to_line({"swap": swap}))
    metrics = [{"step": n, "swap/accuracy": 0.5, "length/mean": 100.0 - n} for n in (1, 2)]
    write_rows(folder / "train" / "metrics.jsonl", metrics)
    asked = [{"problem": p.question, "answer": p.answer} for p in PROBLEMS]
    rng = random.Random(0)
    long = [[response(overthinking_trace(p, rng)) for _ in range(3)] for p in PROBLEMS]
    short = [[response(shortest_trace(p))] * 3 for p in PROBLEMS]
    write_traces(folder / "base.traces.jsonl", asked, long)
    write_traces(folder / "trained.traces.jsonl", asked, short)
    return folder


def test_the_quickstart_ends_with_a_page(quickstart):
    policy = ROOT / "examples" / "worlds" / "policies" / "addition"
    (quickstart / "base.scored.jsonl").write_text("an earlier quickstart's\n")
    seconds = dict.fromkeys(("generate", "score", "update", "sync", "total"), 1.0)
    summary = {"base": MEANS, "trained": MEANS | {"tokens": 40.0}, "seconds": seconds}
    page = write_page({"base": policy, "trained": policy}, summary, quickstart)
    assert page == quickstart / "report.html"
    data = json.loads(re.search(r'id="data">(.*?)</script>', page.read_text(), re.DOTALL)[1])
    assert data["names"] == ["base", "trained"]
    assert [problem["text"] for problem in data["problems"]] == [[p.question] for p in PROBLEMS]
    (table,) = data["summary"]["tables"]
    assert table["rows"][1] == ["tokens a response", "100.0", "40.0", "-60%"]
    assert data["summary"]["charts"][0]["lines"] == {"all": [99.0, 98.0]}
    assert (
        "The first 2 held-out problems, not chosen, with 3 responses each"
        in data["summary"]["notes"][1]
    )
    for problem in data["problems"]:
        before, after = problem["columns"]
        assert len(after[0]["steps"]) == 3  # a line of ten tokens is a step
        assert not any(
            step["penalty"] for r in after for step in r["steps"]
        )  # all are equally long
        longest = max(before, key=lambda r: r["tokens"])
        assert sum(step["penalty"] for step in longest["steps"]) > 0
        assert (
            after[0]["curve"][-1] > after[0]["curve"][0] + 1
        )  # the policy knows the answer when it has computed it
    assert len(list(read_rows(quickstart / "base.scored.jsonl"))) == 6


def test_means_over_problems_not_over_responses():
    kind = {"essential": 3, "redundant": 0}
    first = [{"correct": True, "tokens": 10, **kind}, {"correct": False, "tokens": 20, **kind}]
    summary = summarise([first, [{"correct": True, "tokens": 50, **kind}]], list(kind))
    # Means of .5 and 1, and of 15 and 50.
    assert (summary["accuracy"], summary["tokens"], summary["problems"]) == (0.75, 32.5, 2)


def test_warnings_of_the_training_are_told(tmp_path):
    log = tmp_path / "train.log"
    log.write_bytes(
        b"[swap] step 8: accuracy 90%\n[swap] warning at step 9: accuracy fell\nwarning: \xff\n"
    )
    assert warnings_in(log) == ["[swap] warning at step 9: accuracy fell"]

"""The page that shows where the length went."""

import json
import re

import pytest

from openrlhf_swap.command import run_command
from openrlhf_swap.config import SwapConfig
from openrlhf_swap.evaluation.page import main
from openrlhf_swap.evaluation.page.contents import add_penalties
from openrlhf_swap.files import write_rows

DATA = re.compile(r'<script type="application/json" id="data">(.*?)</script>', re.DOTALL)


@pytest.fixture
def make(tmp_path, capsys):
    """Makes a page; returns its HTML and its data, or the error."""

    def start(*words):
        page = tmp_path / "page.html"
        if run_command(main, [*map(str, words), "--output", str(page)]):
            return capsys.readouterr().err
        html = page.read_text()
        # JSON has no NaN: with one the browser reads none of the page.
        return html, json.loads(DATA.search(html)[1], parse_constant=pytest.fail)

    return start


def test_penalties_by_hand(scored):
    # Right: 100 and 200 tokens, median 150, so the longer one has P = 50/150 = 1/3, on equal gains
    # evenly: 1/6 a step.
    lengths = ((True, [1.0, 1.0], 100), (True, [1.0, 1.0], 200), (False, [1.0], 900))
    rows = [{**scored("p", *one), "length": one[-1]} for one in lengths]
    add_penalties(rows, SwapConfig())
    assert [row["penalties"] for row in rows] == [[0, 0], pytest.approx([1 / 6, 1 / 6]), [0]]
    # Rewards 1, 1, 5/6, 5/6: mu is 11/12, and each step's share of 2 mu is that, too.
    add_penalties(rows, SwapConfig(step_price="weights"))
    assert rows[1]["penalties"] == pytest.approx([1 / 6 + 11 / 12] * 2, abs=1e-5)


def test_the_page_is_one_file_without_requests(make, tmp_path, scored):
    base, swap = tmp_path / "base.scored.jsonl", tmp_path / "swap.scored.jsonl"
    texts = {"answer": r"\frac{1}{2}", "steps": ["so $x$\n", "$y\n"]}
    write_rows(base, [scored("Find $x$ </script>?", True, [0.5, 0.1], 20) | texts])
    needed = scored("Find $x$ </script>?", True, [0.6], 10) | {"need": [1.25]}
    rows = [needed, scored("x", False, [2.9, 0], 20)]
    write_rows(swap, [*rows, {"gains": [0.5]}])  # a row that lacks scores is none
    html, data = make(base, swap)
    assert re.search(r"(src|href)=|https?://(?!www\.w3\.org)|@import|fetch\(", html) is None
    assert "<" not in DATA.search(html)[1]  # no text can end the element, nor open a comment in it
    first, second = data["problems"]
    assert first["text"] == ["Find ", "$x$", " </script>?"]
    assert set(data["formulas"]) == {"$x$", r"$\frac{1}{2}$"}
    assert [len(column) for column in first["columns"]] == [1, 1]
    assert [len(column) for column in second["columns"]] == [0, 1]
    steps = first["columns"][0][0]["steps"]
    assert steps[0]["text"] == ["so ", "$x$", "\n"]
    numbers = {"tokens": 10, "gain": 0.1, "change": 0.1, "penalty": 0}
    assert steps[1] == {"text": ["$y\n"], **numbers}
    assert first["columns"][1][0]["steps"][0]["need"] == 1.25  # where it was read
    # l is -3, -2.5, -2.4, and with the other file -3, -.1 and again -.1: known from step 1 of 2.
    assert first["columns"][0][0]["known"] == {"steps": None, "share": 0}
    assert second["columns"][1][0]["known"] == {"steps": 1, "share": 0.5}
    assert second["columns"][1][0]["rest"] == ["</think>2"]


def test_nan_is_null(make, tmp_path, scored):
    nan, traces, metrics = float("nan"), tmp_path / "base.jsonl", tmp_path / "metrics.jsonl"
    broken = {"local_gains": [nan, 0.1], "answer_logprobs": [nan, -2, -1]}
    write_rows(traces, [scored("p", True, [0.5, 0.1], 20) | broken])
    write_rows(metrics, [{"step": 1, "swap/accuracy": nan, "length/mean": float("inf")}])
    _, data = make(traces, "--metrics", metrics)
    ((response,),) = data["problems"][0]["columns"]
    assert response["curve"] == [None, -2, -1]
    assert response["known"] is None
    steps = [(step["change"], step["penalty"]) for step in response["steps"]]
    assert steps == [(None, None), (0.1, None)]
    assert data["summary"]["charts"][1]["lines"] == {"accuracy": [None]}


def test_a_training_and_evaluations_stand_above(make, tmp_path, scored, evaluated):
    metrics = tmp_path / "metrics.jsonl"
    folders = [evaluated / name for name in ("base", "short")]
    for folder in folders:
        traces = [scored("p", True, [2.9, 0], 20), scored("p", False, [3], 9)]
        write_rows(folder / "scored.jsonl", traces)
    # The second step was done again, the third measured nothing.
    steps = [(1, 9.0, None), (2, 8.0, None), (2, 7.0, 6.0)]
    rows = [
        {"step": step, "swap/accuracy": 0.5, "length/mean": mean, "length/target": target}
        for step, mean, target in steps
    ]
    write_rows(metrics, [*rows, {"step": 3}])
    _, data = make(*folders, "--metrics", metrics)
    assert (data["names"], len(data["problems"])) == (["base", "short"], 1)
    tokens, accuracy = data["summary"]["charts"]
    assert tokens["steps"] == [1, 2]
    assert tokens["lines"] == {"all": [9.0, 7.0], "target": [None, 6.0]}
    assert accuracy["lines"] == {"accuracy": [0.5, 0.5]}
    table, differences = data["summary"]["tables"]
    # pass@1, and the share of tokens after the answer was known.
    assert [(row[3], row[-1]) for row in table["rows"]] == [("50.0", "50.0"), ("100.0", "50.0")]
    assert [row[0] for row in differences["rows"]] == ["short - base"]

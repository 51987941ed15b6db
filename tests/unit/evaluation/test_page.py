"""The page that shows where the length went."""

import json
import re

import pytest

from openrlhf_swap.command import run_command
from openrlhf_swap.config import SwapConfig
from openrlhf_swap.errors import DataError
from openrlhf_swap.evaluation import page
from openrlhf_swap.evaluation.page import main
from openrlhf_swap.evaluation.page.contents import add_penalties
from openrlhf_swap.files import write_rows

DATA = re.compile(r'<script type="application/json" id="data">(.*?)</script>', re.DOTALL)
NAN = float("nan")


@pytest.fixture
def make(tmp_path):
    """A function that makes a page; returns its HTML and its data."""

    def start(*words):
        page = tmp_path / "page.html"
        assert run_command(main, [*map(str, words), "--output", str(page)]) == 0
        html = page.read_text()
        data = DATA.search(html)[1]
        # JSON has no NaN: with one the browser reads none of the page.
        return html, json.loads(data, parse_constant=pytest.fail)

    return start


def test_a_page_that_cannot_be_written_leaves_the_one_before(make, tmp_path, scored):
    rows = tmp_path / "base.scored.jsonl"
    write_rows(rows, [scored("p", True, [0.5], 20)])
    html, _ = make(rows)
    line = rows.read_text().replace('"p"', r'"\ud800"')
    rows.write_text(line)
    with pytest.raises(
        DataError, match=r"row 1: a lone surrogate \(.ud800\), .*; remove that line"
    ):
        main([str(rows), "--output", str(tmp_path / "page.html")])
    assert (tmp_path / "page.html").read_text() == html


def test_penalties_by_hand(scored):
    # Right: 100 and 200 tokens, median 150, so the longer one has P = 50/150 = 1/3, on equal gains
    # evenly: 1/6 a step.
    short = {**scored("p", True, [1.0, 1.0], 100), "length": 100}
    long = {**scored("p", True, [1.0, 1.0], 200), "length": 200}
    wrong = {**scored("p", False, [1.0], 900), "length": 900}
    rows = [short, long, wrong]
    add_penalties(rows, SwapConfig())
    assert short["penalties"] == [0, 0]
    assert long["penalties"] == pytest.approx([1 / 6, 1 / 6])
    assert wrong["penalties"] == [0]
    # Rewards 1, 1, 5/6, 5/6: mu is 11/12, and each step's share of 2 mu is that, too.
    add_penalties(rows, SwapConfig(step_price="weights"))
    assert long["penalties"] == pytest.approx([1 / 6 + 11 / 12] * 2, abs=1e-5)


def test_the_page_is_one_file_without_requests(make, tmp_path, scored):
    base = tmp_path / "base.scored.jsonl"
    swap = tmp_path / "swap.scored.jsonl"
    texts = {"answer": r"\frac{1}{2}", "steps": ["so $x$\n", "$y\n"]}
    problem = "Find $x$ </script>?"
    write_rows(base, [scored(problem, True, [0.5, 0.1], 20) | texts])
    needed = scored(problem, True, [0.6], 10) | {"need": [1.25]}
    without_scores = {"gains": [0.5]}
    wrong = scored("x", False, [2.9, 0], 20)
    write_rows(swap, [needed, wrong, without_scores])
    html, data = make(base, swap)
    assert re.search(r"(src|href)=|https?://(?!www\.w3\.org)|@import|fetch\(", html) is None
    assert "<" not in DATA.search(html)[1]  # no text can end the element, nor open a comment in it
    first, second = data["problems"]
    assert first["text"] == ["Find ", "$x$", " </script>?"]
    assert set(data["formulas"]) == {"$x$", r"$\frac{1}{2}$"}
    (of_base,), (of_swap,) = first["columns"]
    assert of_base["steps"][0]["text"] == ["so ", "$x$", "\n"]
    numbers = {"tokens": 10, "gain": 0.1, "change": 0.1, "penalty": 0}
    assert of_base["steps"][1] == {"text": ["$y\n"], **numbers}
    assert of_swap["steps"][0]["need"] == 1.25  # where it was read
    absent, (only,) = second["columns"]
    assert absent == []
    assert only["rest"] == ["</think>2"]
    # l is -3, -2.5, -2.4, and with the other file -3, -.1 and again -.1: known from step 1 of 2.
    assert of_base["known"] == {"steps": None, "share": 0}
    assert only["known"] == {"steps": 1, "share": 0.5}


def test_nan_is_null(make, tmp_path, scored):
    traces = tmp_path / "base.jsonl"
    broken = {"local_gains": [NAN, 0.1], "answer_logprobs": [NAN, -2, -1]}
    write_rows(traces, [scored("p", True, [0.5, 0.1], 20) | broken])
    metrics = tmp_path / "metrics.jsonl"
    write_rows(metrics, [{"step": 1, "swap/accuracy": NAN, "length/mean": float("inf")}])
    _, data = make(traces, "--metrics", metrics)
    ((response,),) = data["problems"][0]["columns"]
    assert response["curve"] == [None, -2, -1]
    assert response["known"] is None
    assert [step["change"] for step in response["steps"]] == [None, 0.1]
    assert [step["penalty"] for step in response["steps"]] == [None, None]
    assert data["summary"]["charts"][1]["lines"] == {"accuracy": [None]}


def test_a_training_and_evaluations_stand_above(make, tmp_path, scored, evaluated):
    folders = [evaluated / "base", evaluated / "short"]
    for folder in folders:
        right = scored("p", True, [2.9, 0], 20)
        wrong = scored("p", False, [3], 9)
        write_rows(folder / "scored.jsonl", [right, wrong])
    # The second step was done again, the third measured nothing.
    measured = {"swap/accuracy": 0.5}
    rows = [
        {"step": 1, **measured, "length/mean": 9.0, "length/target": None},
        {"step": 2, **measured, "length/mean": 8.0, "length/target": None},
        {"step": 2, **measured, "length/mean": 7.0, "length/target": 6.0},
        {"step": 3},
    ]
    metrics = tmp_path / "metrics.jsonl"
    write_rows(metrics, rows)
    _, data = make(*folders, "--metrics", metrics)
    assert data["names"] == ["base", "short"]
    assert len(data["problems"]) == 1
    tokens, accuracy = data["summary"]["charts"]
    assert tokens["steps"] == [1, 2]
    assert tokens["lines"] == {"all": [9.0, 7.0], "target": [None, 6.0]}
    assert accuracy["lines"] == {"accuracy": [0.5, 0.5]}
    table, differences = data["summary"]["tables"]
    # pass@1, and the share of tokens after the answer was known.
    assert [row[3] for row in table["rows"]] == ["50.0", "100.0"]
    assert [row[-1] for row in table["rows"]] == ["50.0", "50.0"]
    assert [row[0] for row in differences["rows"]] == ["short - base"]


def test_a_large_page_shows_what_opens_quickly_unless_more_is_asked_for(
    make, tmp_path, scored, monkeypatch, capsys
):
    traces = tmp_path / "base.jsonl"
    write_rows(traces, [scored(f"problem {n}", True, [0.5] * 200, 2000) for n in range(40)])
    whole, data = make(traces)
    assert len(data["problems"]) == 40
    assert capsys.readouterr().out.endswith("page.html: 40 problems\n")
    monkeypatch.setattr(page, "LARGE", len(whole) // 2)
    half, data = make(traces)
    shown = len(data["problems"])
    assert 10 <= shown <= 20
    assert len(half) < 0.75 * len(whole)
    out = capsys.readouterr().out
    assert f"page.html: {shown} problems of 40: all would take " in out
    assert make(traces, "--limit", "40")[0] == whole
    assert "browsers open slowly: give a smaller --limit" in capsys.readouterr().out

"""The page that shows where the length went."""

import json
import re
import shutil
import subprocess

import pytest

from openrlhf_swap.command import run_command
from openrlhf_swap.config import SwapConfig
from openrlhf_swap.evaluation.page import main
from openrlhf_swap.evaluation.page.contents import SCRIPT, add_penalties, page_data
from openrlhf_swap.files import write_rows

DATA = re.compile(r'<script type="application/json" id="data">(.*?)</script>', re.DOTALL)


def embedded_data(page):
    """JSON has no NaN: with one the browser reads none of the page."""
    return json.loads(DATA.search(page.read_text())[1], parse_constant=pytest.fail)


def test_penalties_of_the_viewer_by_hand(scored):
    # Right: 100 and 200 tokens, median 150, so the longer one has P = 50/150 = 1/3, on equal gains
    # evenly: 1/6 a step.
    rows = [
        scored("p", True, [1.0, 1.0], 100),
        scored("p", True, [1.0, 1.0], 200),
        scored("p", False, [1.0], 900),
    ]
    for row in rows:
        row["length"] = row["tokens"]
    add_penalties(rows, SwapConfig())
    assert [row["penalties"] for row in rows] == [[0, 0], pytest.approx([1 / 6, 1 / 6]), [0]]
    # Rewards 1, 1, 5/6, 5/6: mu is 11/12, and each step's share of 2 mu is that, too.
    add_penalties(rows, SwapConfig(step_price="weights"))
    assert rows[1]["penalties"] == pytest.approx([1 / 6 + 11 / 12] * 2, abs=1e-5)


def test_the_viewer_is_one_file_without_requests(tmp_path, capsys, scored):
    base, swap = tmp_path / "base.scored.jsonl", tmp_path / "swap.scored.jsonl"
    write_rows(base, [scored("1+1 </script>?", True, [0.5, 0.1], 20)])
    write_rows(swap, [scored("1+1 </script>?", True, [0.6], 10), scored("x", False, [0.1], 10)])
    page = tmp_path / "page.html"
    assert run_command(main, [str(base), str(swap), "--output", str(page)]) == 0
    html = page.read_text()
    assert re.search(r"(src|href)=|https?://(?!www\.w3\.org)|@import|fetch\(", html) is None
    data = embedded_data(page)
    assert data["names"] == ["base", "swap"]
    first, second = data["problems"]
    assert first["text"] == ["1+1 </script>?"]
    assert "<" not in DATA.search(html)[1]  # no text can end the element, nor open a comment in it
    assert [len(column) for column in first["columns"]] == [1, 1]
    assert [len(column) for column in second["columns"]] == [0, 1]
    step = first["columns"][0][0]["steps"][1]
    assert step == {"text": ["step 1\n"], "tokens": 10, "gain": 0.1, "change": 0.1, "penalty": 0}
    assert first["columns"][0][0]["rest"] == ["</think>2"]
    assert "summary" not in data
    for flag, value in (("--swap.tau", "0"), ("--swap.length_coef", "-1")):
        assert run_command(main, [str(base), "--output", str(page), flag, value]) == 2
        assert capsys.readouterr().err.startswith(f"error: {flag} is ")
    write_rows(base, [{"problem": "p"}])
    assert run_command(main, [str(base), "--output", str(page)]) == 2
    assert "holds no scored traces" in capsys.readouterr().err


def test_nan_is_null(tmp_path, scored):
    nan, traces, metrics = float("nan"), tmp_path / "base.jsonl", tmp_path / "metrics.jsonl"
    whole = scored("p", True, [0.5, 0.1], 20)
    write_rows(
        traces,
        [whole | {"local_gains": [nan, 0.1], "answer_logprobs": [nan, -2, -1]}, {"gains": [0.5]}],
    )
    write_rows(metrics, [{"step": 1, "swap/accuracy": nan, "length/mean": float("inf")}])
    page = tmp_path / "page.html"
    assert run_command(main, [str(traces), "--output", str(page), "--metrics", str(metrics)]) == 0
    data = embedded_data(page)
    (problem,) = data["problems"]  # a row that lacks scores is none
    (response,) = problem["columns"][0]
    assert response["curve"] == [None, -2, -1] and response["left"] == []
    assert [(step["change"], step["penalty"]) for step in response["steps"]] == [
        (None, None),
        (0.1, None),
    ]
    assert data["summary"]["charts"][1]["lines"] == {"accuracy": [None]}


def test_formulas_are_kept_once(tmp_path, scored):
    traces = tmp_path / "base.jsonl"
    row = scored("Find $x$.", True, [0.5, 0.1], 20) | {
        "answer": r"\frac{1}{2}",
        "steps": ["so $x$\n", "$y\n"],
    }
    write_rows(traces, [row])
    data = page_data([traces], SwapConfig(), 10)
    (problem,) = data["problems"]
    assert problem["text"] == ["Find ", "$x$", "."]
    assert problem["answer"] == ["", r"$\frac{1}{2}$", ""]
    assert [step["text"] for step in problem["columns"][0][0]["steps"]] == [
        ["so ", "$x$", "\n"],
        ["$y\n"],
    ]
    assert set(data["formulas"]) == {"$x$", r"$\frac{1}{2}$"}


def test_a_training_and_evaluations_stand_above(tmp_path, scored, evaluated, capsys):
    metrics, page = tmp_path / "metrics.jsonl", tmp_path / "page.html"
    folders = [evaluated / name for name in ("base", "short")]
    for folder in folders:
        write_rows(folder / "scored.jsonl", [scored("p", True, [0.5], 20)])
    # The second step was done again, the third measured nothing.
    steps = [(1, 9.0, None), (2, 8.0, None), (2, 7.0, 6.0)]
    rows = [
        {"step": n, "swap/accuracy": 0.5, "length/mean": mean, "length/target": t}
        for n, mean, t in steps
    ]
    write_rows(metrics, [*rows, {"step": 3}])
    arguments = [*map(str, folders), "--output", str(page), "--metrics", str(metrics)]
    assert run_command(main, arguments) == 0
    data = embedded_data(page)
    assert (data["names"], len(data["problems"])) == (["base", "short"], 1)
    summary = data["summary"]
    tokens, accuracy = summary["charts"]
    assert (tokens["steps"], tokens["lines"]) == (
        [1, 2],
        {"all": [9.0, 7.0], "target": [None, 6.0]},
    )
    assert accuracy["lines"] == {"accuracy": [0.5, 0.5]}
    assert tokens["title"] == f"{tmp_path.name}: tokens per rollout"
    table, differences = summary["tables"]
    assert [row[:4] for row in table["rows"]] == [
        ["base", "own", "2", "50.0"],
        ["short", "own", "2", "100.0"],
    ]
    assert table["header"][3:] == ["pass@1 %", "95%", "tokens", "cut off %"]
    assert [row[0] for row in differences["rows"]] == ["short - base"]
    write_rows(metrics, [{"step": 1}])
    assert run_command(main, arguments) == 2
    assert "holds no training steps" in capsys.readouterr().err


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_numbers_in_words():
    lines = [
        line
        for line in SCRIPT.read_text().splitlines()
        if line.startswith(("const nats", "const counted"))
    ]
    calls = "[nats(-0.001), nats(-0.01), nats(0.005), counted(1, 'step'), counted(0, 'token')]"
    program = "\n".join([*lines, f"console.log(JSON.stringify({calls}))"])
    shown = subprocess.run(
        ["node", "-e", program], capture_output=True, text=True, check=True
    ).stdout
    assert json.loads(shown) == ["0.00", "-0.01", "0.01", "1 step", "0 tokens"]

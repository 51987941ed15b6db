"""The page of a run that trains: what is on it, and when it is written."""

import json
import re
import threading
import time

import pytest

from openrlhf_swap.command import run_command
from openrlhf_swap.evaluation.watch import main
from openrlhf_swap.files import to_line, write_rows, write_text

DATA = re.compile(r'<script type="application/json" id="data">(.*?)</script>', re.DOTALL)


def response(group, correct, gains):
    """A row of a run's table: a correct response has scores, of which steps of 1 nat are new."""
    steps = []
    for k, gain in enumerate(gains):
        found = {"text": f"line {k}\n", "end": 9 + 10 * k, "answer_logprob": -1.0 + gain}
        steps.append({**found, "gain": gain, "local_gain": gain, "penalty": 0.25})
    row = {"group": group, "prompt": f"<|user|>problem {group}<|assistant|>", "answer": "5"}
    row |= {"response": "".join(step["text"] for step in steps) + "</think> 5", "length": 30}
    row |= {"reward": float(correct), "steps": steps if correct else []}
    return row | {"answer_logprob_0": -1.0 if correct else None}


@pytest.fixture
def run(tmp_path):
    """A run's folder after three steps: one was skipped, and the rollouts of two were kept."""
    write_text(tmp_path / "swap_config.json", "{}")
    measured = {"length/target": 80.0, "reward": 0.5, "timing/step_total": 2.5}
    rows = [
        {"step": 1, "swap/accuracy": 0.5, "length/mean": 100.0, **measured},
        {"step": 2, "timing/step_total": 1.0},
        {"step": 3, "swap/accuracy": 0.75, "length/mean": 90.0, **measured},
    ]
    write_rows(tmp_path / "metrics.jsonl", rows)
    (tmp_path / "rollouts").mkdir()
    tables = {1: [1.0, 0.0, 0.0, 0.0], 3: [1.0, 0.0]}
    for step, gains in tables.items():
        rows = [response(0, True, gains), response(0, False, gains), response(1, False, gains)]
        write_rows(tmp_path / "rollouts" / f"step_{step:06d}.jsonl", rows)
    return tmp_path


def data_of(page):
    html = page.read_text(encoding="utf-8")
    assert re.search(r"(src|href)=|https?://(?!www\.w3\.org)|@import|fetch\(", html) is None
    return json.loads(DATA.search(html)[1])


def test_the_page_has_the_curves_and_the_newest_rollouts(run):
    assert run_command(main, [str(run), "--once"]) == 0
    data = data_of(run / "watch.html")
    charts = {chart["title"]: chart["lines"] for chart in data["summary"]["charts"]}
    assert charts == {
        "accuracy of rollouts": {"accuracy": [0.5, 0.75]},
        "tokens per rollout": {"all": [100, 90], "target": [80, 80]},
        "reward": {"reward": [0.5, 0.5]},
        "seconds a step": {"seconds": [2.5, 2.5]},
    }
    said = "Step 3: accuracy 75.0%, 90 tokens, reward 0.500, 2.5 s; looked at "
    assert data["summary"]["notes"][0].startswith(said)
    found = [(problem["benchmark"], len(problem["columns"][0])) for problem in data["problems"]]
    assert sorted(found, reverse=True) == [("3", 2), ("3", 1), ("1", 2), ("1", 1)]
    scored = [r for p in data["problems"] for r in p["columns"][0] if r["steps"]]
    assert sorted(len(response["steps"]) for response in scored) == [2, 4]
    assert (data["groups"], data["reload"]) == ("step", 0)


def test_the_page_follows_the_run_until_it_is_finished(run):
    """A line that is half written is left for the next look."""
    words = [str(run), "--every", "0.05", "--output", str(run / "page.html")]
    watching = threading.Thread(target=run_command, args=(main, words))
    watching.start()
    wait_until(lambda: (run / "page.html").exists())
    assert data_of(run / "page.html")["reload"] == 0.05
    whole = to_line({"step": 4, "swap/accuracy": 1.0, "length/mean": 70.0})
    with open(run / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write(whole[:20])
        file.flush()
        assert watching.is_alive()
        file.write(whole[20:])
    wait_until(lambda: "Step 4" in data_of(run / "page.html")["summary"]["notes"][0])
    write_text(run / "swap_config.json", to_line({"finished": {}}))
    watching.join(60)
    assert not watching.is_alive() and data_of(run / "page.html")["reload"] == 0


def wait_until(seen):
    until = time.monotonic() + 60
    while not seen():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_folder_without_a_training_is_refused(tmp_path, capsys):
    assert run_command(main, [str(tmp_path)]) == 2
    assert "holds no swap_config.json; give the --swap.output_dir" in capsys.readouterr().err

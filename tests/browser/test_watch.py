"""The page of a run that trains, in headless Chromium: it reloads, and keeps what was looked at."""

import time

import pytest
from page_pictures import SCHEMES, WIDTHS
from support.traces import HARM

from openrlhf_swap.evaluation.watch import page_of
from openrlhf_swap.files import read_rows, write_rows, write_text

STEP = {"text": "so\n", "end": 1, "answer_logprob": -0.5, "gain": 0.5, "local_gain": 0.5}
MEASURED = {"swap/accuracy": 0.5, "length/mean": 20.0, "length/target": 18.0, "reward": 0.5}
MEASURED["timing/step_total"] = 2.0
RELOAD = "document.readyState === 'complete' && typeof data === 'object' && data.reload"
TOP = "by('main').getBoundingClientRect().top"


@pytest.fixture
def run(tmp_path):
    """A run's folder after five steps, of which two have two groups of rollouts each."""
    write_text(tmp_path / "swap_config.json", "{}")
    write_rows(tmp_path / "metrics.jsonl", [{**MEASURED, "step": n} for n in range(1, 6)])
    (tmp_path / "rollouts").mkdir()
    for number in (1, 5):
        rows = []
        for group in (0, 1):
            common = {"prompt": f"Step {number}, problem {group} {HARM}", "answer": "5"}
            common |= {"response": "so\n</think> 5", "length": 6, "answer_logprob_0": -1.0}
            rows.append({**common, "reward": 1.0, "steps": [STEP | {"penalty": 0.1}]})
            rows.append({**common, "reward": 0.0, "steps": []})
        write_rows(tmp_path / "rollouts" / f"step_{number:06d}.jsonl", rows)
    return tmp_path


def test_a_reload_shows_what_is_new_and_keeps_the_place(browser, run):
    page = run / "watch.html"
    write_text(page, page_of(run, 5))  # seconds: enough for what follows
    browser.open(page, WIDTHS["phone"])
    browser.ask("by('benchmark').value = '1'; by('benchmark').dispatchEvent(new Event('change'))")
    browser.ask("by('next').click(); scrollTo(0, 90)")
    before = browser.ask(TOP)
    metrics = [*read_rows(run / "metrics.jsonl"), {**MEASURED, "step": 6, "swap/accuracy": 1.0}]
    write_rows(run / "metrics.jsonl", metrics)
    write_text(page, page_of(run, 0))  # the run is finished: this one does not reload
    for _ in range(300):
        time.sleep(0.1)
        if browser.ask(RELOAD) == 0:
            break
    assert browser.ask("data.summary.notes[0]").startswith("Step 6: accuracy 100.0%")
    assert browser.ask("[by('benchmark').value, position]") == ["1", 1]
    assert browser.ask(TOP) == pytest.approx(before, abs=2)
    assert "Step 1, problem 1" in browser.ask("by('main').textContent")
    assert browser.faults() == []


@pytest.mark.parametrize("width", WIDTHS.values())
@pytest.mark.parametrize("scheme", SCHEMES)
def test_it_is_readable_with_and_without_a_step(browser, run, tmp_path, width, scheme):
    write_text(run / "watch.html", page_of(run, 0))
    browser.open(run / "watch.html", width, scheme)
    assert browser.faults() == []
    assert browser.ask("document.querySelectorAll('.chart').length") == 4
    (tmp_path / "new").mkdir()
    write_text(tmp_path / "new" / "watch.html", page_of(tmp_path / "new", 0))
    browser.open(tmp_path / "new" / "watch.html", width, scheme)
    assert browser.faults() == []
    assert "No step has ended yet" in browser.ask("document.body.innerText")

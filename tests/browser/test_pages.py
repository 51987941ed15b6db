"""The page of traces in headless Chromium: what its keys and filters do, and how it looks."""

import pytest
from page_pictures import SCHEMES, WIDTHS
from support.traces import HARM, row, write_traces

from openrlhf_swap.config import SwapConfig
from openrlhf_swap.evaluation.page.contents import page_data, render
from openrlhf_swap.files import write_rows

ORDER = "shown.map(p => p.text.join('')[0])"


STEPS = [
    {"text": "tens: 3+8+0=11", "gain": 0.5, "need": 2.0, "paper": -1.0, "own": 3.0},
    {"text": "wait tens: 3+8+0=11", "gain": 0.0, "need": 0.0, "paper": -4.0, "own": -1.0},
]
IDEA = {"question": "What is 237 + 682? (919)", "about": ["Shorter.", "Gain: nats.", "Need: nats."]}
IDEA["columns"] = {name: name for name in ("gain", "need", "paper", "own")}
IDEA["sides"] = [
    {"title": "before training", "tokens": 20, "steps": STEPS},
    {"title": "after training", "tokens": 10, "steps": STEPS[:1]},
]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """The page of four problems: F(ind), W(hat is) became correct, H(ow much) wrong, one harms."""
    folder = tmp_path_factory.mktemp("page")
    data = page_data(write_traces(folder), SwapConfig(), 100) | {"idea": IDEA}
    table = {"header": ["", "base", "trained"], "rows": [["accuracy", "84.4%", "95.0%"]]}
    lines = {"all": [9.0, 5.0, 4.0], "target": [None, 4.0, 4.0]}
    curve = {"title": "tokens", "steps": [1, 2, 3], "lines": lines}
    data["summary"] = {"notes": ["a note"], "tables": [table], "charts": [curve]}
    page = folder / "page.html"
    page.write_text(render(data))
    return page


@pytest.fixture
def page(browser, file):
    """The page, freshly opened; a test ends with nothing asked for or complained about."""
    browser.open(file)
    yield browser
    assert browser.faults() == []


def choose(page, name, value):
    page.ask(f"by('{name}').value = {value!r}; by('{name}').dispatchEvent(new Event('change'))")


def test_keys_go_through_the_problems_and_their_steps(page):
    seen = []
    for key in ("ArrowLeft", "ArrowRight", "ArrowRight", "ArrowRight", "ArrowRight", "ArrowLeft"):
        page.press(key)
        seen.append(page.ask("position"))
    assert seen == [0, 1, 2, 3, 3, 2]
    assert page.ask("by('status').textContent") == "Problem 3 of 4"
    page.ask("show(0)")
    focused = "[...document.querySelectorAll('.step .text')].indexOf(document.activeElement)"
    seen = []
    for key in "kjjjk":
        page.press(key)
        seen.append(page.ask(focused))
    assert seen == [0, 1, 2, 3, 2]


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({}, ["F", "W", "H", "<"]),
        ({"show": "became correct"}, ["W"]),
        ({"show": "became wrong"}, ["H"]),
        # Means of 126.7, 180 and 40 tokens became 55, 20 and 15; the fourth has nothing to compare
        # with.
        ({"show": "length changed most"}, ["W", "F", "H"]),
        ({"show": "base: wrong"}, ["W"]),
        ({"show": "trained: correct", "longer": "60"}, ["F", "W"]),
        ({"show": "became wrong", "longer": "100"}, []),
    ],
)
def test_filters(page, filters, expected):
    for name, value in filters.items():
        choose(page, name, value)
    assert page.ask(ORDER) == expected
    status = f"Problem 1 of {len(expected)}" if expected else "No problem matches the filters."
    assert page.ask("by('status').textContent") == status


def test_formulas_are_drawn_and_text_that_means_harm_is_text(page):
    # Two lines.
    assert page.ask("document.querySelector('mfrac').getBoundingClientRect().height") > 20
    assert page.ask("document.querySelectorAll('math[display=block]').length") >= 2
    choose(page, "choice", "3")
    assert page.ask("document.title") == "Where the length went"
    assert page.ask("document.querySelectorAll('img, main script, [onerror]').length") == 0
    # The problem, a step, and what follows the thought.
    assert page.ask("by('main').textContent").count(HARM) == 3
    assert page.ask("document.querySelectorAll('math [style]').length") == 0


def test_of_a_long_response_only_what_is_looked_at_is_drawn(browser, tmp_path):
    rest = "</think>" + "wait " * 400_000
    write_rows(tmp_path / "rows.jsonl", [row("p", "3", True, {"a\n": 0.1}, rest, 10)])
    page = tmp_path / "page.html"
    page.write_text(render(page_data([tmp_path / "rows.jsonl"], SwapConfig(), 100)))
    browser.open(page)
    before = browser.ask("by('main').textContent.length")
    assert 0 < before < 200_000
    browser.ask("document.querySelector('.more').click()")
    assert browser.ask("by('main').textContent.length") > 5 * before
    assert browser.faults() == []


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_every_problem_at_both_widths_and_schemes(browser, file, width, scheme):
    browser.open(file, width, scheme)
    for _ in range(4):
        assert browser.faults() == []
        browser.press("ArrowRight")
    assert browser.ask("document.querySelectorAll('#idea .meter').length") == 12
    columns = "getComputedStyle(document.querySelector('.columns')).gridTemplateColumns"
    assert browser.ask(f"{columns}.split(' ').length") == (1 if width < 600 else 2)


def test_faults_are_found(browser, tmp_path):
    page = tmp_path / "bad.html"
    page.write_text(
        "<body style='background: #fff'><p style='color: #ccc; width: 3000px'>pale"
        "<img src='http://127.0.0.1:9/x.png'><script>console.error('oh')</script>"
    )
    browser.open(page)
    faults = "\n".join(browser.faults())
    for fault in ("asked for http://127.0.0.1:9/x.png", "oh", "wider than", "contrast 1.6: pale"):
        assert fault in faults

"""The pages show the examples as they are."""

import re
from runpy import run_path

import pytest
from support.paths import ROOT

EXAMPLES = ROOT / "examples"


@pytest.mark.parametrize(
    ("page", "file"),
    [
        ("grading.md", "verifiers/near.py"),
        ("custom_objective.md", "objectives/per_token.py"),
        ("agents.md", "agents/lookup.py"),
    ],
)
def test_a_page_shows_the_file(page, file):
    text = (ROOT / "docs" / "use" / page).read_text(encoding="utf-8")
    (shown,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert shown == (EXAMPLES / file).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("response", "score", "correct"),
    [("\\boxed{7}", 1.0, True), ("\\boxed{107}", 0.5, False), ("none", 0.0, False)],
)
def test_a_verifier_of_ones_own(response, score, correct):
    verify = run_path(str(EXAMPLES / "verifiers" / "near.py"))["verify"]
    verdict = verify("", "7", response, {})
    assert verdict.score == score
    assert bool(verdict.correct) == correct

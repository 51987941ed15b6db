"""Evaluations made by hand."""

import json
import shutil

import pytest
from support.paths import POLICY
from support.traces import row

from openrlhf_swap.data.benchmarks import Problem
from openrlhf_swap.evaluation.run import grade_file
from openrlhf_swap.evaluation.samples import SETTINGS, SampleFiles, read_settings, settings_path
from openrlhf_swap.files import write_rows

# By evaluation: problem, number, text and tokens.
SAMPLES = {
    "base": [
        ("p", 0, "a</think>\\boxed{2}", 10),
        ("p", 1, "a</think>\\boxed{3}", 30),
        ("q", 0, "no answer \\boxed{4}", 50),
        ("q", 1, "I was cut off", 70),
    ],
    "short": [
        ("p", 0, "a</think>\\boxed{2}", 5),
        ("p", 1, "a</think>\\boxed{2}", 5),
        ("q", 0, "b</think>\\boxed{4.0}", 15),
        ("q", 1, "b</think>\\boxed{4.0}", 15),
    ],
}


@pytest.fixture(scope="session")
def graded(tmp_path_factory, grader):
    """The evaluations above, graded once."""
    root = tmp_path_factory.mktemp("graded")
    problems = [Problem("p", "1+1", "2"), Problem("q", "2+2", "4")]
    settings = {**dict.fromkeys(SETTINGS, ""), "suffix": " Think.", "end_of_thought": "</think>"}
    for name, samples in SAMPLES.items():
        files = SampleFiles(root / name, "own")
        files.folder.mkdir()
        rows = []
        for problem, number, text, tokens in samples:
            counts = {"tokens": tokens, "thinking_tokens": tokens - 2, "truncated": "cut" in text}
            rows.append({"id": problem, "sample": number, "text": text, **counts})
        write_rows(files.path("samples"), rows)
        grade_file(files, problems, grader, "</think>")
        settings_path(files.folder).write_text(json.dumps(settings))
    return root


@pytest.fixture
def evaluated(graded, tmp_path):
    """Two evaluations of two problems with two samples each, made by hand: a copy for each test."""
    return shutil.copytree(graded, tmp_path, dirs_exist_ok=True)


@pytest.fixture
def budgets(evaluated):
    """The folders of two budgets of the thought, 64 and 8 tokens, with the samples above."""
    folders = []
    for budget, name in ((64, "short"), (8, "base")):
        folder = evaluated / "model" / f"budget_{budget}"
        shutil.copytree(evaluated / name, folder)
        settings = {**read_settings(folder), "thought_budget": budget}
        settings_path(folder).write_text(json.dumps(settings))
        folders.append(folder)
    return folders


@pytest.fixture
def asked(evaluated):
    """The first of them, with its problems and the settings that it is sampled by again."""
    folder = evaluated / "base"
    rows = [
        {"id": "p", "problem": "1 + 1", "answer": "2"},
        {"id": "q", "problem": "2 + 2", "answer": "4"},
    ]
    write_rows(SampleFiles(folder, "own").path("problems"), rows)
    settings = {"model": str(POLICY), "seed": 7, "temperature": 0.6, "top_p": 1.0, "max_tokens": 90}
    settings_path(folder).write_text(json.dumps({**read_settings(folder), **settings}))
    return folder


@pytest.fixture
def scored():
    """Makes a line of `openrlhf_swap.score`: steps of ten tokens with these gains, from -3 on."""

    def make(problem, correct, gains, tokens):
        steps = {f"step {k}\n": gain for k, gain in enumerate(gains)}
        return row(problem, "2", correct, steps, "</think>2", tokens, first=-3.0)

    return make

"""Evaluations made by hand."""

import json
import shutil

import pytest
from support.paths import POLICY

from openrlhf_swap.data.benchmarks import Problem
from openrlhf_swap.evaluation.run import grade_file
from openrlhf_swap.evaluation.samples import SETTINGS, read_settings, rows_path, settings_path
from openrlhf_swap.files import write_rows
from openrlhf_swap.rewards import Grader


@pytest.fixture(scope="session")
def graded(tmp_path_factory):
    """The evaluations below, graded once."""
    folder_of_all = tmp_path_factory.mktemp("graded")
    problems = [Problem("p", "1+1", "2"), Problem("q", "2+2", "4")]
    short = {"p": ("a</think>\\boxed{2}", 5), "q": ("b</think>\\boxed{4.0}", 15)}
    texts = {
        "base": [
            ("p", 0, "a</think>\\boxed{2}", 10),
            ("p", 1, "a</think>\\boxed{3}", 30),
            ("q", 0, "no answer \\boxed{4}", 50),
            ("q", 1, "I was cut off", 70),
        ],
        "short": [(i, n, *short[i]) for i in short for n in (0, 1)],
    }
    settings = {**dict.fromkeys(SETTINGS, ""), "suffix": " Think.", "end_of_thought": "</think>"}
    grader = Grader()
    for name, rows in texts.items():
        folder = folder_of_all / name
        folder.mkdir()
        samples = [
            {"id": i, "sample": n, "text": text, "tokens": tokens, "thinking_tokens": tokens - 2}
            | {"truncated": text == "I was cut off"}
            for i, n, text, tokens in rows
        ]
        write_rows(rows_path("samples", folder, "own"), samples)
        grade_file(folder, "own", problems, grader, "</think>")
        settings_path(folder).write_text(json.dumps(settings))
    grader.close()
    return folder_of_all


@pytest.fixture
def evaluated(graded, tmp_path):
    """Two evaluations of two problems with two samples each, made by hand: a copy for each test."""
    return shutil.copytree(graded, tmp_path, dirs_exist_ok=True)


@pytest.fixture
def asked(evaluated):
    """The first of them, with its problems and the settings that it is sampled by again."""
    folder = evaluated / "base"
    rows = [
        {"id": "p", "problem": "1 + 1", "answer": "2"},
        {"id": "q", "problem": "2 + 2", "answer": "4"},
    ]
    write_rows(rows_path("problems", folder, "own"), rows)
    settings = {"model": str(POLICY), "seed": 7, "temperature": 0.6, "top_p": 1.0, "max_tokens": 90}
    settings_path(folder).write_text(json.dumps({**read_settings(folder), **settings}))
    return folder


@pytest.fixture
def scored():
    """Makes a line of `openrlhf_swap.score`: steps of ten tokens with these gains."""

    def make(problem, correct, gains, tokens):
        steps = [f"step {k}\n" for k in range(len(gains))]
        return {
            **{
                "benchmark": "own",
                "problem": problem,
                "answer": "2",
                "response": "".join(steps) + "</think>2",
            },
            **{
                "correct": correct,
                "tokens": tokens,
                "gains": gains,
                "local_gains": gains,
                "steps": steps,
            },
            "step_ends": [10 * k + 9 for k in range(len(gains))],
            "answer_logprobs": [-3.0 + sum(gains[:k]) for k in range(len(gains) + 1)],
        }

    return make

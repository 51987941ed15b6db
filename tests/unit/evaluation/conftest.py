"""Evaluations made by hand."""

import json
import shutil

import pytest

from openrlhf_swap.data.benchmarks import Problem
from openrlhf_swap.evaluation.run import grade_file
from openrlhf_swap.evaluation.samples import SETTINGS, rows_path
from openrlhf_swap.files import write_rows
from openrlhf_swap.rewards import Grader


@pytest.fixture(scope="session")
def graded(tmp_path_factory):
    """The evaluations below, graded once."""
    folder_of_all = tmp_path_factory.mktemp("graded")
    problems = [Problem("p", "1+1", "2"), Problem("q", "2+2", "4")]
    texts = {
        "base": [
            ("p", 0, "a</think>\\boxed{2}", 10),
            ("p", 1, "a</think>\\boxed{3}", 30),
            ("q", 0, "no answer \\boxed{4}", 50),
            ("q", 1, "I was cut off", 70),
        ],
        "short": [
            (i, n, text, tokens)
            for i, text, tokens in (("p", "a</think>\\boxed{2}", 5), ("q", "b</think>\\boxed{4.0}", 15))
            for n in (0, 1)
        ],
    }
    grader = Grader()
    for name, rows in texts.items():
        folder = folder_of_all / name
        folder.mkdir()
        samples = [
            {
                "id": i,
                "sample": n,
                "text": text,
                "tokens": t,
                "thinking_tokens": t - 2,
                "truncated": text == "I was cut off",
            }
            for i, n, text, t in rows
        ]
        write_rows(rows_path("samples", folder, "own"), samples)
        grade_file(folder, "own", problems, grader, "</think>")
        (folder / "run.json").write_text(
            json.dumps({setting: "" for setting in SETTINGS} | {"suffix": " Think.", "end_of_thought": "</think>"})
        )
    grader.close()
    return folder_of_all


@pytest.fixture
def evaluated(graded, tmp_path):
    """Two evaluations of two problems with two samples each, made by hand: a copy for each test."""
    return shutil.copytree(graded, tmp_path, dirs_exist_ok=True)


@pytest.fixture
def scored():
    """Makes a line of `openrlhf_swap.score`: steps of ten tokens with these gains."""

    def make(problem, correct, gains, tokens, benchmark="own"):
        return {
            "benchmark": benchmark,
            "problem": problem,
            "answer": "2",
            "response": "".join(f"step {k}\n" for k in range(len(gains))) + "</think>2",
            "correct": correct,
            "tokens": tokens,
            "step_ends": [10 * k + 9 for k in range(len(gains))],
            "answer_logprobs": [-3.0 + sum(gains[:k]) for k in range(len(gains) + 1)],
            "gains": gains,
            "local_gains": gains,
            "steps": [f"step {k}\n" for k in range(len(gains))],
        }

    return make

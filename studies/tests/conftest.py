import json
import os

import pytest
from support.paths import POLICY

from openrlhf_swap.data.benchmarks import Problem
from openrlhf_swap.evaluation.run import grade_file
from openrlhf_swap.evaluation.samples import SETTINGS, SampleFiles, settings_path
from openrlhf_swap.files import write_rows
from openrlhf_swap.rewards import Grader
from openrlhf_swap.runs.provenance import fingerprint

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@pytest.fixture
def stats():
    """scipy.stats, of studies/requirements.txt."""
    return pytest.importorskip("scipy.stats", reason="pip install -r studies/requirements.txt")


@pytest.fixture(scope="session")
def tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(POLICY)


@pytest.fixture
def asked(tmp_path):
    """An evaluation of two problems with two samples each, made by hand."""
    samples = [("p", 0, "a</think>\\boxed{2}", 10), ("p", 1, "a</think>\\boxed{3}", 30)]
    samples += [("q", 0, "no answer \\boxed{4}", 50), ("q", 1, "I was cut off", 70)]
    rows = []
    for problem, number, text, tokens in samples:
        counts = {"tokens": tokens, "thinking_tokens": tokens - 2, "truncated": "cut" in text}
        rows.append({"id": problem, "sample": number, "text": text, **counts})
    folder = tmp_path / "base"
    folder.mkdir()
    files = SampleFiles(folder, "own")
    write_rows(files.path("samples"), rows)
    grader = Grader()
    grade_file(files, [Problem("p", "1+1", "2"), Problem("q", "2+2", "4")], grader, "</think>")
    grader.close()
    problems = [("p", "1 + 1", "2"), ("q", "2 + 2", "4")]
    problem_rows = [{"id": name, "problem": text, "answer": gold} for name, text, gold in problems]
    write_rows(files.path("problems"), problem_rows)
    settings = {**dict.fromkeys(SETTINGS, ""), "suffix": " Think.", "end_of_thought": "</think>"}
    settings |= {"model": str(POLICY), "seed": 7, "temperature": 0.6, "top_p": 1.0}
    settings["max_tokens"] = 90
    settings |= {"inputs": {"weights": [fingerprint(str(POLICY))]}, "graders": {}}
    settings_path(folder).write_text(json.dumps(settings))
    return folder

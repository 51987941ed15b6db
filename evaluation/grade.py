"""Grade samples with the grader that training uses; nothing is generated again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from tqdm import tqdm

from evaluation.benchmarks import Problem
from evaluation.samples import drop_unfinished_line, grades_path, key_of, read_rows, samples_path
from openrlhf_swap.answers import last_boxed, stated_answer, strip_answer, text_after_thought
from openrlhf_swap.rewards import Grader

AT_A_TIME = 512


def grade_file(folder: Path, benchmark: str, problems: Sequence[Problem], grader: Grader, again: bool = False) -> None:
    """Grade the samples of a benchmark that have no grade yet.

    Args:
        folder: of the evaluation.
        benchmark: its name in the files.
        problems: with the known answers.
        grader: does the work.
        again: throw the grades away first.
    """
    answers = {problem.id: problem.answer for problem in problems}
    path = grades_path(folder, benchmark)
    if again:
        path.unlink(missing_ok=True)
    drop_unfinished_line(path)
    done = {key_of(row) for row in read_rows(path)}
    left = (
        row for row in read_rows(samples_path(folder, benchmark)) if key_of(row) not in done and row["id"] in answers
    )
    with open(path, "a", encoding="utf-8") as file, tqdm(desc=f"grading {benchmark}", unit="sample") as bar:
        while rows := list(islice(left, AT_A_TIME)):
            grades = grader.grade_many([(row["text"], answers[row["id"]]) for row in rows])
            for row, grade in zip(rows, grades, strict=True):
                file.write(json.dumps(_line(row, grade.correct, grade.status), ensure_ascii=False) + "\n")
            bar.update(len(rows))


def _line(row: dict[str, Any], correct: bool, status: str) -> dict[str, Any]:
    """A grade, and the answers that two ways of extraction find: after the thought, and in the whole response.

    The first is what the grader takes for the stated answer, and what is voted on.
    """
    stated, boxed = stated_answer(text_after_thought(row["text"])), last_boxed(row["text"])
    return {
        "id": row["id"],
        "sample": row["sample"],
        "correct": correct,
        "status": status,
        "answer": None if stated is None else strip_answer(stated),
        "answer_anywhere": None if boxed is None else strip_answer(boxed),
    }

"""Grade samples with the grader that training uses, without generating anything."""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from tqdm import tqdm

from openrlhf_swap.data.benchmarks import Problem
from openrlhf_swap.evaluation.samples import grades_path, key_of, samples_path
from openrlhf_swap.files import Row, appending, read_rows
from openrlhf_swap.rewards import Grade, Grader
from openrlhf_swap.rewards.answers import strip_answer
from openrlhf_swap.rewards.statements import last_boxed, stated_answer, text_after_thought

AT_A_TIME = 512


def grade_file(folder: Path, benchmark: str, problems: Sequence[Problem], grader: Grader, end_of_thought: str) -> None:
    """Grade the samples of a benchmark that have no grade yet.

    Grades the text after the first `end_of_thought`, or the whole response if there is none.
    """
    by_id = {problem.id: problem for problem in problems}
    path = grades_path(folder, benchmark)
    done = {key_of(row) for row in read_rows(path)}
    rows = read_rows(samples_path(folder, benchmark))
    left = (row for row in rows if key_of(row) not in done and row["id"] in by_id)
    with appending(path) as append, tqdm(desc=f"[evaluation] grading {benchmark}", unit="sample", leave=False) as bar:
        while part := list(islice(left, AT_A_TIME)):
            grades = grader.grade_many([(row["text"], by_id[row["id"]].reference) for row in part], end_of_thought)
            for row, grade in zip(part, grades, strict=True):
                append(_line(row, grade, end_of_thought))
            bar.update(len(part))


def _line(row: Row, grade: Grade, end_of_thought: str) -> Row:
    """A grade, with the answers extracted in two ways: after the thought, and from the whole response.

    The first is what the grader takes as the stated answer, and what the majority vote counts. A verifier's own score
    and reason stand beside them.
    """
    texts = stated_answer(text_after_thought(row["text"], end_of_thought)), last_boxed(row["text"])
    stated, boxed = (None if text is None else strip_answer(text) for text in texts)
    line = {"id": row["id"], "sample": row["sample"], "correct": grade.correct, "status": grade.status}
    line |= {"answer": stated if grade.stated is None else grade.stated, "answer_anywhere": boxed}
    line |= {"score": grade.score} if grade.score != float(grade.correct) else {}
    return line | ({"why": grade.why} if grade.why else {})

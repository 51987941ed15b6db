"""The table of cases, by the real graders."""

import json

from studies.graders import cases

ROWS = {
    "grading": [
        {"kind": "units", "answer": "7", "response": "\\boxed{7\\text{ cm}}", "expected": True},
        {"kind": "units", "answer": "7 m", "response": "\\boxed{7 cm}", "expected": False},
        {"kind": "doubtful", "answer": "7", "response": "\\boxed{8}", "expected": True},
        {"kind": "doubtful", "answer": "7", "response": "It is 7.", "expected": False},
    ],
    "choices": [{"kind": "letters", "answer": "B", "response": "Answer: B", "correct": True}],
    "suite": [{"gold": "\\frac12", "pred": "0.5", "expected": True}],
    "thoughts": [
        {"answer": "7", "response": "so it is 7", "correct": False},
        {"answer": "7", "response": "so</think>it is 7", "correct": True},
    ],
    "problems": [{"problem": "3 + 4?", "answer": "7"}],
}


def test_cases_are_counted_by_kind_and_compared_with_kept_verdicts(tmp_path, capsys):
    folder = tmp_path / "cases"
    folder.mkdir()
    for name, rows in ROWS.items():
        lines = [json.dumps(row) + "\n" for row in rows]
        (folder / f"{name}.jsonl").write_text("".join(lines))
    kept = tmp_path / "kept.jsonl"
    cases.main([str(folder), "--keep", str(kept)])
    first = capsys.readouterr().out
    rows = [line.rsplit(maxsplit=3) for line in first.splitlines()]
    counts = {row[0].strip(): [*map(int, row[1:])] for row in rows if row[-1].isdigit()}
    assert counts == {  # cases, right, credited wrongly
        "letters": [1, 1, 0],
        "units": [2, 2, 0],
        "doubtful": [2, 0, 1],
        "suite": [1, 1, 0],
        "thoughts": [2, 2, 0],
        "all": [8, 6, 1],
    }
    assert "problems.jsonl: no gradings" in first
    assert "refused: doubtful: '7' for" in first and "credited: doubtful: '7' for" in first
    verdicts = [json.loads(line) for line in kept.read_text().splitlines()]
    verdicts[3]["correct"] = not verdicts[3]["correct"]
    kept.write_text("".join(json.dumps(row) + "\n" for row in verdicts[1:]))
    cases.main([str(folder), "--before", str(kept)])
    again = capsys.readouterr().out
    assert "right before" in again and again.count("was right before") == 1
    assert "1 of the cases are not in" in again

"""Benchmarks beyond mathematics: a few rows of each kind, as their files have them."""

import json

import pytest
from support.confined import confined

from openrlhf_swap.data.benchmarks import CHOOSE, gpqa, load_benchmark
from openrlhf_swap.errors import ConfigError, DataError
from openrlhf_swap.evaluation.measures import measure_benchmark
from openrlhf_swap.evaluation.run import grade_file, load_problems, missing_samples, parse
from openrlhf_swap.evaluation.samples import rows_path
from openrlhf_swap.files import read_rows, write_rows
from openrlhf_swap.rewards import Grader
from openrlhf_swap.rewards.answers import SUFFIX

GPQA = {
    "Question": "Which city is the capital of Norway?\n",
    "Correct Answer": "Oslo\n",
    "Incorrect Answer 1": "Bergen",
    "Incorrect Answer 2": "Rome",
    "Incorrect Answer 3": "Paris",
    "Record ID": "rec1",
}
MMLU_PRO = {"question_id": 7, "question": "1 + 1?", "options": ["1", "2", "3"], "answer": "B", "answer_index": 1}


@pytest.fixture
def own_file(tmp_path):
    def write(*rows, name="own.jsonl"):
        write_rows(tmp_path / name, rows)
        return str(tmp_path / name)

    return write


def test_gpqa_has_its_options_in_a_drawn_order(own_file):
    (problem,) = load_benchmark(own_file(GPQA))
    options = problem.metadata["options"]
    assert sorted(options) == ["Bergen", "Oslo", "Paris", "Rome"]
    assert options["ABCD".index(problem.answer)] == "Oslo"
    listing = "\n".join(f"({letter}) {option}" for letter, option in zip("ABCD", options, strict=True))
    assert problem.problem == f"Which city is the capital of Norway?\n\n{listing}\n\n{CHOOSE}"
    assert (problem.grader, problem.instructed) == ("multiple_choice", True)
    # The same in every run, and not in the same place for every question.
    assert load_benchmark(own_file(GPQA)) == [problem]
    assert len({gpqa("", {**GPQA, "Question": f"{n}"}).answer for n in range(20)}) == 4


def test_mmlu_pro(own_file):
    (problem,) = load_benchmark(own_file(MMLU_PRO))
    assert problem.problem == f"1 + 1?\n\n(A) 1\n(B) 2\n(C) 3\n\n{CHOOSE}"
    assert (problem.answer, problem.grader) == ("B", "multiple_choice")


def test_incomplete_copies_are_refused(tmp_path, own_file):
    own_file(GPQA, name="gpqa_diamond.jsonl")
    with pytest.raises(DataError, match="GPQA Diamond has 1 problems; it should have 198"):
        load_benchmark("gpqa_diamond", tmp_path)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({**GPQA, "Correct Answer": None}, "Correct Answer is 'None', which is not text"),
        ({**GPQA, "Incorrect Answer 3": " "}, "Incorrect Answer 3 is ' ', which is not text"),
        ({**GPQA, "Question": ""}, "Question is '', which is not text"),
        ({**MMLU_PRO, "options": "123"}, "options is '123', which is not a list of texts"),
        ({**MMLU_PRO, "options": [1, 2]}, "options is '[1, 2]', which is not a list of texts"),
        ({**MMLU_PRO, "answer": 1}, "answer is '1', which is not text"),
        ({**MMLU_PRO, "answer": "D"}, 'an answer that is no option\'s letter: "D"; correct the row'),
        ({**MMLU_PRO, "answer": "2"}, 'an answer that is not a letter: "2"; correct the row'),
    ],
)
def test_a_faulty_row_is_named(own_file, row, message):
    good = next(kind for kind in (GPQA, MMLU_PRO) if kind.keys() >= row.keys())
    path = own_file(good, row)
    with pytest.raises(DataError) as raised:
        load_benchmark(path)
    assert str(raised.value).startswith(f"{path}, row 2") and message in str(raised.value)


def test_problems_of_two_graders_belong_into_two_files(own_file):
    plain = {"problem": "1 + 1?", "answer": "2"}
    path = own_file({**GPQA, "id": 1}, {**MMLU_PRO, "id": 2}, {**plain, "id": 3})
    with pytest.raises(DataError) as raised:
        load_benchmark(path)
    expected = "the graders multiple_choice (row 1) and math (row 3); put them into one file each"
    assert str(raised.value) == f"{path} has problems for {expected}"


def evaluate(folder, path, texts, *flags):
    """Grade samples as an evaluation does; `texts` has one for each problem."""
    args = parse(["--model", "m", "--output", str(folder), "--benchmarks", path, "--samples", "1", *flags])
    ((name, problems),) = load_problems(args).items()
    requests = missing_samples(folder, {name: problems}, 1, SUFFIX)
    counts = {"tokens": 9, "thinking_tokens": 5, "truncated": False}
    rows = [{"id": p.id, "sample": 0, "text": text, **counts} for p, text in zip(problems, texts, strict=True)]
    write_rows(rows_path("samples", folder, name), rows)
    write_rows(rows_path("problems", folder, name), [{"id": p.id, "grader": p.grader} for p in problems])
    grader = Grader(processes=1, verifier=problems[0].grader)
    if args.grade_again:
        rows_path("grades", folder, name).unlink()
    grade_file(folder, name, problems, grader, "</think>")
    grader.close()
    return requests, list(read_rows(rows_path("grades", folder, name))), measure_benchmark(folder, name).values


def test_choices_are_evaluated_by_their_letters(tmp_path, own_file):
    path = own_file(GPQA, MMLU_PRO)
    correct = load_benchmark(path)[0].answer
    texts = [f"hm</think>The answer is ({correct}).", r"</think>\boxed{C}"]
    requests, grades, values = evaluate(tmp_path, path, texts)
    assert not any(request.text.endswith(SUFFIX) for request in requests)  # they have an instruction of their own
    assert [(grade["correct"], grade["answer"]) for grade in grades] == [(True, correct), (False, "C")]
    assert values["accuracy"] == 0.5 and "score" not in values


@confined
def test_code_is_evaluated_by_its_tests(tmp_path, own_file):
    program = "```python\nprint(2 * int(input()) if {} else 0)\n```"
    texts = [program.format("True"), program.format("int(input) < 3")]
    texts[1] = "```python\nprint(2)\n```"
    tests = json.dumps([{"input": "1\n", "output": "2"}, {"input": "4", "output": "8"}])
    path = own_file(*[{"problem": "Double the number.", "answer": tests}] * 2)
    _, grades, values = evaluate(tmp_path, path, texts, "--swap.grader", "unit_tests")
    assert [grade["correct"] for grade in grades] == [True, False]
    assert (grades[1]["score"], grades[1]["why"]) == (0.5, "1 of 2 tests passed")
    assert (values["accuracy"], values["score"]) == (0.5, 0.75)


def test_a_file_of_ones_own_takes_a_grader(tmp_path, own_file):
    path = own_file({"problem": "Near 42?", "answer": 42, "tolerance": 1}, {"problem": "7?", "answer": "7"})
    flags = ["--swap.grader", "support.verifiers:nearness"]
    requests, grades, values = evaluate(tmp_path, path, ["it is 41", "it is 10"], *flags)
    assert requests[0].text.endswith(SUFFIX)
    assert [(grade["correct"], grade.get("score"), grade["why"]) for grade in grades] == [
        (True, 0.5, "1 off"),
        (False, 0.25, "3 off"),
    ]
    assert (values["accuracy"], values["score"]) == (0.5, 0.375)
    # Grades of one grader are not mixed with those of another.
    with pytest.raises(ConfigError, match=r"--benchmarks has own, .* has another grader than .* add --grade-again"):
        evaluate(tmp_path, path, ["41", "7"])
    assert evaluate(tmp_path, path, ["41", "7"], "--grade-again")[2]["accuracy"] == 0.5
    with pytest.raises(ConfigError, match=r"--swap.grader is support.verifiers:crashes, which fails on an empty"):
        evaluate(tmp_path / "new", path, ["", ""], "--swap.grader", "support.verifiers:crashes")

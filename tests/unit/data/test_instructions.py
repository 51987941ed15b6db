"""Instructions around problems: found, ignored in the comparison with benchmarks, and no reason to lose a problem."""

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.problems import DIE, local_benchmarks

from openrlhf_swap.data.benchmarks import Problem
from openrlhf_swap.data.clean import SourceRow, find_reasons
from openrlhf_swap.data.instructions import Instruction, without_instructions
from openrlhf_swap.data.near_duplicates import BenchmarkIndex
from openrlhf_swap.prepare import main
from openrlhf_swap.rewards.verifiers import Reference

# As the files of verl's examples and of DAPO's authors have them.
VERL = "{} Let's think step by step and output the final answer within \\boxed{{}}."
DAPO = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem.\n\n{}\n\n"
    'Remember to put your answer on its own line after "Answer:".'
)
SUBJECTS = ["apples", "pears", "plums", "figs", "nuts", "limes", "dates", "peas", "beans", "leeks"]
PROBLEMS = [f"{12 + n} {kind} hang in a tree, {n} fall. Count those {kind}" for n, kind in enumerate(SUBJECTS)]


def as_rows(problems):
    return [SourceRow(n, {}, [{"role": "user", "content": text}], Reference("1")) for n, text in enumerate(problems)]


def test_the_words_around_all_problems_are_found():
    bare, instructions = without_instructions([DAPO.format(problem) for problem in PROBLEMS])
    assert bare == PROBLEMS
    before, after = DAPO.split("{}")
    assert [(found.place, found.count) for found in instructions] == [("end", 10), ("begin", 10)]
    assert [" ".join(found.words) for found in instructions] == [after.strip(), before.strip()]


def test_a_mixture_of_instructions():
    """Three rows of ten without any, four with verl's, three with another one that ends with the same word."""
    other = "{} Put the answer in \\boxed{{}}."
    forms = ["{}"] * 3 + [VERL] * 4 + [other] * 3
    bare, instructions = without_instructions([form.format(text) for form, text in zip(forms, PROBLEMS, strict=True)])
    assert bare == PROBLEMS
    assert [(found.place, found.count) for found in instructions] == [("end", 4), ("end", 3)]


def test_too_few_words_or_rows_are_no_instruction():
    assert without_instructions(PROBLEMS) == (PROBLEMS, [])
    assert without_instructions([]) == ([], [])
    twice = [*PROBLEMS[2:], *(VERL.format(problem) for problem in PROBLEMS[:2])]
    assert without_instructions(twice) == (twice, [])


@given(st.lists(st.text(st.sampled_from("ab \n"), max_size=40), max_size=12))
def test_only_words_at_the_ends_are_taken_off(problems):
    bare, instructions = without_instructions(problems)
    assert len(bare) == len(problems)
    for problem, rest in zip(problems, bare, strict=True):
        assert rest in " ".join(problem.split())
        if not instructions:
            assert rest.split() == problem.split()
    for found in instructions:
        assert len(found.words) >= 4
        assert 3 <= found.count <= len(problems)


@pytest.mark.parametrize("form", [VERL, DAPO], ids=["verl", "DAPO"])
def test_a_copy_of_a_benchmark_problem_is_found_in_its_instruction(form):
    index = BenchmarkIndex({"math500": [Problem("m/1", "What is $3 + 4$?", "7")], "aime24": [Problem("a", DIE, "1")]})
    problems = ["What is $3+4$?", *PROBLEMS, DIE, DIE.replace("die", "cube")]
    reasons, instructions = find_reasons(as_rows(form.format(problem) for problem in problems), index)
    assert [reason and reason["benchmark_id"] for reason in reasons] == ["m/1", *[None] * 10, "a", "a"]
    assert {found.count for found in instructions} == {13}
    assert isinstance(instructions[0], Instruction)


def test_a_benchmark_problem_with_words_that_many_problems_share_is_still_found():
    """What all problems of this set end with is also the end of a benchmark's problem."""
    ending = " Express the answer as a common fraction."
    index = BenchmarkIndex({"math500": [Problem("m/1", PROBLEMS[0] + ending, "1/2")]})
    reasons, _ = find_reasons(as_rows(problem + ending for problem in PROBLEMS), index)
    assert reasons[0]["benchmark_id"] == "m/1"
    assert reasons[1:] == [None] * 9


def test_prepare_names_the_instruction_and_keeps_it(tmp_path, capsys):
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    rows = [{"problem": VERL.format(problem), "answer": "1"} for problem in PROBLEMS]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    main(["--input", str(source), "--output", str(output), "--no-benchmarks", "--suffix", ""])
    assert "10 problems end with \"Let's think step by step and" in capsys.readouterr().out
    assert [json.loads(line) for line in output.read_text().splitlines()] == rows


@pytest.mark.skipif("BENCHMARK_DATA" not in os.environ, reason="BENCHMARK_DATA names no folder with local copies")
@pytest.mark.parametrize("form", [VERL, DAPO], ids=["verl", "DAPO"])
def test_every_benchmark_problem_is_found_in_an_instruction(form):
    benchmarks = local_benchmarks()
    problems = [problem.problem for found in benchmarks.values() for problem in found]
    reasons, _ = find_reasons(as_rows(form.format(problem) for problem in problems), BenchmarkIndex(benchmarks))
    assert all(reason and "benchmark" in reason for reason in reasons)

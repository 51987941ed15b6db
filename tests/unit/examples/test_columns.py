"""The world in which gains are visible: its problems, traces and labels."""

import random
from itertools import islice

import columns
import pytest
from columns import (
    DIFFERS,
    TABLES,
    Columns,
    from_question,
    known,
    label_lines,
    overthink,
    shortest_lines,
)
from gates import open_bench
from support.paths import WORLDS
from world import CLOSE, EOS, load, rendered, thought_lines

# Column 1 gives C, H, E, D and G the default and B a 7; column 2 gives its own letters others.
ALL_C = Columns("CCCCCC")


def test_a_problem_by_hand():
    assert {letter: TABLES[0][letter] for letter in "CHEDGFBIJA"} == dict(
        zip("CHEDGFBIJA", "0000037258", strict=True)
    )
    problem = from_question("Fill B1C2C3C4C5C6")
    assert (problem.letters, problem.answer[0], len(problem.answer)) == ("BCCCCC", "7", 6)
    lines = shortest_lines(problem)
    assert (lines[0], len(lines)) == ("B1>7\n", columns.level(problem.question))
    # A column without its line has the default, whatever it is.
    assert known(problem, lines) == problem.answer and known(problem, []) == "000000"
    assert known(problem, lines[:1]) == "700000"
    with pytest.raises(ValueError, match="no question"):
        from_question("Fill B1")


def test_the_share_of_each_column_that_differs_from_the_default():
    drawn = list(islice(columns.problems(3), 4000))
    assert len(set(drawn)) == 4000
    for column, share in enumerate(DIFFERS):
        found = sum(problem.answer[column] != "0" for problem in drawn) / len(drawn)
        # Problems are distinct, of which there are few with defaults only: rare columns are met
        # more often.
        assert found == pytest.approx(share, abs=0.04)


def test_labels_and_traces():
    question = ALL_C.question
    lines = shortest_lines(ALL_C)
    response = (
        lines[0]
        + "wait "
        + lines[0]
        + "let me verify\n"
        + lines[0]
        + "D2>0\n"
        + "".join(lines[1:])
        + CLOSE
        + "}"
    )
    assert label_lines(question, response) == ["essential"] + ["redundant"] * 4 + ["essential"] * 5
    for seed, problem in enumerate(islice(columns.problems(5), 100)):
        trace = overthink(problem, random.Random(seed))
        labels = label_lines(problem.question, "".join(trace))
        assert len(labels) == len(trace) <= columns.LINES and labels.count("essential") <= 6
        given, taught = columns.supervised_row(problem, random.Random(seed), probe_share=1.0)
        assert given.endswith(CLOSE) and taught.endswith("}" + EOS)
        assert taught[:6] == known(
            problem, [line + "\n" for line in thought_lines(given.split("<think>\n")[1])]
        )


def test_leaving_out_a_line_costs_its_probability():
    """The kept policy answers what stands in the thought, and the default for a column without a
    line.
    """
    bench = open_bench(load("columns"), WORLDS / "policies" / "columns", 60)

    def accuracy(without):
        thoughts = [shortest_lines(problem) for problem in bench.problems]
        kept = [
            [line for column, line in enumerate(lines, 1) if column != without]
            for lines in thoughts
        ]
        prompts = [
            rendered(p.question) + "".join(k) + CLOSE
            for p, k in zip(bench.problems, kept, strict=True)
        ]
        answers = bench.decoder.respond(prompts, max_tokens=8)
        pairs = zip(bench.problems, map(bench.decoder.tokenizer.decode, answers), strict=True)
        return sum(text.startswith(problem.answer + "}") for problem, text in pairs) / len(
            bench.problems
        )

    whole = accuracy(without=None)
    assert whole > 0.9
    for column in (1, 3):
        defaults = sum(problem.answer[column - 1] == "0" for problem in bench.problems) / len(
            bench.problems
        )
        assert accuracy(without=column) == pytest.approx(whole * defaults, abs=0.12)

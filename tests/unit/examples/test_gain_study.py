"""What the studies of gains and of guesses count, by hand."""

import json
import re

import guesses
import pytest
import spread
import torch
from decomposition import results_of
from gain_study import (
    discounted,
    local,
    needed_steps,
    paid,
    position,
    separation,
    study,
    to_go,
    window,
)
from support.tables import cells_of

from openrlhf_swap.errors import DataError
from openrlhf_swap.files import write_rows

SCORES = torch.tensor([-5.0, -5.0, -1.0, -2.0])  # a preparation, what uses it, and a step back


def test_gains_by_hand():
    assert local(SCORES).tolist() == [0.0, 4.0, -1.0]
    assert window(SCORES, 1).tolist() == [0.0, 4.0, -1.0]
    assert window(SCORES, 2).tolist() == [2.0, 1.5, -0.5]
    assert window(SCORES, 9)[0] == pytest.approx(3 / 9)
    assert discounted(SCORES, 0.5).tolist() == [1.75, 3.5, -1.0]
    assert discounted(SCORES, 0.0).tolist() == local(SCORES).tolist()
    assert to_go(SCORES).tolist() == [4.0, 4.0, -1.0]
    assert position(SCORES).tolist() == [0.0, -1.0, -2.0]


def test_separation_and_share_by_hand():
    needed = torch.tensor([True, False, True, False])
    assert separation(torch.tensor([1.0, 0.0, 3.0, 2.0]), needed) == 0.75
    assert separation(torch.zeros(4), needed) == 0.5
    assert paid(torch.zeros(4), needed, 1.0) == pytest.approx(0.5)
    weights = torch.tensor([-1.0, 0.0, -3.0, -2.0]).exp()
    expected = (weights[needed].sum() / weights.sum()).item()
    assert paid(torch.tensor([1.0, 0.0, 3.0, 2.0]), needed, 1.0) == pytest.approx(expected)


def test_a_step_is_needed_if_a_needed_line_ends_in_it():
    lines = [("one", "essential"), ("two", "redundant"), ("one", "useful"), ("last", "redundant")]
    assert needed_steps(lines, ["one\n", "two\n", "one\n", "last\n"]).tolist() == [
        True,
        False,
        True,
        False,
    ]
    assert needed_steps(lines, ["<think>\no", "ne\ntwo\n", "one\nlast"]).tolist() == [
        False,
        True,
        True,
    ]


def test_scored_responses_are_read(tmp_path):
    steps = ["preparation\n", "result\n", "hmm\n"]
    right = {
        "correct": True,
        "steps": steps,
        "answer_logprobs": [-9.0, -9.0, 0.0, 0.0],
        "step_ends": [3, 8, 9],
    }
    path = tmp_path / "scored.jsonl"

    def labelled(row):
        return [("preparation", "essential"), ("result", "essential"), ("hmm", "redundant")]

    one_step = right | {"steps": ["".join(steps)], "answer_logprobs": [-9.0, 0.0], "step_ends": [9]}
    write_rows(path, [right | {"correct": False}, one_step])
    with pytest.raises(DataError, match="none of the 2 responses"):
        study(path, labelled)
    write_rows(path, [right])
    text = study(path, labelled)
    assert text.startswith("1 responses, 66.7% of their steps needed")
    assert (
        "| local          | 75.0%" in text
    )  # the preparation is as good as the rest, the result better
    assert "| window 2       | 100.0%" in text
    assert "critic" not in text
    # Tokens 4, 5, 1; taken off what is left 6, 2, 0: costs -2, 3, 1. Needed: the first two.
    write_rows(path, [right | {"tokens_left": [10.0, 4.0, 2.0, 2.0]}])
    assert re.search(r"\| critic +\| 50\.0% +\|( +\|){3} 75\.0% +\|", study(path, labelled))


# Gains of 1, 0, -1 and 2: variance 5/3. The longer response pays: 30 tokens, median 20.
LONG = {"correct": True, "tokens": 30, "curve": [-3.0, -2.0, -2.0, -3.0]}
SHORT = {"correct": True, "tokens": 10, "curve": [-3.0, -1.0]}
WRONG = {"correct": False, "tokens": 9, "curve": [0.0, 9.0]}


def row(response):
    return {"problem": "p", "correct": response["correct"], "tokens": response["tokens"]} | {
        "answer_logprobs": response["curve"]
    }


def test_the_spread_of_a_file_and_a_page_by_hand(tmp_path):
    scored, page = tmp_path / "some.scored.jsonl", tmp_path / "page.html"
    write_rows(scored, map(row, (LONG, SHORT, WRONG)))
    data = json.dumps({"problems": [{"columns": [[LONG, SHORT, WRONG], []]}]})
    page.write_text(f'<script type="application/json" id="data">{data}</script>')
    header, first, second = cells_of(spread.table([scored, page]))
    assert header[7] == "from uniform, tau 1.0"
    # Weights exp(-1), 1, e over their sum: .0900, .2447, .6652; .6652 - 1/3 lies elsewhere.
    assert first[:8] == ["some", "1", "2", "4", "1.29", "1.29", "0.25", "33.2%"]
    assert first[1:] == second[1:]


def test_the_end_of_the_last_step_stands_for_the_length(tmp_path):
    """As in a file that score writes of responses without `tokens`; where the thought closes at
    once, no step ends.
    """
    path = tmp_path / "some.scored.jsonl"
    long = {
        "problem": "p",
        "correct": True,
        "step_ends": [3, 9],
        "answer_logprobs": [-3.0, -1.0, -2.0],
    }
    write_rows(path, [long, long | {"step_ends": [], "answer_logprobs": [-3.0]}])
    ((first, second),) = spread.groups_of(path)
    assert (first.length, second.length) == (10, 0)
    _, cells = cells_of(spread.table([path]))
    # Gains 2 and -1; weights e^-2 and e over their sum: .0474 and .9526, each .4526 from 1/2.
    assert cells[1:4] + cells[7:8] == ["1", "2", "2", "45.3%"]


def test_nothing_correct_is_an_error(tmp_path):
    write_rows(tmp_path / "wrong.jsonl", [row(WRONG)])
    with pytest.raises(DataError, match="no correct response with steps"):
        spread.groups_of(tmp_path / "wrong.jsonl")


QUESTION = "Sums of a: 3+6+7, b: 7+4, c: 1+2+3+4"
# a is guessed wrongly, then right by the long way, then repeated; b has one way only; c is guessed
# twice.
GUESSED = "a: =15\nb: 7+4=11\na1: 3+6=09\na2: 09+7=16\na2: 09+7=16\nc: =10\nagain c: =09\nc1: 1+2=03\nhmm\n</think>"
COMPUTED = (
    "a1: 3+6=09\na2: 09+7=17\nb: 7+4=11\nb1: 7+4=11\nc1: 1+2=03\nc2: 03+3=06\nc3: 06+4=10\n</think>"
)


def test_how_sums_were_done_by_hand():
    assert results_of(QUESTION, GUESSED) == [
        ((3, 6, 7), [15], [16, 16]),
        ((7, 4), [11], []),
        ((1, 2, 3, 4), [10, 9], []),
    ]


def test_shares_of_guesses_by_hand(tmp_path):
    rows = [{"problem": QUESTION, "text": text} for text in (GUESSED, COMPUTED)]
    found = guesses.count(rows)
    assert found["sums", 3] == found["long", 3] == 2 and found["long correct", 3] == 1
    assert (found["guess", 3], found["guess correct", 3]) == (1, 0)
    assert (
        found["guess", 4],
        found["guess correct", 4],
        found["long", 4],
        found["long correct", 4],
    ) == (1, 1, 1, 1)
    path = tmp_path / "base.responses.jsonl"
    write_rows(path, rows)
    _, base = cells_of(guesses.table({"base": [path]}))
    # One of four sums was only guessed; there was no sum of five numbers.
    assert base == ["base", "1", "25%", "0%", "100%", "-", "50%", "100%", "-"]


def test_a_folder_of_guesses_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match="is not a folder; give the output folder"):
        guesses.main(["--runs", str(tmp_path / "none")])

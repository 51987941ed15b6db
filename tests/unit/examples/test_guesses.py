"""How sums were done, counted by hand."""

import pytest
from decomposition import results_of
from guesses import count, main, table

from openrlhf_swap.errors import DataError
from openrlhf_swap.files import write_rows

QUESTION = "Sums of a: 3+6+7, b: 7+4, c: 1+2+3+4"
# a is guessed wrongly, then right by the long way, then repeated; b has one way only; c is guessed twice.
GUESSED = "a: =15\nb: 7+4=11\na1: 3+6=09\na2: 09+7=16\na2: 09+7=16\nc: =10\nagain c: =09\nc1: 1+2=03\nhmm\n</think>"
LONG = "a1: 3+6=09\na2: 09+7=17\nb: 7+4=11\nb1: 7+4=11\nc1: 1+2=03\nc2: 03+3=06\nc3: 06+4=10\n</think>"


def test_results_by_hand():
    assert results_of(QUESTION, GUESSED) == [
        ((3, 6, 7), [15], [16, 16]),
        ((7, 4), [11], []),
        ((1, 2, 3, 4), [10, 9], []),
    ]


def test_shares_by_hand(tmp_path):
    rows = [{"problem": QUESTION, "text": text} for text in (GUESSED, LONG)]
    found = count(rows)
    assert found["sums", 3] == found["long", 3] == 2 and found["long correct", 3] == 1
    assert (found["guess", 3], found["guess correct", 3]) == (1, 0)
    assert (found["guess", 4], found["guess correct", 4], found["long", 4], found["long correct", 4]) == (1, 1, 1, 1)
    for path in ("base.responses.jsonl", "swap/seed_1/result.responses.jsonl"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        write_rows(tmp_path / path, rows)
    base = table({"base": [tmp_path / "base.responses.jsonl"]}).splitlines()[2]
    # One of four sums was only guessed; there was no sum of five numbers.
    assert [cell.strip() for cell in base.split("|")[1:-1]] == [
        "base",
        "1",
        "25%",
        "0%",
        "100%",
        "-",
        "50%",
        "100%",
        "-",
    ]


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match="is not a folder; give the output folder"):
        main(["--runs", str(tmp_path / "none")])

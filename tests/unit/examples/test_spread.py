"""The spread of local gains of scored responses, by hand."""

import json

import pytest
from spread import groups_of, table

from openrlhf_swap.errors import DataError
from openrlhf_swap.files import write_rows

# Gains of 1, 0, -1 and 2: variance 5/3. The longer response pays: 30 tokens, median 20.
LONG = {"correct": True, "tokens": 30, "curve": [-3.0, -2.0, -2.0, -3.0]}
SHORT = {"correct": True, "tokens": 10, "curve": [-3.0, -1.0]}
WRONG = {"correct": False, "tokens": 9, "curve": [0.0, 9.0]}


def row(response):
    return {"problem": "p", "correct": response["correct"], "tokens": response["tokens"]} | {
        "answer_logprobs": response["curve"]
    }


def test_a_file_and_a_page_by_hand(tmp_path):
    scored, page = tmp_path / "some.scored.jsonl", tmp_path / "page.html"
    write_rows(scored, map(row, (LONG, SHORT, WRONG)))
    data = json.dumps({"problems": [{"columns": [[LONG, SHORT, WRONG], []]}]})
    page.write_text(f'<script type="application/json" id="data">{data}</script>')
    header, _, first, second = (line.split("|")[1:-1] for line in table([scored, page]).splitlines())
    assert header[7].strip() == "from uniform, tau 1.0"
    # Weights exp(-1), 1, e over their sum: .0900, .2447, .6652; .6652 - 1/3 lies elsewhere.
    assert [cell.strip() for cell in first[:8]] == ["some", "1", "2", "4", "1.29", "1.29", "0.25", "33.2%"]
    assert [cell.strip() for cell in first[1:]] == [cell.strip() for cell in second[1:]]


def test_the_end_of_the_last_step_stands_for_the_length(tmp_path):
    """As in a file that score writes of responses without `tokens`; where the thought closes at once, no step ends."""
    path = tmp_path / "some.scored.jsonl"
    long = {"problem": "p", "correct": True, "step_ends": [3, 9], "answer_logprobs": [-3.0, -1.0, -2.0]}
    write_rows(path, [long, long | {"step_ends": [], "answer_logprobs": [-3.0]}])
    ((first, second),) = groups_of(path)
    assert (first.length, second.length) == (10, 0)
    _, _, line = (line.split("|")[1:-1] for line in table([path]).splitlines())
    # Gains 2 and -1; weights e^-2 and e over their sum: .0474 and .9526, each .4526 from 1/2.
    assert [cell.strip() for cell in line[1:4] + line[7:8]] == ["1", "2", "2", "45.3%"]


def test_nothing_correct_is_an_error(tmp_path):
    write_rows(tmp_path / "wrong.jsonl", [row(WRONG)])
    with pytest.raises(DataError, match="no correct response with steps"):
        groups_of(tmp_path / "wrong.jsonl")

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


def test_nothing_correct_is_an_error(tmp_path):
    write_rows(tmp_path / "wrong.jsonl", [row(WRONG)])
    with pytest.raises(DataError, match="no correct response with steps"):
        groups_of(tmp_path / "wrong.jsonl")

"""Data files as users have them: each wrong one is answered with the file, the row and what is
wrong.
"""

import io
import json
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_swap.data import files
from openrlhf_swap.data.files import (
    check_quickly,
    describe_faults,
    read_entries,
    readable_rows,
    stream_rows,
)
from openrlhf_swap.errors import DataError

GOOD = b'{"problem": "1+1", "answer": "2"}\n'
KEYS = {"--data.input_key": "problem", "--data.label_key": "answer"}
WRONG_FILES = {
    "empty.jsonl": (b"", "it has no rows"),
    "binary.jsonl": (bytes(range(128, 256)) * 4, "row 1: not UTF-8 (byte 0x80 at pos"),
    "zeros.jsonl": (b"\0" * 4096, "row 1: zero bytes, as a crash leaves them"),
    "torn.jsonl": (b'{"problem": "1', "row 1: not JSON (Unterminated string"),
    "list.jsonl": (b"[1]\n[2]\n", "row 1: not a JSON object, row 2: not a JSON object"),
    "twice.csv": (b"problem,answer,answer\n1,2,3\n", "it has the column answer more than once"),
    "torn.json": (b'[{"problem": "1"},', "row 2: not JSON (Expecting value)"),
    "wide.csv": (b"problem,answer\n1,2,3\n", "row 1: more or fewer fields than the he"),
    "latin.csv": (b"problem,answer\ncaf\xe9,1\n", "row 1: not UTF-8 (byte 0xe9 at pos"),
}


@pytest.mark.parametrize("name", WRONG_FILES)
def test_a_wrong_file_is_refused_at_once(tmp_path, name):
    content, message = WRONG_FILES[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as error:
        check_quickly("--data.prompt_dataset", str(tmp_path / name), KEYS)
    unread = f"--data.prompt_dataset is {tmp_path / name}, which cannot be read: "
    assert str(error.value).startswith(unread + message)


def test_a_file_that_is_not_there_is_to_be_prepared(tmp_path):
    name = str(tmp_path / "prompts.jsonl")
    with pytest.raises(DataError, match=r"does not exist; .* `openrlhf-swap prepare --output"):
        check_quickly("--data.prompt_dataset", name, KEYS)


def test_a_folder_and_a_column_that_is_not_there(tmp_path):
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(DataError, match=r"which cannot be read: .* Is a directory"):
        check_quickly("--eval.dataset", str(tmp_path / "folder.jsonl"), KEYS)
    row = {"question": "1", "answer": "2"}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    absent = r"--data.input_key is problem, but .* its columns are: question, answer"
    with pytest.raises(DataError, match=absent):
        check_quickly("--eval.dataset", str(tmp_path / "rows.jsonl"), KEYS)


BAD = {
    b"[1]": "not a JSON object",
    b"\xe9": "not UTF-8 (byte 0xe9 at position 1; convert it with iconv)",
    b'{"a": "\\udc80"}': r"a lone surrogate (\udc80), which is not a character",
    b"{": "not JSON (Expecting property name",
    b'{"a": ' + b"9" * 5000 + b"}": "not JSON (Exceeds the limit (4300 digits)",
    b'{"a": ' + b"[" * 100_000: "not JSON (maximum recursion depth exceeded",
}


def test_bad_rows_have_numbers_and_do_not_stop_the_others(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(GOOD + b"\n".join(BAD) + b"\n\n" + GOOD)
    entries = read_entries(path)
    # The blank line is counted, but no row.
    assert [entry.number for entry in entries] == [1, 2, 3, 4, 5, 6, 7, 9]
    faults = [entry.fault for entry in entries[1:-1]]
    for fault, expected in zip(faults, BAD.values(), strict=True):
        assert fault.startswith(expected)
    first = ", ".join(f"row {number}: {faults[number - 2]}" for number in (2, 3, 4))
    assert describe_faults(entries) == f"{first}, and 3 more"
    assert readable_rows(entries) == [json.loads(GOOD)] * 2
    check_quickly("--data.prompt_dataset", str(path), KEYS)


def test_good_files_of_each_kind(tmp_path):
    row = {"problem": "caf\u00e9\u2028", "answer": "2"}
    (tmp_path / "bom.jsonl").write_bytes(b"\xef\xbb\xbf" + GOOD + GOOD.rstrip())
    (tmp_path / "list.json").write_text(json.dumps([row, row], indent=1))
    (tmp_path / "rows.csv").write_text('problem,answer\n"caf\u00e9\u2028",2\n"two\nlines",0.50\n')
    assert [entry.row for entry in read_entries(tmp_path / "bom.jsonl")] == [json.loads(GOOD)] * 2
    assert [entry.row for entry in read_entries(tmp_path / "list.json")] == [row, row]
    second = {"problem": "two\nlines", "answer": "0.50"}
    assert [entry.row for entry in read_entries(tmp_path / "rows.csv")] == [row, second]
    # As pandas writes it.
    (tmp_path / "index.csv").write_text(",problem,answer\n0,1+1,2\n1,2+2\n2,3+3,6,7\n")
    with_index = read_entries(tmp_path / "index.csv")
    assert with_index[0].row == {"": "0", "problem": "1+1", "answer": "2"}
    assert [entry.fault for entry in with_index[1:]] == ["more or fewer fields than the header"] * 2
    (tmp_path / "lines.json").write_bytes(GOOD)
    for name in ("bom.jsonl", "list.json", "lines.json", "rows.csv"):
        check_quickly("--data.prompt_dataset", str(tmp_path / name), KEYS)


NUMBERS = st.integers() | st.floats()
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.lists(VALUES, max_size=6),
    st.integers(1, 40),
    st.sampled_from([None, 0, 3]),
    st.sampled_from(["", " \n"]),
)
def test_a_list_in_pieces_of_any_size_is_what_json_reads(values, piece, indent, space):
    text = space + json.dumps(values, indent=indent) + space
    beginning = text.index("[") + 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "PIECE", max(piece, beginning))
        found = list(files._items_of_list(io.StringIO(text)))
    # As text, because NaN equals nothing.
    assert json.dumps(found) == json.dumps(json.loads(text))


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b'[{"a": 1}, {"a": 2', "row 2: not JSON (Expecting ',' delimiter)"),
        (b'[{"a": 1} {"a": 2}]', "row 1: not JSON (Expecting ',' delimiter)"),
        (b'[{"a": 1},]', "row 2: not JSON (Expecting value)"),
        (b'[{"a": 1}]\n[{"a": 1}]', "not JSON (there is more behind the list)"),
        (b'[{"a": "\xe9"}]', "not UTF-8 (invalid continuation byte; convert it with iconv)"),
        (b"[ ]", "it has no rows"),
        (b'[{"a": 1}, 2]', "row 2: not a JSON object"),
    ],
)
@pytest.mark.parametrize("piece", [2, files.PIECE])
def test_a_broken_list_is_refused_by_its_row(tmp_path, monkeypatch, piece, content, fault):
    monkeypatch.setattr(files, "PIECE", piece)
    path = tmp_path / "rows.json"
    path.write_bytes(content)
    with pytest.raises(DataError) as error:
        list(stream_rows(path, "--input"))
    assert str(error.value) == f"--input is {path}, which cannot be read: {fault}"


def test_the_first_rows_of_a_list_are_there_before_the_last_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "PIECE", 8)
    path = tmp_path / "rows.json"
    path.write_text('[{"a": 1}, {"a": 2}, {"a": and the rest is no JSON')
    rows = stream_rows(path, "--input")
    assert list(islice(rows, 2)) == [{"a": 1}, {"a": 2}]

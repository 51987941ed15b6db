"""Data files as users have them: each wrong one is answered with the file, the row and what is
wrong.
"""

import json

import pytest

from openrlhf_swap.data.files import check_quickly, describe_faults, read_entries, readable_rows
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
    "torn.json": (b'[{"problem": "1"},', "not JSON (Expecting value: line 1 column 19"),
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

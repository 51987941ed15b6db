"""Files that survive a kill."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_swap.command import Parser, run_command
from openrlhf_swap.errors import ConfigError, DataError
from openrlhf_swap.files import (
    appending,
    drop_unfinished_line,
    read_rows,
    replacing,
    write_rows,
    write_text,
)


def test_a_row_that_was_not_finished_is_cut_off_and_written_again(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n{"a": 2')
    assert list(read_rows(path)) == [{"a": 1}]
    with appending(path) as append:
        append({"a": 2})
        assert list(read_rows(path)) == [{"a": 1}, {"a": 2}]  # there before the file is closed


@pytest.mark.parametrize(
    ("content", "left"),
    [
        ("", ""),
        ("x", ""),
        ("a\n", "a\n"),
        ("a\nb", "a\n"),
        ("a\n" + "b" * 200_000, "a\n"),
        ("b" * 200_000, ""),
    ],
)
def test_an_unfinished_line_of_any_length_is_dropped(tmp_path, content, left):
    path = tmp_path / "file"
    path.write_text(content)
    drop_unfinished_line(path)
    assert path.read_text() == left


def test_zero_bytes_of_a_power_cut_are_no_row(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a": 1}\n' + b"\0" * 4096 + b'\n\0\0{"a": 2}\n{"a": 3}\n' + b"\0" * 512)
    assert list(read_rows(path)) == [{"a": 1}, {"a": 2}, {"a": 3}]
    with appending(path) as append:
        append({"a": 4})
    assert list(read_rows(path))[2:] == [{"a": 3}, {"a": 4}]


def test_a_row_that_cannot_be_read_is_named(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a" 2}\n')
    with pytest.raises(DataError) as error:
        list(read_rows(path))
    assert str(error.value).startswith(f"{path}, row 2: not JSON (Expecting ':' delimiter: line 1")


@given(st.lists(st.dictionaries(st.text(), st.text() | st.integers() | st.none(), max_size=3)))
def test_rows_come_back_as_they_were_written(tmp_path_factory, rows):
    """Line separators of Unicode stand inside a text: they do not end a row."""
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    write_rows(path, rows)
    assert list(read_rows(path)) == rows
    assert path.read_text(encoding="utf-8").count("\n") == len(rows)


def test_a_file_is_whole_or_as_before(tmp_path):
    path = tmp_path / "file.json"
    write_text(path, json.dumps({"a": 1}))
    with pytest.raises(KeyboardInterrupt), replacing(path) as file:
        file.write("half")
        raise KeyboardInterrupt
    assert path.read_text() == '{"a": 1}'
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_of_ours_is_one_line_and_status_2(capsys):
    def command(argv):
        Parser("openrlhf-swap x").parse_args(argv)
        raise ConfigError("--x is 1; use 2")

    assert run_command(command, []) == 2
    assert run_command(command, ["--y"]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first == "error: --x is 1; use 2"
    assert second.startswith("error: unrecognized arguments: --y; see openrlhf-swap x --help ")
    assert run_command(lambda _: None, []) == 0
    assert run_command(lambda _: 1, []) == 1


def test_control_c_is_one_line_and_status_130(capsys):
    def command(argv):
        raise KeyboardInterrupt("; start again")

    assert run_command(command, []) == 130
    assert capsys.readouterr().err == "error: stopped by Ctrl-C; start again\n"

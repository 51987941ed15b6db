"""The files of an evaluation: seeds, order, and what several engines leave."""

import random

import pytest

from evaluation.samples import (
    has_samples,
    merge_parts,
    part_path,
    parts_of,
    sampled_ids,
    samples_path,
    seed_of,
    sort_file,
)
from openrlhf_swap.files import read_new_rows, read_rows, write_rows


def test_seeds_depend_on_the_sample_alone():
    seeds = {seed_of(b, p, n, s) for b in "ab" for p in "xy" for n in range(5) for s in (0, 1)}
    assert len(seeds) == 40
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert seed_of("a", "x", 0, 0) == seed_of("a", "x", 0, 0)


def test_a_growing_file_is_read_once(tmp_path):
    path = tmp_path / "f.jsonl"
    assert read_new_rows(path, 0) == ([], 0)
    write_rows(path, [{"id": "é"}, {"id": "b"}])
    with open(path, "a") as file:
        file.write('{"id": ')
    rows, offset = read_new_rows(path, 0)
    assert [row["id"] for row in rows] == ["é", "b"]
    with open(path, "a") as file:
        file.write('"c"}\n')
    rows, offset = read_new_rows(path, offset)
    assert ([row["id"] for row in rows], offset) == (["c"], path.stat().st_size)


def test_files_are_sorted_by_problem_and_sample(tmp_path):
    rows = [{"id": i, "sample": n, "text": "é" * n} for i in ("b", "a", "c") for n in range(4)]
    shuffled = random.Random(0).sample(rows, len(rows))
    path = tmp_path / "f.jsonl"
    write_rows(path, shuffled)
    sort_file(path, {"b": 0, "a": 1, "c": 2})
    assert list(read_rows(path)) == rows


def test_parts_of_several_engines_are_merged(tmp_path):
    path = tmp_path / "own.samples.jsonl"
    path.write_text('{"id": "a", "sample": 0}\n{"id": "a", "sam')
    for number in (0, 1):
        write_rows(part_path(path, number), [{"id": "b", "sample": number}])
    with open(part_path(path, 1), "a") as file:
        file.write('{"unfinished')
    merge_parts(path)
    assert [(row["id"], row["sample"]) for row in read_rows(path)] == [("a", 0), ("b", 0), ("b", 1)]
    assert list(tmp_path.glob("*.part*")) == []


@pytest.mark.parametrize("lost", [0, 12, 50])
def test_a_merge_that_was_stopped_is_done_again_without_counting_twice(tmp_path, lost):
    """The part is still there; the file has all of it, or ends in the middle of its last line or the one before."""
    path = tmp_path / "own.samples.jsonl"
    rows = [{"id": "a", "sample": n, "text": "é"} for n in range(3)]
    write_rows(path, rows)
    path.write_bytes(path.read_bytes()[: path.stat().st_size - lost])
    write_rows(part_path(path, 0), rows[1:])
    merge_parts(path)
    assert list(read_rows(path)) == rows and parts_of(path) == []
    merge_parts(path)
    assert list(read_rows(path)) == rows


def test_samples_that_an_earlier_version_merged_twice_are_kept_once(tmp_path):
    path = tmp_path / "f.jsonl"
    rows = [{"id": i, "sample": 0} for i in ("a", "b")]
    write_rows(path, [rows[1], *rows, rows[0]])
    sort_file(path, {"a": 0, "b": 1})
    assert list(read_rows(path)) == rows


def test_a_part_holds_samples_too(tmp_path):
    write_rows(tmp_path / "my.samples.problems.jsonl", [{"id": "a"}])
    assert not has_samples(tmp_path)
    write_rows(part_path(samples_path(tmp_path, "own"), 1), [{"id": "b", "sample": 0}])
    assert has_samples(tmp_path) and sampled_ids(tmp_path, "own") == {"b"}
    write_rows(samples_path(tmp_path, "own"), [{"id": "a", "sample": 0}])
    assert sampled_ids(tmp_path, "own") == {"a", "b"} and sampled_ids(tmp_path, "other") == set()

"""The provenance of a run."""

import hashlib
import shlex
import subprocess

from support.paths import POLICY

from openrlhf_swap.runs import provenance


def test_a_file_is_known_by_its_content(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text("{}\n")
    expected = {"bytes": 3, "sha256": hashlib.sha256(b"{}\n").hexdigest()}
    assert provenance.fingerprint(str(file)) == {"name": str(file), "files": {"rows.jsonl": expected}}


def test_a_large_file_is_known_by_its_size_and_its_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, "WHOLE", 8)
    monkeypatch.setattr(provenance, "END", 2)
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"ab-----yz")
    found = provenance.fingerprint(str(tmp_path))["files"]["model.safetensors"]
    assert found == {"bytes": 9, "sha256_of_ends": hashlib.sha256(b"abyz").hexdigest()}


def test_a_models_weights_and_tokenizer_count():
    files = provenance.fingerprint(str(POLICY))["files"]
    assert {"model.safetensors", "tokenizer.json", "config.json"} <= files.keys()


def test_a_hub_model_that_is_not_cached_has_only_its_name():
    assert provenance.fingerprint("nobody/no-such-model") == {"name": "nobody/no-such-model", "files": {}}


def test_the_commit_says_whether_something_was_changed(tmp_path):
    assert provenance.commit(tmp_path) is None
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    (tmp_path / "file").write_text("1")
    for words in (["init", "-q"], ["add", "file"], ["commit", "-qm", "one"]):
        subprocess.run([*git, *words], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    assert provenance.commit(tmp_path) == head
    (tmp_path / "untracked").write_text("an output")
    assert provenance.commit(tmp_path) == head
    (tmp_path / "file").write_text("2")
    assert provenance.commit(tmp_path) == f"{head}-dirty"


def test_the_command_can_be_pasted():
    found = provenance.made_of("program word", ["--x", "a b\n'c'"], data="one.jsonl,two.jsonl")
    assert shlex.split(found["command"]) == ["program", "word", "--x", "a b\n'c'"]
    assert [row["name"] for row in found["inputs"]["data"]] == ["one.jsonl", "two.jsonl"]
    assert found["versions"]["openrlhf"] == "0.11.2"

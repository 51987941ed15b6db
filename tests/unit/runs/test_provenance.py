"""What work was made of; and the same, or no resume."""

import hashlib
import shlex
import subprocess

import pytest
from support.paths import POLICY

from openrlhf_swap.errors import ConfigError
from openrlhf_swap.runs import provenance
from openrlhf_swap.runs.provenance import identity, record_or_compare, refuse_other_settings


def test_a_file_is_known_by_its_content(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text("{}\n")
    expected = {"bytes": 3, "sha256": hashlib.sha256(b"{}\n").hexdigest()}
    assert provenance.fingerprint(str(file)) == {
        "name": str(file),
        "files": {"rows.jsonl": expected},
    }


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
    assert provenance.fingerprint("nobody/no-such-model") == {
        "name": "nobody/no-such-model",
        "files": {},
    }


def test_the_commit_says_whether_something_was_changed(tmp_path):
    assert provenance.commit(tmp_path) is None
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    (tmp_path / "file").write_text("1")
    for words in (["init", "-q"], ["add", "file"], ["commit", "-qm", "one"]):
        subprocess.run([*git, *words], check=True)
    head = subprocess.run(
        [*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    ).stdout.strip()
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


def refusal(now, recorded):
    """The error for a setting, or None."""
    try:
        refuse_other_settings(
            {"--flag": now}, {"--flag": recorded}, "the rows were made", "use another --output"
        )
    except ConfigError as error:
        return str(error)
    return None


def test_a_model_is_its_weights_and_one_of_the_hub_its_name(tmp_path):
    for name, weights, about in (("a", b"1", "{}"), ("moved", b"1", "{ }"), ("other", b"2", "{}")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(weights)
        (tmp_path / name / "config.json").write_text(about)
    model, moved, other = (identity(str(tmp_path / name)) for name in ("a", "moved", "other"))
    hub, another = identity("owner/model"), identity("owner/other")
    assert (
        refusal(model, moved)
        is refusal(hub, hub)
        is refusal(model, {"name": str(tmp_path / "a")})
        is None
    )
    made = "but the rows were made with owner/other"
    assert refusal(hub, another) == f"--flag is owner/model, {made}; use another --output"
    assert refusal(model, other) == (
        f"--flag is {tmp_path}/a (SHA-256 {model['sha256'][:8]}), but the rows were made with {tmp_path}/other "
        f"(SHA-256 {other['sha256'][:8]}); use another --output"
    )
    assert refusal(model, hub) is not None


def test_data_are_their_rows(tmp_path):
    (tmp_path / "a.jsonl").write_text("1\n")
    before = identity(str(tmp_path / "a.jsonl"))
    (tmp_path / "a.jsonl").rename(tmp_path / "b.jsonl")
    assert refusal(identity(str(tmp_path / "b.jsonl")), before) is None
    (tmp_path / "b.jsonl").write_text("2\n")
    assert refusal(identity(str(tmp_path / "b.jsonl")), before) is not None


@pytest.mark.parametrize(
    ("now", "recorded", "message"),
    [
        (1, 1, None),
        (1, 2, "--flag is 1, but the rows were made with 2; use another --output"),
        ("a", None, "--flag is 'a', but the rows were made without it; use another --output"),
        (None, "a", "--flag is not given, but the rows were made with 'a'; use another --output"),
    ],
)
def test_values(now, recorded, message):
    assert refusal(now, recorded) == message
    refuse_other_settings({"--flag": now, "--new": 1}, {"--flag": now, "--old": 1}, "", "")


def test_settings_may_change_until_something_is_written(tmp_path, capsys):
    output = tmp_path / "new" / "output"
    for value in (1, 2):
        record_or_compare(output, {"--flag": value})
    output.write_text('{"row": 0')  # torn
    record_or_compare(output, {"--flag": 2})
    output.write_text('{"row": 0}\n')
    record_or_compare(output, {"--flag": 2})
    with pytest.raises(
        ConfigError, match=f"^--flag is 1, but the rows in {output} were made with 2; use another"
    ):
        record_or_compare(output, {"--flag": 1})
    assert capsys.readouterr().out == ""
    (tmp_path / "new" / "output.settings.json").unlink()
    record_or_compare(output, {"--flag": 1})
    assert capsys.readouterr().out.startswith(f"note: {output}.settings.json is missing")

"""What work was made of; and the same, or no resume."""

import hashlib
import os
import shutil

import pytest
from support.paths import POLICY

from openrlhf_swap.errors import ConfigError, DataError
from openrlhf_swap.runs import provenance
from openrlhf_swap.runs.provenance import (
    changed_files,
    grader_identity,
    identity,
    is_same,
    notes_on,
    record_or_compare,
    refuse_other_settings,
)


def test_fingerprints(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text("{}\n")
    expected = {"bytes": 3, "sha256": hashlib.sha256(b"{}\n").hexdigest()}
    found = provenance.fingerprint(str(file))
    assert found == {"name": str(file), "files": {"rows.jsonl": expected}}
    files = provenance.fingerprint(str(POLICY))["files"]
    assert {"model.safetensors", "tokenizer.json", "config.json"} <= files.keys()
    hub = provenance.fingerprint("nobody/no-such-model")  # not in the hub's cache either
    assert hub == {"name": "nobody/no-such-model", "files": {}}
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    assert "chat_template.jinja" in provenance.fingerprint(str(tmp_path))["files"]


def large_file(path, size):
    """A file of zeros."""
    with open(path, "wb") as file:
        file.truncate(size)
    return path


@pytest.mark.parametrize("place", [0, 40 * 2**20 + 12_345, 80 * 2**20 - 1])
def test_a_change_anywhere_in_a_large_file_is_another_content(tmp_path, place):
    weights = large_file(tmp_path / "model.safetensors", 80 * 2**20)
    before = identity(str(tmp_path))
    with open(weights, "rb+") as file:
        file.seek(min(place, 79 * 2**20))
        file.write(b"x" * 2**20)
    after = identity(str(tmp_path))
    assert not is_same(after, before)
    assert changed_files(after, before) == ["model.safetensors"]


def test_a_large_file_that_was_written_anew_is_told(tmp_path):
    weights = large_file(tmp_path / "model.safetensors", 80 * 2**20)
    before = {"--model": identity(str(tmp_path))}
    os.utime(weights, (1, 1))
    after = {"--model": identity(str(tmp_path))}
    refuse_other_settings(after, before, "it was made", "use x")
    (note,) = notes_on(after, before)
    assert note.startswith(f"note: --model is {tmp_path}")
    assert notes_on(after, after) == []


@pytest.mark.parametrize(
    "name", ["config.json", "chat_template.jinja", "tokenizer.json", "code.py"]
)
def test_a_model_is_also_its_tokenizer_template_configuration_and_code(tmp_path, name):
    model = shutil.copytree(POLICY, tmp_path / "model")
    (model / name).write_text("other")
    written = refusal(identity(str(model)), identity(str(POLICY)))
    assert written is not None
    assert f" (another {name}); use x" in written


def test_a_hub_model_is_compared_by_what_both_caches_hold():
    config = {"bytes": 1, "sha256": "a"}
    partly = {"name": "owner/model", "revision": "r1", "files": {"config.json": config}}
    weights = {"bytes": 9, "sha256": "b"}
    wholly = {**partly, "files": {"config.json": config, "model.safetensors": weights}}
    other = {**partly, "revision": "r2", "files": {"config.json": {"bytes": 1, "sha256": "c"}}}
    assert is_same({**wholly, "sha256": "1"}, {**partly, "sha256": "2"})
    assert not is_same({**wholly, "sha256": "1"}, {**other, "sha256": "2"})


def test_a_grader_is_its_name_and_its_code(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    module = tmp_path / "own_grader_of_a_test.py"
    module.write_text("def verify(problem, answer, response, metadata): return True")
    own = "own_grader_of_a_test:verify"
    before = grader_identity(own)
    assert is_same(grader_identity(own), before)
    module.write_text("def verify(problem, answer, response, metadata): return False")
    assert not is_same(grader_identity(own), before)
    assert not is_same(grader_identity("regex:a: (.)"), grader_identity("regex:b: (.)"))
    assert grader_identity("math")["sha256"]


def refusal(now, recorded):
    """The error for a setting, or None."""
    settings = {"--flag": now, "--new": 1}
    before = {"--flag": recorded, "--old": 2}
    try:
        refuse_other_settings(settings, before, "it was made", "use x")
    except ConfigError as error:
        return str(error)
    return None


def test_a_model_is_its_files_and_one_of_the_hub_its_name(tmp_path):
    def model_of(name, weights, about):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(weights)
        (folder / "config.json").write_text(about)
        return identity(str(folder))

    model = model_of("a", b"1", "{}")
    moved = model_of("moved", b"1", "{}")
    other = model_of("other", b"2", "{}")
    hub = identity("owner/model")
    assert refusal(model, moved) is None
    assert refusal(hub, hub) is None
    assert refusal(model, {"name": str(tmp_path / "a")}) is None
    expected = "--flag is owner/model, but it was made with owner/other; use x"
    assert refusal(hub, identity("owner/other")) == expected
    named = f"--flag is {tmp_path}/a (SHA-256 {model['sha256'][:8]}), but it was made with "
    assert refusal(model, other).startswith(named + f"{tmp_path}/other")
    assert refusal(model, hub) is not None


def test_settings_may_change_until_something_is_written(tmp_path, capsys):
    output = tmp_path / "new" / "output"
    for value in (1, 2):
        record_or_compare(output, {"--flag": value})
    output.write_text('{"row": 0')  # torn
    record_or_compare(output, {"--flag": 2})
    output.write_text('{"row": 0}\n')
    record_or_compare(output, {"--flag": 2})
    with pytest.raises(ConfigError, match=f"^--flag is 1, but the rows in {output} were made with"):
        record_or_compare(output, {"--flag": 1})
    assert capsys.readouterr().out == ""
    record = tmp_path / "new" / "output.settings.json"
    for garbage in ("[1]", "{"):
        record.write_text(garbage)
        with pytest.raises(DataError, match=f"^{record} cannot be read .* use another --output$"):
            record_or_compare(output, {"--flag": 1})
    record.unlink()
    record_or_compare(output, {"--flag": 1})
    assert capsys.readouterr().out.startswith(f"note: {output}.settings.json is missing")

"""What work was made of; and the same, or no resume."""

import hashlib

import pytest
from support.paths import POLICY

from openrlhf_swap.errors import ConfigError
from openrlhf_swap.runs import provenance
from openrlhf_swap.runs.provenance import identity, record_or_compare, refuse_other_settings


def test_fingerprints(tmp_path, monkeypatch):
    file = tmp_path / "rows.jsonl"
    file.write_text("{}\n")
    expected = {"bytes": 3, "sha256": hashlib.sha256(b"{}\n").hexdigest()}
    found = provenance.fingerprint(str(file))
    assert found == {"name": str(file), "files": {"rows.jsonl": expected}}
    files = provenance.fingerprint(str(POLICY))["files"]
    assert {"model.safetensors", "tokenizer.json", "config.json"} <= files.keys()
    hub = provenance.fingerprint("nobody/no-such-model")  # not in the hub's cache either
    assert hub == {"name": "nobody/no-such-model", "files": {}}
    monkeypatch.setattr(provenance, "WHOLE", 8)
    monkeypatch.setattr(provenance, "END", 2)
    (tmp_path / "model.safetensors").write_bytes(b"ab-----yz")
    large = provenance.fingerprint(str(tmp_path))["files"]["model.safetensors"]
    assert large == {"bytes": 9, "sha256_of_ends": hashlib.sha256(b"abyz").hexdigest()}


def refusal(now, recorded):
    """The error for a setting, or None."""
    settings = {"--flag": now, "--new": 1}
    before = {"--flag": recorded, "--old": 2}
    try:
        refuse_other_settings(settings, before, "it was made", "use x")
    except ConfigError as error:
        return str(error)
    return None


def test_a_model_is_its_weights_and_one_of_the_hub_its_name(tmp_path):
    def model_of(name, weights, about):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(weights)
        (folder / "config.json").write_text(about)
        return identity(str(folder))

    model = model_of("a", b"1", "{}")
    moved = model_of("moved", b"1", "{ }")
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
    (tmp_path / "new" / "output.settings.json").unlink()
    record_or_compare(output, {"--flag": 1})
    assert capsys.readouterr().out.startswith(f"note: {output}.settings.json is missing")

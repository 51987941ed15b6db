"""The same settings, or no resume."""

import pytest

from openrlhf_swap.errors import ConfigError
from openrlhf_swap.runs.resume import identity, record_or_compare, refuse_other_settings


def refusal(now, recorded):
    """The error for a setting, or None."""
    try:
        refuse_other_settings({"--flag": now}, {"--flag": recorded}, "the rows were made", "use another --output")
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
    assert refusal(model, moved) is refusal(hub, hub) is refusal(model, {"name": str(tmp_path / "a")}) is None
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


@pytest.mark.parametrize("folder", [True, False])
def test_settings_may_change_until_something_is_written(tmp_path, capsys, folder):
    output = tmp_path / "new" / "output"
    for value in (1, 2):
        record_or_compare(output, {"--flag": value}, "rows", "use another --output")
    if folder:
        output.mkdir()
    torn, whole = (output / "a", output / "a") if folder else (output, output)
    if not folder:
        torn.write_text('{"row": 0')
        record_or_compare(output, {"--flag": 2}, "rows", "use another --output")
    whole.write_text('{"row": 0}\n')
    record_or_compare(output, {"--flag": 2}, "rows", "use another --output")
    with pytest.raises(ConfigError, match=f"^--flag is 1, but the rows in {output} were made with 2; use another"):
        record_or_compare(output, {"--flag": 1}, "rows", "use another --output")
    assert capsys.readouterr().out == ""
    (tmp_path / "new" / "output.settings.json").unlink()
    record_or_compare(output, {"--flag": 1}, "rows", "use another --output")
    assert capsys.readouterr().out.startswith(f"note: {output}.settings.json is missing")

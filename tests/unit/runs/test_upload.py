"""Uploading a policy: what a dry run shows, and what is refused before anything is sent."""

import shutil

import pytest
from support.paths import POLICY

from openrlhf_swap.command import run_command
from openrlhf_swap.runs.upload import main


@pytest.fixture
def policy(tmp_path):
    """The embedded policy with a card."""
    folder = shutil.copytree(POLICY, tmp_path / "policy")
    (folder / "README.md").write_text("---\ntags: [a]\n---\n")
    (folder / "runs").mkdir()
    return folder


def test_a_dry_run_lists_the_files_and_sends_nothing(policy, capsys):
    assert run_command(main, [str(policy), "--to", "me/it", "--dry-run"]) == 0
    *files, last = capsys.readouterr().out.splitlines()
    names = [line.split()[1] for line in files]
    assert names == sorted(file.name for file in policy.iterdir() if file.is_file())
    assert last == f"would upload {len(names)} files to me/it; nothing was sent"


@pytest.mark.parametrize(
    ("missing", "error"),
    [
        ("README.md", "has no README.md: the model card"),
        ("config.json", "has no config.json: the model"),
        ("model.safetensors", "has no weights"),
    ],
)
def test_an_incomplete_policy_is_refused(policy, capsys, missing, error):
    (policy / missing).unlink()
    assert run_command(main, [str(policy), "--to", "me/it"]) == 2
    assert error in capsys.readouterr().err

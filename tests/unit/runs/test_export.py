"""A policy's folder holds a whole policy or none."""

import pytest

from openrlhf_swap.errors import ConfigError
from openrlhf_swap.runs.export import PolicyFolder, exported_bytes


@pytest.fixture
def policy(tmp_path):
    """The folder of an earlier policy of two files of weights, with a user's own file."""
    policy = PolicyFolder(tmp_path / "policy")
    policy.path.mkdir()
    names = ("config.json", "model-1.safetensors", "model.safetensors.index.json", "README.md")
    for name in (*names, "my notes.txt"):
        (policy.path / name).write_text("earlier")
    return policy


def export(policy, *names):
    policy.unfinished.mkdir()
    for name in names:
        (policy.unfinished / name).write_text("new")


def files_of(policy):
    return {file.name: file.read_text() for file in policy.path.iterdir() if file.is_file()}


def test_a_complete_export_takes_the_place_of_the_earlier_policy(policy):
    export(policy, "config.json", "model.safetensors")
    policy.publish()
    new = {"config.json": "new", "model.safetensors": "new"}
    assert files_of(policy) == {**new, "my notes.txt": "earlier"}
    assert not policy.unfinished.exists()


def test_a_failed_export_leaves_the_earlier_policy_and_is_deleted_at_the_next_start(policy):
    before = files_of(policy)
    export(policy, "config.json")
    policy.prepare(needed=0)
    assert files_of(policy) == before
    assert not policy.unfinished.exists()


def test_a_policy_without_room_is_refused_at_the_start(tmp_path):
    policy = PolicyFolder(tmp_path / "new" / "policy")
    with pytest.raises(ConfigError, match=r"GiB are free, but the policy takes 1073741824\.00 GiB"):
        policy.prepare(needed=2**60)
    assert not policy.path.exists()


def test_the_room_is_that_of_the_weights_in_bfloat16():
    sizes = {"a.safetensors": 40, "b.safetensors": 60, "pytorch_model.bin": 90, "config.json": 7}
    files = {name: {"bytes": size} for name, size in sizes.items()}
    assert exported_bytes(files, "bfloat16") == 100
    assert exported_bytes(files, "float32") == 50
    assert exported_bytes({}, "bfloat16") == 0

"""The folders in which Ray runs."""

import os

import pytest
from filelock import FileLock

from openrlhf_swap.process import private_ray
from openrlhf_swap.process.private_ray import OWNER, RAY_FOLDER, delete_left_folders


def folder_of(place, name, age=60):
    """A folder as a dead run leaves it."""
    folder = place / name
    (folder / "session").mkdir(parents=True)
    owner = folder / OWNER
    owner.touch()
    changed = owner.stat().st_mtime - age
    os.utime(owner, (changed, changed))
    return folder


def test_folders_of_dead_runs_are_deleted_and_no_others(tmp_path):
    dead = folder_of(tmp_path, "ray_dead")
    alive = folder_of(tmp_path, "ray_alive")
    new = folder_of(tmp_path, "ray_new", age=0)
    others = tmp_path / "ray_of_somebody_else"
    others.mkdir()
    with FileLock(alive / OWNER):
        delete_left_folders(tmp_path)
        left = set(tmp_path.iterdir())
    assert not dead.exists()
    assert left == {alive, new, others}


def test_a_folder_is_locked_while_it_is_used_and_deleted_afterwards(tmp_path, monkeypatch):
    monkeypatch.setattr(private_ray, "PLACE", tmp_path)
    monkeypatch.setattr(private_ray, "NEW_SECONDS", 0)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delenv(RAY_FOLDER, raising=False)
    with pytest.raises(KeyboardInterrupt), private_ray._private_folder():
        (failed,) = tmp_path.iterdir()
        (failed / "logs").mkdir()
        delete_left_folders(tmp_path)  # another run starts
        assert failed.exists()
        raise KeyboardInterrupt
    assert (failed / "logs").exists()
    with private_ray._private_folder():
        assert not failed.exists()
    assert list(tmp_path.iterdir()) == []

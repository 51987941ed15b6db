"""Is a GCS that ends noticed, by the process that started it and by no other?"""

import shutil
import subprocess
import sys
from pathlib import Path
from queue import Empty, Queue

import pytest

from openrlhf_swap.integration.startup import gcs_watch

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="names of processes as Linux has them")


@pytest.fixture(autouse=True)
def often(monkeypatch):
    monkeypatch.setattr(gcs_watch, "SECONDS", 0.1)


@pytest.fixture
def server(tmp_path):
    """A child process with the name of Ray's."""
    program = tmp_path / gcs_watch.NAME
    shutil.copy(Path("/bin/sleep").resolve(), program)
    with subprocess.Popen([program, "60"]) as process:
        yield process
        process.kill()


def test_its_end_is_told_once_even_before_it_was_waited_for(server):
    told = Queue()
    with gcs_watch.gcs_watched(told.put):
        with pytest.raises(Empty):
            told.get(timeout=3 * gcs_watch.SECONDS)
        server.kill()  # it stays a zombie: Ray waits for it only at the end
        assert told.get(timeout=20) == server.pid
        with pytest.raises(Empty):
            told.get(timeout=3 * gcs_watch.SECONDS)


def test_nothing_is_told_behind_the_block(server):
    told = Queue()
    with gcs_watch.gcs_watched(told.put):
        pass
    server.kill()
    with pytest.raises(Empty):
        told.get(timeout=3 * gcs_watch.SECONDS)


def test_without_a_server_of_its_own_nothing_is_told():
    told = Queue()
    with gcs_watch.gcs_watched(told.put), pytest.raises(Empty):
        told.get(timeout=3 * gcs_watch.SECONDS)

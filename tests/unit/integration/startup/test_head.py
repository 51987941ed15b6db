"""The end of Ray's head, for which a listening socket stands."""

import errno
import signal
import socket
import threading
from types import SimpleNamespace

import pytest
import ray

from openrlhf_swap.integration.startup import head as heads
from openrlhf_swap.integration.startup.head import INTERRUPT, Head

LONG = 60  # seconds, after which a test has failed


@pytest.fixture
def listening(monkeypatch):
    """A socket that listens where Ray says that its head is; looks follow each other at once."""
    before = signal.getsignal(INTERRUPT)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        context = SimpleNamespace(gcs_address=address)
        monkeypatch.setattr(ray, "get_runtime_context", lambda: context)
        monkeypatch.setattr(heads, "LOOK_SECONDS", 0.01)
        yield server
    signal.signal(INTERRUPT, before)


def test_a_head_that_ends_interrupts_the_main_thread(listening):
    head = Head()
    assert head.answers()  # Ray has not started yet
    head.watch(patience=0)
    assert head.answers()
    assert not head.is_lost
    listening.close()
    with pytest.raises(KeyboardInterrupt):
        threading.Event().wait(LONG)
    assert head.is_lost
    assert not head.answers()


def test_a_head_that_comes_back_in_time_is_not_lost(listening):
    head = Head()
    head.watch(patience=LONG)
    place = listening.getsockname()
    listening.close()
    assert not head.answers()
    with socket.create_server(place):
        assert head.answers()
        assert not head.is_lost
    head.close()


def test_after_the_watch_nobody_is_interrupted(listening):
    head = Head()
    head.watch(patience=0)
    watching = [each for each in threading.enumerate() if each.name == "head"]
    head.close()
    for thread in watching:
        thread.join(LONG)
    listening.close()
    assert not head.is_lost


def test_an_error_of_this_process_is_no_lost_head(listening, monkeypatch):
    def fail(*_):
        raise OSError(errno.EMFILE, "Too many open files")

    head = Head()
    head.address = "127.0.0.1:1"
    monkeypatch.setattr(socket, "create_connection", fail)
    assert head.answers()

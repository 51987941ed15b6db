"""Waiting for the nodes of a cluster; and whether a GCS that ends is noticed, by its starter alone."""

import os
import shutil
import subprocess
from pathlib import Path
from queue import Empty, Queue
from types import SimpleNamespace

import pytest
import ray.util.state

from openrlhf_swap.command import run_command
from openrlhf_swap.integration.startup import cluster

NOWHERE = "http://127.0.0.1:9"  # nothing listens on the port for discarding


def node(gpus, state="ALIVE"):
    return SimpleNamespace(state=state, resources_total={"CPU": 4.0, **({"GPU": gpus} if gpus else {})})


@pytest.fixture
def answers(monkeypatch):
    """What Ray answers, one list of nodes a poll; polls follow each other at once."""
    lists = []
    monkeypatch.setattr(ray.util.state, "list_nodes", lambda address: lists.pop(0))
    monkeypatch.setattr(cluster, "POLL_SECONDS", 0)
    return lists


def run(pid_file, nodes=2, gpus=8, wait=60, address=NOWHERE):
    flags = {"--address": address, "--pid-file": pid_file, "--nodes": nodes, "--gpus": gpus, "--wait": wait}
    return run_command(cluster.main, [str(word) for pair in flags.items() for word in pair])


def test_it_waits_for_nodes_that_live_and_have_the_gpus(answers, tmp_path, capsys):
    few = [node(8), node(4), node(8, "DEAD")]
    answers += [few, few, [node(8), node(8)], "not asked for"]
    assert run(tmp_path / "none") == 0
    assert answers == ["not asked for"]
    assert capsys.readouterr().out == "[ray] 1 of 2 nodes with 8 GPUs are there\n"  # once, not at every poll


def test_nodes_without_gpus_count_where_none_are_asked_for(answers, tmp_path):
    answers += [[node(0), node(0)]]
    assert run(tmp_path / "none", gpus=0) == 0


def test_nodes_that_do_not_come_are_one_line(answers, tmp_path, capsys):
    answers += [[node(8)]] * 10
    assert run(tmp_path / "none", wait=-1) == 2
    expected = "error: 1 of 2 nodes with 8 GPUs are there after -1 s; see NUM_NODES, NUM_GPUS and WAIT\n"
    assert capsys.readouterr().err == expected


def test_a_cluster_that_does_not_answer_is_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    assert run(tmp_path / "none", wait=-1) == 2
    message = f"error: no Ray answers at {NOWHERE} (ServerUnavailable) after -1 s; see NUM_NODES, NUM_GPUS and WAIT"
    assert capsys.readouterr().err.splitlines()[-1] == message


def test_a_head_that_has_ended_is_not_waited_for(answers, tmp_path, capsys):
    answers += [[node(8)]] * 2
    pid_file = tmp_path / "started.pid"
    ended = subprocess.Popen(["true"])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)  # a zombie
    for _ in range(2):
        pid_file.write_text(f"{ended.pid}\n")
        assert run(pid_file) == 2
        message = f"error: the Ray of this node, process {ended.pid}, has ended; run head again\n"
        assert capsys.readouterr().err == message
        ended.wait()  # and now there is none
    assert len(answers) == 2


def test_a_head_that_runs_is_no_reason_to_stop(answers, tmp_path):
    answers += [[node(8), node(8)]]
    pid_file = tmp_path / "started.pid"
    pid_file.write_text(f"{os.getpid()}\n")
    assert run(pid_file) == 0


@pytest.fixture(autouse=True)
def often(monkeypatch):
    monkeypatch.setattr(cluster, "GCS_SECONDS", 0.1)


@pytest.fixture
def server(tmp_path):
    """A child process with the name of Ray's."""
    program = tmp_path / cluster.GCS
    shutil.copy(Path("/bin/sleep").resolve(), program)
    with subprocess.Popen([program, "60"]) as process:
        yield process
        process.kill()


def test_its_end_is_told_once_even_before_it_was_waited_for(server):
    told = Queue()
    with cluster.watch_gcs(told.put):
        with pytest.raises(Empty):
            told.get(timeout=3 * cluster.GCS_SECONDS)
        server.kill()  # it stays a zombie: Ray waits for it only at the end
        assert told.get(timeout=20) == server.pid
        with pytest.raises(Empty):
            told.get(timeout=3 * cluster.GCS_SECONDS)


def test_nothing_is_told_behind_the_block(server):
    told = Queue()
    with cluster.watch_gcs(told.put):
        pass
    server.kill()
    with pytest.raises(Empty):
        told.get(timeout=3 * cluster.GCS_SECONDS)


def test_without_a_server_of_its_own_nothing_is_told():
    told = Queue()
    with cluster.watch_gcs(told.put), pytest.raises(Empty):
        told.get(timeout=3 * cluster.GCS_SECONDS)

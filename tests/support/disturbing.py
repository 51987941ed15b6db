"""Training runs whose processes are killed or stopped."""

import contextlib
import re
import signal
import subprocess
import time

import psutil
from ray._private.state import GlobalState
from ray._raylet import GcsClientOptions

from openrlhf_swap.files import read_rows
from support.running import training

ENGINE = "VLLM::EngineCore"
ENDED_SECONDS = 20  # within which nothing of a killed run is left
GCS_ADDRESS = re.compile(r"--gcs-address=(\S+)")


def actors(address, name):
    """Process ids of a Ray cluster's living actors whose class has `name` in it.

    From Ray's tables, because the process titles that it sets do not always appear.
    """
    state = GlobalState()
    state._initialize_global_state(
        GcsClientOptions.create(
            address, None, allow_cluster_id_nil=True, fetch_cluster_id_if_nil=True
        )
    )
    rows = state.actor_table(None, None, None).values()
    return [row["Pid"] for row in rows if name in row["ActorClassName"] and row["State"] == "ALIVE"]


def find_process(tree, name):
    """The first process of a tree that is an actor with `name` in it, or vLLM's engine."""
    titles = {}
    for child in tree.children(recursive=True):
        with contextlib.suppress(psutil.Error):  # one that has just ended
            titles[child] = " ".join(child.cmdline() or [child.name()])
    if name == ENGINE:
        # It does not always manage to set its own title.
        marks = (ENGINE, "multiprocessing.spawn")
        return next(child for child in titles if any(mark in titles[child] for mark in marks))
    found = map(GCS_ADDRESS.search, titles.values())
    (address,) = {match[1] for match in found if match}
    pids = actors(address, name)
    return next(child for child in titles if child.pid in pids)


def is_alive(process):
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def assert_gone(processes):
    """Wait for the end of processes; ends those that are still alive after `ENDED_SECONDS`."""
    deadline = time.monotonic() + ENDED_SECONDS
    while (alive := [each for each in processes if is_alive(each)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    lines = []
    for each in alive:
        with contextlib.suppress(psutil.Error):
            lines.append(" ".join(each.cmdline()) or each.name())
            each.kill()
    assert not lines, lines


class Run:
    """One run that is restarted again and again with the same command."""

    def __init__(self, folder, prompts, flags):
        self.output = folder / "run"
        self.command = training(self.output, prompts, *flags)
        self.log = folder / "log"
        # Every step ever done; a restart removes the steps that it repeats from metrics.jsonl.
        self.done = []
        self.graders_killed = 0

    def new_rows(self):
        return [row for row in read_rows(self.output / "metrics.jsonl") if row not in self.done]

    def start_and_disturb(self, step, process_name, signal_number, is_time=None):
        """Start, wait until it has done `step`, send a signal to one of its processes; returns
        output and exit status.

        `process_name` None is the driver. With `is_time`, the signal comes when that function says
        so. No other process may live for long after the signal, or after a stopped run.
        """
        is_time = is_time or (lambda: step in [row["step"] for row in self.new_rows()])
        started = time.monotonic()
        with open(self.log, "w") as log:
            process = subprocess.Popen(**self.command, stdout=log, stderr=log)
            steps = 0
            while process.poll() is None and not is_time():
                if len(self.new_rows()) > steps:
                    steps += 1
                    print(f"step after {time.monotonic() - started:.0f} s")
                    self._kill_graders(process.pid)
                time.sleep(0.1)
            assert process.poll() is None, self.log.read_text()[-3000:]
            tree = psutil.Process(process.pid)
            target = tree if process_name is None else find_process(tree, process_name)
            others = tree.children(recursive=True)
            target.send_signal(signal_number)
            struck = time.monotonic()
            if signal_number == signal.SIGKILL:
                assert_gone(others)
            status = process.wait(timeout=300)
            assert_gone(others)
        self.done += self.new_rows()
        print(
            f"{process_name} gets {signal_number!r}: all ends in {time.monotonic() - struck:.1f} s"
        )
        return self.log.read_text(), status

    def _kill_graders(self, pid):
        """Kill the grading processes, as the kernel does when memory runs out: the next grade comes
        from new ones.
        """
        for child in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if "rewards.grader" in " ".join(child.cmdline()):
                    child.kill()
                    self.graders_killed += 1

    def latest(self):
        return (self.output / "checkpoints" / "_actor" / "latest").read_text()


def errors(output):
    return [line for line in output.splitlines() if line.startswith("error:")]

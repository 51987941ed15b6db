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
ENGINE_TITLE = re.compile(f"{ENGINE}|multiprocessing.spawn")
# Within this time every process of a killed run has ended.
ENDED_SECONDS = 20
GCS_ADDRESS = re.compile(r"--gcs-address=(\S+)")


def actors(address, name):
    """Process ids of a Ray cluster's living actors whose class has `name` in it.

    They come from Ray's tables, because the process titles that it sets do not always appear.
    """
    options = GcsClientOptions.create(
        address, None, allow_cluster_id_nil=True, fetch_cluster_id_if_nil=True
    )
    state = GlobalState()
    state._initialize_global_state(options)
    rows = state.actor_table(None, None, None).values()
    alive = [row for row in rows if row["State"] == "ALIVE"]
    return [row["Pid"] for row in alive if name in row["ActorClassName"]]


def find_process(tree, name):
    """The first process of a tree that is an actor with `name` in it, or vLLM's engine."""
    titles = {}
    addresses = set()
    for child in tree.children(recursive=True):
        with contextlib.suppress(psutil.Error):  # a process that has just ended
            titles[child] = " ".join(child.cmdline() or [child.name()])
            addresses.update(GCS_ADDRESS.findall(titles[child]))
    if name == ENGINE:
        # vLLM's engine does not always manage to set its own title.
        found = [child for child, title in titles.items() if ENGINE_TITLE.search(title)]
    else:
        (address,) = addresses
        pids = actors(address, name)
        found = [child for child in titles if child.pid in pids]
    return found[0]


def is_alive(process):
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def assert_gone(processes):
    """Wait until processes have ended; kills those that are alive after `ENDED_SECONDS`."""
    deadline = time.monotonic() + ENDED_SECONDS
    while time.monotonic() < deadline and any(map(is_alive, processes)):
        time.sleep(0.1)
    left = []
    for process in filter(is_alive, processes):
        with contextlib.suppress(psutil.Error):
            left.append(" ".join(process.cmdline()) or process.name())
            process.kill()
    assert not left, left


class Run:
    """One run that is restarted again and again with the same command."""

    def __init__(self, folder, prompts, flags):
        self.output = folder / "run"
        self.command = training(self.output, prompts, *flags)
        self.log = folder / "log"
        # The rows of every step ever done: a restart removes those that it repeats from the file.
        self.done = []
        self.graders_killed = 0

    def new_rows(self):
        return [row for row in read_rows(self.output / "metrics.jsonl") if row not in self.done]

    def start_and_disturb(self, step, process_name, signal_number, is_time=None):
        """Start the run, wait until it has done `step`, and send a signal to one of its processes.

        `process_name` None is the driver. With `is_time`, the signal comes when that function says
        so. No other process may live for long after the signal, or after a stopped run.

        Returns: the run's output and exit status.
        """
        with open(self.log, "w") as log:
            process = subprocess.Popen(**self.command, stdout=log, stderr=log)
            self._wait(process, is_time or (lambda: self._has_done(step)))
            tree = psutil.Process(process.pid)
            target = tree if process_name is None else find_process(tree, process_name)
            others = tree.children(recursive=True)
            target.send_signal(signal_number)
            if signal_number == signal.SIGKILL:
                assert_gone(others)
            status = process.wait(timeout=300)
            assert_gone(others)
        self.done += self.new_rows()
        return self.log.read_text(), status

    def _has_done(self, step):
        return any(row["step"] == step for row in self.new_rows())

    def _wait(self, process, is_time):
        """Wait until `is_time()`; kills the graders after each step."""
        steps = 0
        while process.poll() is None and not is_time():
            if len(self.new_rows()) > steps:
                steps += 1
                self._kill_graders(process.pid)
            time.sleep(0.1)
        assert process.poll() is None, self.log.read_text()[-3000:]

    def _kill_graders(self, pid):
        """Kill the grading processes, as the kernel does when memory runs out.

        The next grade must come from new ones.
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

"""Training runs whose processes are killed or stopped."""

import contextlib
import signal
import subprocess
import time

import psutil

from openrlhf_swap.files import read_rows
from support.running import training


class Run:
    """One run that is started again and again, always with the same command."""

    def __init__(self, folder, prompts, flags):
        self.output = folder / "run"
        self.command = training(self.output, prompts, *flags)
        self.log = folder / "log"
        self.done = []  # every step that was ever done; a start takes out of metrics.jsonl what it does again
        self.graders_killed = 0

    def new_rows(self):
        return [row for row in read_rows(self.output / "metrics.jsonl") if row not in self.done]

    def start_and_disturb(self, step, process_name, signal_number):
        """Start, wait until it has done `step`, send a signal to one of its processes; returns output and exit status.

        `process_name` None is the driver. The output is what came after the signal.
        """
        started = time.monotonic()
        with open(self.log, "w") as log:
            process = subprocess.Popen(**self.command, stdout=log, stderr=log)
            recovered, steps = 0.0, 0
            while process.poll() is None and step not in [row["step"] for row in self.new_rows()]:
                if not self.new_rows():
                    recovered = time.monotonic() - started
                elif len(self.new_rows()) > steps:
                    steps = len(self.new_rows())
                    self._kill_graders(process.pid)
                time.sleep(0.05)
            assert process.poll() is None, self.log.read_text()[-3000:]
            tree = psutil.Process(process.pid)
            target = tree if process_name is None else self._find(tree, process_name)
            target.send_signal(signal_number)
            disturbed = time.monotonic()
            status = process.wait(timeout=300)
        self.done += self.new_rows()
        name = process_name or "driver"
        print(
            f"first new step after {recovered:.0f} s; {name} gets {signal.Signals(signal_number).name} after {step}: "
            f"ended after {time.monotonic() - disturbed:.1f} s with status {status}"
        )
        return self.log.read_text(), status

    def _kill_graders(self, pid):
        """As the kernel does for want of memory: the next grade comes from new ones."""
        for child in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if "rewards.worker" in " ".join(child.cmdline()):
                    child.kill()
                    self.graders_killed += 1

    @staticmethod
    def _find(tree, name):
        titles = {}
        for child in tree.children(recursive=True):
            with contextlib.suppress(psutil.Error):  # one that has just ended
                title = " ".join(child.cmdline() or [child.name()])
                titles[child] = f"{child.pid} of {child.ppid()}, {time.time() - child.create_time():.0f} s: {title}"
        # vLLM's engine does not always manage to give itself its name.
        names = (name, "multiprocessing.spawn") if name == "VLLM::EngineCore" else (name,)
        found = [child for child, title in titles.items() if any(each in title for each in names)]
        assert found, "\n".join([f"no {name} among:", *(title[:200] for title in titles.values())])
        return found[0]

    def latest(self):
        return (self.output / "checkpoints" / "_actor" / "latest").read_text()


def errors(output):
    return [line for line in output.splitlines() if line.startswith("error:")]

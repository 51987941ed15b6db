"""One start of the training: watched, disturbed, and followed until nothing of it is left."""

import contextlib
import ctypes
import hashlib
import os
import signal
import subprocess
import threading
import time
from dataclasses import asdict

import psutil
from support.disturbing import ENDED_SECONDS, errors, is_alive, left_over
from support.running import of_the_run, training

from openrlhf_swap.files import read_rows
from soak import faults

BATCH = 16  # prompts of a step
STUCK_SECONDS = 900  # without a new step, which no limit of the run itself allows
MEMORY_SECONDS = 10
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
_libc = ctypes.CDLL(None, use_errno=True)
FLAGS = ["--ckpt.save_steps", "5", "--ckpt.load_enable", "--train.full_determinism_enable"]
FLAGS += ["--swap.rollouts_every", "1", "--swap.generation_timeout", "60"]


def adopt_orphans():
    """Whatever a run leaves becomes a child of this process, so that nothing can hide from it."""
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


@contextlib.contextmanager
def burying(process):
    """Meanwhile, wait for orphans that have ended, as init does: a zombie raylet looks alive to its
    workers.
    """
    over = threading.Event()

    def bury():
        while not over.wait(0.2):
            for child in psutil.Process().children():
                with contextlib.suppress(psutil.Error, ChildProcessError):
                    if child.pid != process.pid and child.status() == psutil.STATUS_ZOMBIE:
                        os.waitpid(child.pid, 0)

    thread = threading.Thread(target=bury, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def differences(row, expected):
    """Names of the metrics in which two rows differ, bit for bit (-0.0 is not 0.0; null equals
    null).
    """
    ours, theirs = of_the_run([row, expected], "swap/grader_slow")
    return sorted(
        name
        for name in ours.keys() | theirs.keys()
        if repr(ours.get(name, "")) != repr(theirs.get(name, ""))
    )


def results(output):
    """What a finished run delivers: the policy, and each table of rollouts."""
    files = [output / "policy" / "model.safetensors", *(output / "rollouts").iterdir()]
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def unequal_results(output, calm):
    """Names of the files in which a finished run differs from the calm one."""
    return sorted({name for name, _ in results(output).items() ^ results(calm).items()})


class Training:
    """A training of `steps` steps into `output`, started as often as needed; `clock` gives the
    soak's seconds.
    """

    def __init__(self, output, prompts, steps, clock):
        self.output, self.clock = output, clock
        self.command = training(output, prompts, *FLAGS, "--data.max_samples", str(steps * BATCH))
        self.command["env"] |= {"STEPS": str(steps), "LEARNING_RATE": "1e-4"}
        self.log = output.parent / "console.log"
        self.checkpoints = output / "checkpoints"

    def rows(self):
        """Its metrics so far, one row a step."""
        return list(read_rows(self.output / "metrics.jsonl"))

    def start(self, expected, plan, record, end_at=float("inf")):
        """Start and follow it to its end; returns a row about it.

        `expected` are the calm run's rows by step, None for that run itself; `plan` holds the
        faults to come, `record` takes events. At the soak's second `end_at` it is ended.
        """
        with open(self.log, "w") as log:
            process = subprocess.Popen(
                **self.command, stdout=log, stderr=log, preexec_fn=_die_with_parent
            )
        attempt = Attempt(self, process, expected, record)
        with burying(process):
            self._follow(attempt, plan, end_at)
            return attempt.end()

    def _follow(self, attempt, plan, end_at):
        process = attempt.process
        while process.poll() is None:
            time.sleep(0.5)
            now = self.clock()
            attempt.look(now)
            attempt.let_go_on(now)
            if plan is not None and plan.is_due(now, attempt.first_step):
                attempt.disturb(plan.take(now), now)
            if not attempt.by_us and (now - attempt.last_step > STUCK_SECONDS or now > end_at):
                attempt.by_us = True
                attempt.record("stuck" if now <= end_at else "time is over")
                process.kill()
        attempt.look(self.clock())


class Attempt:
    """One start of a training, from its first process to its last."""

    def __init__(self, training, process, expected, record):
        self.training, self.process, self.expected, self.record = (
            training,
            process,
            expected,
            record,
        )
        self.tree = psutil.Process(process.pid)
        self.roles = {}  # by process
        self.before, self.seen = training.rows(), []
        self.started = self.last_step = self.sampled = training.clock()
        self.first_step = None
        self.struck, self.stopped = [], {}
        self.by_us = False

    def look(self, now):
        """Compare the new steps, and sample the memory when it is time."""
        for each in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                role = faults.role_of(" ".join(each.cmdline()), each.name())
                self.roles[each] = self.roles.get(each, role) if role == faults.UNNAMED else role
        for row in self.training.rows():
            if row not in self.before and row not in self.seen:
                self.seen.append(row)
                self.last_step, self.first_step = now, self.first_step or now
                wrong = (
                    differences(row, self.expected.get(row["step"], {})) if self.expected else []
                )
                if wrong:
                    self.record("unequal", step=row["step"], metrics=wrong)
        if now - self.sampled > MEMORY_SECONDS:
            self.sampled = now
            self.record(
                "memory", working=self.first_step is not None, pss=memory_by_role(self.roles)
            )

    def disturb(self, fault, now):
        """Let a fault strike."""
        chosen = faults.targets(fault, self.tree, self.roles)
        for each in chosen:
            with contextlib.suppress(psutil.Error, ProcessLookupError):  # it has just ended
                faults.strike(fault, each)
                if fault.seconds:
                    self.stopped[each] = now + fault.seconds
        self.struck.append(fault.kind)
        struck = sorted({self.roles.get(each, fault.target) for each in chosen})
        self.record("fault", **asdict(fault), struck=struck, step=len(self.training.rows()))

    def let_go_on(self, now):
        """Wake the processes whose stop is over."""
        for each in [each for each, until in self.stopped.items() if until < now]:
            del self.stopped[each]
            with contextlib.suppress(psutil.Error):
                each.send_signal(signal.SIGCONT)

    def end(self):
        """Wait for all that the run has started to end, as it has to by itself."""
        start = time.monotonic()
        lines = left_over(psutil.Process().children(recursive=True), start + ENDED_SECONDS)
        gone = time.monotonic() - start
        now = self.training.clock()
        return {
            "status": self.process.returncode,
            "errors": errors(self.training.log.read_text(errors="replace")),
            "left_over": [line.strip()[:200] for line in lines],
            "gone_after": round(gone, 1),
            "seconds": round(now - self.started),
            "first_step_after": round(self.first_step - self.started) if self.first_step else None,
            "steps": len(self.seen),
            "struck": self.struck,
            "by_us": self.by_us,
        }


def memory_by_role(roles):
    """Proportional set size of the living processes of each role, in MiB."""
    found = {}
    for process, role in roles.items():
        if is_alive(process):
            with contextlib.suppress(psutil.Error):
                found[role] = found.get(role, 0) + process.memory_full_info().pss
    return {role: round(size / 2**20, 1) for role, size in sorted(found.items())}


def _die_with_parent():
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

"""The faults of a soak: which one strikes when, drawn from a seed, and how it is done to a running
training.
"""

import random
import resource
import signal
from dataclasses import dataclass

from support.disturbing import ENGINE

# What a command line holds, by the role of the process.
MARKS = {
    "driver": "openrlhf_swap train",
    "policy": "ray::IntrinsicRewardActor",
    "rollout actor": "ray::SwapRolloutActor",
    "engine": ENGINE,
    "grader": "rewards.grader",
    "raylet": "/raylet/raylet ",
    "gcs": "/gcs/gcs_server ",
}
OTHER, UNNAMED = (
    "Ray's helpers",
    "actors without a title",
)  # which Ray does not always manage to set
# Kind -> whom it may strike, how often it is drawn, and how many seconds it lasts.
KINDS = {
    "kill": ((*MARKS,), 8, (0, 0)),
    "stop": ((*MARKS,), 5, (5, 90)),
    "no graders": (("grader",), 1, (0, 0)),
    "slow grader": (("grader",), 2, (20, 50)),
    "full disk": (("policy",), 2, (0, 0)),
}
ROOM = {"policy": 4 * 2**20}  # bytes that a file may have on the full disk

EARLY = 0.2  # share of the faults that may strike a run that has not done a step yet


@dataclass(frozen=True)
class Fault:
    """A fault that strikes `after` seconds; `draw` decides whether it may strike early."""

    after: float
    kind: str
    target: str
    seconds: float
    draw: float


def schedule(seed, apart):
    """Faults without end, `apart` (least, most) seconds; the same for the same seed."""
    rng = random.Random(seed)
    weights = [weight for _, weight, _ in KINDS.values()]
    while True:
        (kind,) = rng.choices([*KINDS], weights)
        targets, _, span = KINDS[kind]
        yield Fault(
            rng.uniform(*apart), kind, rng.choice(targets), rng.uniform(*span), rng.random()
        )


def role_of(command, name=""):
    """The role of a process by its command line and the kernel's name for it; UNNAMED for an actor
    without a title.
    """
    found = [role for role, mark in MARKS.items() if mark in command or mark[:15] == name]
    if not found and "multiprocessing.spawn" in command:
        return "engine"  # it does not always manage to set its own title
    if not found and ("default_worker.py" in command or command.startswith("ray::IDLE")):
        return UNNAMED
    return found[0] if found else OTHER


class Plan:
    """The faults of a seed, one after the other, by the soak's seconds."""

    def __init__(self, seed, apart, taken, now):
        self._faults = schedule(seed, apart)
        for _ in range(taken):  # by an earlier start
            next(self._faults)
        self._next, self._since = next(self._faults), now

    def is_due(self, now, first_step):
        """Whether the next fault strikes now, in a run whose first new step was done at
        `first_step`, if it was.

        Most wait for that step, because a busy machine would otherwise never get beyond it.
        """
        if self._next.draw < EARLY:
            return now >= self._since + self._next.after
        return first_step is not None and now >= max(first_step, self._since) + self._next.after

    def take(self, now):
        """The fault that is due; the one after it follows in its time."""
        fault = self._next
        self._next, self._since = next(self._faults), now
        return fault


def targets(fault, tree, roles):
    """The processes that a fault strikes: those of its role, or the driver (`tree`) where there is
    none yet.

    `roles` are those known so far, by process.
    """
    found = [
        process for process, role in roles.items() if role == fault.target and process.is_running()
    ]
    if fault.target == "grader" and not found:
        return []
    return found if fault.kind == "no graders" else (found or [tree])[:1]


def strike(fault, process):
    """Do it to a process."""
    if fault.kind in ("stop", "slow grader"):
        process.send_signal(signal.SIGSTOP)
    elif fault.kind == "full disk":
        _, most = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (ROOM.get(fault.target, 4096), most))
    else:
        process.kill()

r"""Train all arms unattended, each with the evaluation of its policy; the base is evaluated first.

    python -m studies.real_model.trainings --size gpu --output outputs/real_model \
        --until $(date -d '14 minutes' +%s)

OUTPUT/data comes from `studies.real_model.data`. As many trainings run at a time as the size has
slots. A training leaves its files in OUTPUT/runs/ARM_SEED, and the evaluation of its policy in
`evaluation` there; the base's evaluation is OUTPUT/base. OUTPUT/progress.jsonl gets a line for each
training and each evaluation that ended: arm, seed, stage, start, commit, seconds, and its fault or
null. OUTPUT/logs has what the commands printed.

`--until` is a time in seconds since 1970. What is not expected to end before it does not begin: a
training begins if time is left for it and its evaluation. What still runs is stopped by SIGTERM, a
training early enough for the evaluations of the others. The same command does what is missing.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

from openrlhf_swap.command import Parser, run_command
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.evaluation.samples import SampleFiles
from openrlhf_swap.files import appending, drop_unfinished_line, read_rows, to_line
from openrlhf_swap.process.locks import locked
from openrlhf_swap.process.sessions import end_session, ended_by_sigterm, start_session
from openrlhf_swap.recipes import as_words
from openrlhf_swap.runs.provenance import commit
from studies.real_model.data import held_out_file
from studies.real_model.settings import BASE, ROOT, SETTINGS, Arm, Run, Size, read_size

COMMAND = "python -m studies.real_model.trainings"
PROGRAM = [sys.executable, "-m", "openrlhf_swap"]
TRAIN, EVALUATE = "train", "evaluate"
POLL_SECONDS = 1.0
GRACE_SECONDS = 20.0  # for a command to end by itself after SIGTERM
# vLLM refuses to start if another process frees memory of the same GPU while it measures its own.
ATTEMPTS = 3


class Deadline:
    """The time at which everything has to be done."""

    def __init__(self, until: float) -> None:
        """`until` is in seconds since 1970, or infinity."""
        self._until = until

    def left(self) -> float:
        """The seconds until then."""
        return self._until - time.time()

    def bring_forward(self) -> None:
        """Make it now, so that nothing begins and everything that runs is stopped."""
        self._until = 0.0


@dataclass(frozen=True)
class Ended:
    """A line of progress.jsonl: a training or an evaluation that ended, or did not begin.

    Attributes:
        arm: its name, or that of the base.
        seed: the training's; None for the base.
        stage: TRAIN or EVALUATE.
        started: the time in UTC.
        commit: of the checkout; None without one.
        seconds: 0 for what did not begin.
        fault: None for a success.
    """

    arm: str
    seed: int | None
    stage: str
    started: str
    commit: str | None
    seconds: float
    fault: str | None

    @property
    def run(self) -> Run:
        """The run that it belongs to."""
        return Run(self.arm, self.seed)


class Progress:
    """The lines of progress.jsonl, of this start and of earlier ones."""

    def __init__(self, file: Path) -> None:
        drop_unfinished_line(file)
        self._file = file
        self._lock = threading.Lock()
        self._ended = read_progress(file)

    def add(self, ended: Ended) -> None:
        """Append a line, and print it."""
        with self._lock:
            self._ended.append(ended)
            with appending(self._file) as append:
                append(asdict(ended))
            print(to_line(asdict(ended)), end="", flush=True)

    def is_done(self, run: Run, stage: str) -> bool:
        """Whether this has succeeded."""
        with self._lock:
            done = [ended for ended in self._ended if ended.fault is None]
            return any(ended.run == run and ended.stage == stage for ended in done)

    def longest(self, stage: str) -> float:
        """The seconds of the slowest success of this stage; 0 if there was none."""
        with self._lock:
            done = [ended for ended in self._ended if ended.fault is None]
            return max((ended.seconds for ended in done if ended.stage == stage), default=0.0)


def read_progress(file: Path) -> list[Ended]:
    """The lines of progress.jsonl; none if there is no file."""
    return [Ended(**row) for row in read_rows(file)]


def run_before(
    command: Sequence[str], log: Path, deadline: Deadline, reserve: float, cache: Path
) -> str | None:
    """Run a command until `reserve` seconds before the deadline, with its output in `log`.

    At that time it gets SIGTERM, and after GRACE_SECONDS all that it started is killed.

    Args:
        command: the words of the command.
        log: the file to which its output is appended.
        deadline: the deadline, which may be brought forward meanwhile.
        reserve: seconds.
        cache: vLLM's folder for compiled code.

    Returns None, or why the command did not succeed.
    """
    with log.open("ab") as output:
        environment = {**os.environ, "VLLM_CACHE_ROOT": str(cache)}
        options = {"stdout": output, "stderr": subprocess.STDOUT, "cwd": ROOT}
        process = start_session(command, env=environment, **options)
        try:
            while deadline.left() > reserve:
                with suppress(subprocess.TimeoutExpired):
                    status = process.wait(POLL_SECONDS)
                    said = f"{log.parent.name}/{log.name}"
                    return f"ended with status {status}; see {said}" if status else None
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_SECONDS)
            return "stopped by SIGTERM"
        finally:
            end_session(process)


@dataclass(frozen=True)
class Work:
    """A training or an evaluation that is to be done.

    Attributes:
        command: its words.
        needed: seconds that have to be left for it to begin.
        reserve: seconds before the deadline at which it is stopped.
    """

    run: Run
    stage: str
    command: Sequence[str]
    needed: float
    reserve: float


@dataclass(frozen=True)
class Study:
    """The trainings of a size, in a folder."""

    size: Size
    output: Path
    deadline: Deadline
    progress: Progress
    slots: SimpleQueue[int]  # the numbers of those that are free

    def do_missing(self) -> None:
        """Evaluate the base, and train and evaluate every arm, unless it was done before."""
        with ThreadPoolExecutor(self.size.slots) as pool:
            # First in the queue, so that a training that waits for it never keeps it waiting.
            base = pool.submit(self.in_a_slot, self.evaluate_base)
            pending = [base]
            for run in self.size.runs():
                pending.append(pool.submit(self.in_a_slot, self.train_and_evaluate, run, base))
            try:
                for each in pending:
                    each.result()
            except BaseException:
                self.deadline.bring_forward()
                raise

    def in_a_slot(self, work: Callable[..., bool], *arguments: Any) -> bool:
        """Call `work` with a folder for compiled code that nobody else uses at this time."""
        slot = self.slots.get()
        try:
            return work(*arguments, self.output / "cache" / str(slot))
        finally:
            self.slots.put(slot)

    def evaluate_base(self, cache: Path) -> bool:
        """Evaluate the base; returns whether its evaluation is there."""
        return self.evaluate(Run(BASE), self.size.model, cache)

    def train_and_evaluate(self, run: Run, base: Future[bool], cache: Path) -> bool:
        """Train, then evaluate the policy; returns whether its evaluation is there."""
        if not self.train(run, base, cache):
            return False
        return self.evaluate(run, str(run_folder(self.output, run) / "policy"), cache)

    def train(self, run: Run, base: Future[bool], cache: Path) -> bool:
        """Train, unless it was done before; returns whether there is a policy."""
        if self.progress.is_done(run, TRAIN):
            return True
        arm = self.size.arm_of(run)
        if arm.limit_percentile is not None and not base.result():
            fault = "not begun: its limit needs the evaluation of the base"
            return self.record(run, TRAIN, now(), 0.0, fault)
        words = training_words(self.size, arm, run, self.output)
        reserve = self.expected(EVALUATE)
        needed = self.expected(TRAIN) + reserve
        return self.do(Work(run, TRAIN, [*PROGRAM, "train", *words], needed, reserve), cache)

    def evaluate(self, run: Run, model: str, cache: Path) -> bool:
        """Evaluate a model, unless it was done before; returns whether its evaluation is there.

        An evaluation that fails is repeated.
        """
        if self.progress.is_done(run, EVALUATE):
            return True
        words = evaluation_words(self.size, model, run, self.output)
        needed = self.expected(EVALUATE)
        work = Work(run, EVALUATE, [*PROGRAM, "eval", "run", *words], needed, GRACE_SECONDS)
        for _ in range(ATTEMPTS):
            if self.do(work, cache):
                return True
            if self.deadline.left() < needed:
                break
        return False

    def expected(self, stage: str) -> float:
        """The seconds that a training or an evaluation is expected to take."""
        guesses = {TRAIN: self.size.train_seconds, EVALUATE: self.size.evaluate_seconds}
        return self.progress.longest(stage) or guesses[stage]

    def do(self, work: Work, cache: Path) -> bool:
        """Run a command if time is left for it, and record how it ended; whether it succeeded."""
        started = now()
        left = self.deadline.left()
        if left < work.needed:
            reason = f"not begun: {max(0, left):.0f} seconds were left, it needs {work.needed:.0f}"
            return self.record(work.run, work.stage, started, 0.0, reason)
        clock = time.monotonic()
        log = self.output / "logs" / f"{work.run.name}.{work.stage}.txt"
        fault = run_before(work.command, log, self.deadline, work.reserve, cache)
        return self.record(work.run, work.stage, started, time.monotonic() - clock, fault)

    def record(self, run: Run, stage: str, started: str, seconds: float, fault: str | None) -> bool:
        """Add a line to the progress; returns whether it is of a success."""
        took = round(seconds, 1)
        self.progress.add(Ended(run.arm, run.seed, stage, started, commit(), took, fault))
        return fault is None


def now() -> str:
    """The time, in UTC."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def training_words(size: Size, arm: Arm, run: Run, output: Path) -> list[str]:
    """The flags of `openrlhf-swap train` for a run."""
    words = []
    for preset in size.presets:
        words += ["--config", preset]
    flags = {
        **size.flags,
        **arm.flags,
        "swap.output_dir": run_folder(output, run),
        "actor.model_name_or_path": size.model,
        "data.prompt_dataset": output / "data" / "train.jsonl",
        "train.seed": run.seed,
    }
    if arm.limit_percentile is not None:
        flags["rollout.max_new_tokens"] = length_limit(size, arm.limit_percentile, output)
    return words + as_words(flags)


def length_limit(size: Size, percentile: float, output: Path) -> int:
    """This percentile of the base's lengths in tokens, rounded up: the shortest limit that it fits.

    The lengths are those of the responses to the first set of held-out problems.
    """
    files = SampleFiles(evaluation_folder(output, Run(BASE)), next(iter(size.held_out)))
    tokens = [row["tokens"] for row in files.rows("samples")]
    return math.ceil(np.percentile(tokens, percentile))


def evaluation_words(size: Size, model: str, run: Run, output: Path) -> list[str]:
    """The flags of `openrlhf-swap eval run` for a model."""
    files = [str(held_out_file(output / "data", name)) for name in size.held_out]
    flags = {**size.evaluation, "suffix": size.suffix}
    folder = evaluation_folder(output, run)
    words = ["--model", model, "--output", str(folder), "--benchmarks", *files]
    return words + as_words(flags)


def run_folder(output: Path, run: Run) -> Path:
    """The folder of a training."""
    return output / "runs" / run.name


def evaluation_folder(output: Path, run: Run) -> Path:
    """The folder of the samples of a policy, or of the base."""
    if run == Run(BASE):
        return output / BASE
    return run_folder(output, run) / "evaluation"


def main(argv: list[str]) -> int:
    args = parse_flags(argv)
    size = read_size(args.size, args.settings)
    model = args.model or size.model
    if Path(model).exists():
        model = str(Path(model).resolve())  # the commands run in the checkout
    size = replace(size, model=model)
    output = args.output.resolve()
    if not (output / "data" / "train.jsonl").exists():
        raise ConfigError(
            f"--output is {args.output}, which holds no data; write it first: "
            f"python -m studies.real_model.data --size {args.size} --output {args.output}"
        )
    slots: SimpleQueue[int] = SimpleQueue()
    for slot in range(size.slots):
        slots.put(slot)
    with locked({"--output": output}), ended_by_sigterm():
        (output / "logs").mkdir(exist_ok=True)
        progress = Progress(output / "progress.jsonl")
        Study(size, output, Deadline(args.until), progress, slots).do_missing()
    missing = [run.name for run in [Run(BASE), *size.runs()] if not progress.is_done(run, EVALUATE)]
    if missing:
        print(f"without an evaluation: {', '.join(missing)}; the same command goes on")
    return 1 if missing else 0


def parse_flags(argv: Sequence[str]) -> Namespace:
    """Parse the command line."""
    parser = Parser(COMMAND, __doc__)
    parser.add_argument("--size", required=True, help="a size of the settings, such as gpu")
    parser.add_argument("--settings", type=Path, default=SETTINGS, help="the file of sizes")
    parser.add_argument("--output", type=Path, required=True, help="folder of the whole study")
    parser.add_argument("--model", help="hub id or folder of the base, instead of the size's")
    text = "time at which everything has to be done, in seconds since 1970; never by default"
    parser.add_argument("--until", type=float, default=math.inf, help=text)
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(run_command(main))

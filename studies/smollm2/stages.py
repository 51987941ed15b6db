"""Stages: each runs once, is announced with an estimate, and is timed."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openrlhf_swap.errors import ConfigError, RunError
from openrlhf_swap.files import to_line, write_text
from openrlhf_swap.quickstart.run import memory_gib

MARK = "[smollm2]"
LEASH = [sys.executable, "-m", "openrlhf_swap.process.leash"]  # ends a command with this process


@dataclass(frozen=True)
class Stage:
    """A stage: what it does, its seconds on two cores, its settings and its work.

    Its files depend on the settings. The work returns numbers to keep, such as the peak memory.
    """

    name: str
    what: str
    seconds: float
    settings: dict[str, Any]
    work: Callable[[], dict[str, Any]]


def pause() -> int:
    """Seconds between two updates of a progress bar: frequent in a terminal, rare in a log file."""
    return 1 if sys.stderr.isatty() else 20


def watched(command: list[str]) -> float:
    """Run a command that shows its own progress; returns the peak memory of its processes in GiB.

    Raises:
        RunError: when it fails; its own output is above.
    """
    process = subprocess.Popen([*LEASH, *command])
    peak = 0.0
    try:
        while process.returncode is None:
            peak = max(peak, memory_gib(process.pid))
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=10)  # measuring more often would slow the training down
    finally:
        process.terminate()
    if process.returncode:
        raise RunError(
            f"{command[2]} ended with status {process.returncode}; the same command goes on from "
            "there"
        )
    return peak


def do(stages: list[Stage], folder: Path) -> Iterator[str]:
    """Run the stages that are left, announcing each; yields the names of those that ran now.

    Raises:
        ConfigError: for a stage that was done with other settings.
    """
    for number, stage in enumerate(stages, 1):
        title = f"{MARK} {number}/{len(stages)} {stage.name}"
        path = folder / f"{stage.name}.json"
        if path.exists():
            done = json.loads(path.read_text(encoding="utf-8"))
            if done["settings"] != stage.settings:
                raise ConfigError(
                    f"{stage.name} was done with {done['settings']}, and is asked for with "
                    f"{stage.settings}; use "
                    f"another --output, for a training another --run, or remove {path}"
                )
            print(f"{title}: done before, in {in_words(done['seconds'])}", flush=True)
            continue
        print(f"{title}: {stage.what}; about {in_words(stage.seconds)} on two cores", flush=True)
        started = time.perf_counter()
        found = stage.work()
        seconds = time.perf_counter() - started
        folder.mkdir(parents=True, exist_ok=True)
        write_text(
            path,
            to_line({"settings": stage.settings, "seconds": round(seconds, 1), **found}, indent=2),
        )
        found_text = "".join(f", {key} {value:,.4g}" for key, value in found.items())
        print(f"{title}: {in_words(seconds)}{found_text}", flush=True)
        yield stage.name


def in_words(seconds: float) -> str:
    """A duration in words."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} minutes"

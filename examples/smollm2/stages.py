"""What a stage is, and how stages are done: each once, announced with its time, and timed."""

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

from quickstart import ending_with_us, memory_gib

from openrlhf_swap.errors import ConfigError, LostActorError
from openrlhf_swap.files import to_line, write_text

MARK = "[smollm2]"


@dataclass(frozen=True)
class Stage:
    """A stage: what it does, its seconds on two cores, the settings that its files depend on, and the doing.

    The doing returns numbers to keep, such as the peak memory.
    """

    name: str
    what: str
    seconds: float
    settings: dict[str, Any]
    work: Callable[[], dict[str, Any]]


def pause() -> int:
    """Seconds between two looks of a bar: a terminal gets a moving one, a log file a line now and then."""
    return 1 if sys.stderr.isatty() else 20


def watched(command: list[str]) -> float:
    """Run a command that shows its progress itself; returns the GiB that its processes occupied at most.

    Raises:
        LostActorError: when it fails; its own words stand above.
    """
    process, peak = subprocess.Popen(ending_with_us(command)), 0.0
    try:
        while process.returncode is None:
            peak = max(peak, memory_gib(process.pid))
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=10)  # to look more often would take time from the training
    finally:
        process.terminate()
    if process.returncode:
        raise LostActorError(
            f"{command[2]} ended with status {process.returncode}; the same command goes on from there"
        )
    return peak


def do(stages: list[Stage], folder: Path) -> Iterator[str]:
    """Do what is left, each stage announced with its time; yields the names of those that were done now.

    Raises:
        ConfigError: for a stage that was done with other settings.
    """
    for number, stage in enumerate(stages, 1):
        title, path = f"{MARK} {number}/{len(stages)} {stage.name}", folder / f"{stage.name}.json"
        if path.exists():
            done = json.loads(path.read_text(encoding="utf-8"))
            if done["settings"] != stage.settings:
                raise ConfigError(
                    f"{stage.name} was done with {done['settings']}, and is asked for with {stage.settings}; use "
                    f"another --output, for a training another --run, or remove {path}"
                )
            print(f"{title}: done before, in {told(done['seconds'])}", flush=True)
            continue
        print(f"{title}: {stage.what}; about {told(stage.seconds)} on two cores", flush=True)
        started = time.perf_counter()
        found = stage.work()
        seconds = time.perf_counter() - started
        folder.mkdir(parents=True, exist_ok=True)
        write_text(path, to_line({"settings": stage.settings, "seconds": round(seconds, 1), **found}, indent=2))
        told_of = "".join(f", {key} {value:,.4g}" for key, value in found.items())
        print(f"{title}: {told(seconds)}{told_of}", flush=True)
        yield stage.name


def told(seconds: float) -> str:
    """A time in words."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} minutes"

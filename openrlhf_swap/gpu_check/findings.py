"""The checks, what each found, and what to do where something is wrong.

docs/use/troubleshooting.md has a line for each check and for each cause in `diagnosis`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tabulate import tabulate


@dataclass(frozen=True)
class Check:
    """Something that can be wrong; after a fatal finding nothing else is worth checking."""

    name: str
    remedy: str
    fatal: bool = False


SCORES = Check("scoring on the GPU", "fix what the error names", fatal=True)
BACKENDS = Check("scoring, shared against per prefix", "train with --swap.scoring per_prefix, and report it")
TRAINING = Check("training", "see the end of console.log and train.log; attach gpu_check.json to a report", fatal=True)
PROGRESS = Check(
    "progress",
    "if a compiler is running (nvcc, ptxas or g++ in top), start again with a larger --patience; otherwise try it "
    "with --vllm.enforce_eager",
    fatal=True,
)
WEIGHTS = Check(
    "vllm_kl", "vLLM has other weights than the trainer: do not train; try VLLM_USE_V2_MODEL_RUNNER=0", fatal=True
)
SLEEP = Check(
    "GiB while vLLM sleeps",
    "sleep frees no memory: leave out --vllm.enable_sleep and --train.colocate_all",
    fatal=True,
)
PEAK = Check("GiB at most", "lower --vllm.gpu_memory_utilization, and report it: the plan is too small")
GRAPHS = Check("CUDA graphs", "vLLM captured none, and generation is slow: see what it says about them in train.log")
RESUME = Check("steps, resumed after a kill", "docs/use/faults.md says what a resumed run does; see resumed.log")
CHECKS = (SCORES, BACKENDS, TRAINING, PROGRESS, WEIGHTS, SLEEP, PEAK, GRAPHS, RESUME)


class FatalFinding(Exception):
    """A fatal check failed; the finding is in `Findings`."""


@dataclass(frozen=True)
class Finding:
    """A line of the table; `remedy` is None where nothing is wrong."""

    name: str
    found: str
    wanted: str = ""
    remedy: str | None = None


@dataclass
class Findings:
    """What was found, in the order of the checks."""

    lines: list[Finding] = field(default_factory=list)

    def add(self, check: Check, found: str, wanted: str, good: bool, remedy: str | None = None) -> None:
        """Note what a check found; `remedy` replaces the check's own.

        Raises:
            FatalFinding: if it is wrong, and the check is fatal.
        """
        self.lines.append(Finding(check.name, found, wanted, None if good else remedy or check.remedy))
        if check.fatal and not good:
            raise FatalFinding(check.name)

    def note(self, name: str, found: str, beside: str = "") -> None:
        """Note a number that is neither good nor wrong."""
        self.lines.append(Finding(name, found, beside))

    @property
    def wrong(self) -> list[str]:
        """A line with a remedy for everything that is wrong."""
        return [f"{line.name}: {line.found}; {line.remedy}" for line in self.lines if line.remedy]

    def report(self) -> int:
        """Print the table and what is wrong; returns the exit status."""
        rows = [(line.name, line.found, line.wanted) for line in self.lines]
        print(tabulate(rows, ["check", "found", "wanted"], disable_numparse=True, maxcolwidths=[None, 60, 50]))
        for line in self.wrong:
            print(f"wrong: {line}")
        print("[gpu_check] see above" if self.wrong else "[gpu_check] all is as it should be")
        return 1 if self.wrong else 0

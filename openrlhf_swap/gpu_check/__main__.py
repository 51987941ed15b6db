"""Does training work on this machine's GPU? Takes minutes; run it before you rent hours.

Scores in bfloat16 with both backends, trains the embedded policy on one GPU as the launch scripts do it (vLLM with
CUDA graphs and DeepSpeed in turn, weights over CUDA IPC), kills and resumes the run, and compares the memory with
`openrlhf_swap.plan`. Ends at the first thing that makes the rest pointless, with a remedy: most show within two
minutes. Everything that a bug report needs is in gpu_check.json in the output folder, without secrets and paths.
Further flags go to the training. Exit status: 0, 1 when something is wrong, 2 without a GPU.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from openrlhf_swap.command import Parser, check_model_exists, run_command
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.files import read_rows
from openrlhf_swap.gpu_check.findings import GRAPHS, FatalFinding, Findings
from openrlhf_swap.gpu_check.memory import (
    Step,
    bytes_by_phase,
    check_peak,
    check_sleep,
    note_phases,
    planned_bytes,
    polled,
)
from openrlhf_swap.gpu_check.report import GRAPHS_DONE, chosen_lines, describe_gpu, write_report
from openrlhf_swap.gpu_check.running import METRICS
from openrlhf_swap.gpu_check.scoring import check_scoring
from openrlhf_swap.gpu_check.training import check_steps, phase_seconds, train_and_kill, training_flags

POLICY = Path(__file__).parents[2] / "examples" / "worlds" / "policies" / "addition"  # of a checkout
EAGER = "--vllm.enforce_eager"


@dataclass(frozen=True)
class Gpu:
    """The GPU that is checked."""

    device: torch.device
    used: Callable[[], int]  # bytes in use, by any process
    total: int  # bytes
    facts: dict[str, Any] = field(default_factory=dict)  # for the report


def main(argv: list[str]) -> int:
    """Run the command."""
    parser = Parser("openrlhf-swap gpu-check", __doc__)
    parser.add_argument("--output", type=Path, default=Path("outputs/gpu_check"), help="folder, which must be new")
    parser.add_argument("--model", default=str(POLICY), help="folder or hub id; by default the embedded policy")
    patience = "seconds without any output after which the training counts as stuck (default: 120)"
    parser.add_argument("--patience", type=float, default=120, metavar="SECONDS", help=patience)
    own, extra = parser.parse_known_args(argv)
    device = find_gpu()
    if own.output.exists():
        raise ConfigError(f"--output is {own.output}, which is there already; remove it, or name another folder")
    check_model_exists("--model", own.model)
    facts = describe_gpu(device)
    print(f"[gpu_check] {facts['name']}; some minutes, logs in {own.output}", flush=True)
    gpu = Gpu(device, lambda: torch.cuda.device_memory_used(device), facts["bytes"], facts)
    return check(own.model, own.output, gpu, own.patience, extra, argv).report()


def find_gpu() -> torch.device:
    """The first GPU.

    Raises:
        ConfigError: without one, or where torch cannot use it.
    """
    if torch.cuda.is_available():
        return torch.device("cuda", 0)
    if torch.version.cuda is None:
        raise ConfigError("torch is a CPU build; install the other one: PROFILE=gpu bash scripts/setup.sh")
    raise ConfigError("no CUDA GPU can be used here; see nvidia-smi, and install a driver of 580 or newer (CUDA 13)")


def check(
    model: str, output: Path, gpu: Gpu, patience: float, extra: Sequence[str], argv: Sequence[str] = ()
) -> Findings:
    """Run all checks, up to the first fatal finding, and write the report.

    Args:
        model: folder or hub id of the policy to train and to score with.
        output: folder for the runs.
        gpu: to check.
        patience: seconds without output after which the training counts as stuck.
        extra: flags of the training.
        argv: the command's arguments, for the report.
    """
    findings, measured = Findings(), dict[str, Any](complete=False, seconds={}, memory={})
    output.mkdir(parents=True, exist_ok=True)
    try:
        with suppress(FatalFinding):
            start = time.monotonic()
            check_scoring(findings, model, gpu.device)
            measured["seconds"]["scoring"] = time.monotonic() - start
            if gpu.device.type == "cuda":
                torch.cuda.empty_cache()
            _check_training(findings, measured, [*training_flags(model, output), *extra], output, gpu, patience)
            measured["complete"] = True
    finally:
        print(f"[gpu_check] report: {write_report(output, argv, findings, gpu.facts, measured)}", flush=True)
    return findings


def _check_training(
    findings: Findings, measured: dict[str, Any], flags: list[str], output: Path, gpu: Gpu, patience: float
) -> None:
    start, memory = time.monotonic(), measured["memory"]
    with polled(gpu.used) as used:

        def on_last(steps: list[Step]) -> None:
            """What the first process tells, while it still runs: nothing else is worth waiting for if it is wrong."""
            measured["seconds"]["until the first step"] = steps[0][0] - start
            planned = planned_bytes(output, gpu.total)
            memory.update(before=used[0][1], phases=bytes_by_phase(used, steps, planned))
            peaks = [row["memory/policy_peak_gib"] for _, row in steps if "memory/policy_peak_gib" in row]
            memory["policy_peak_gib_by_torch"] = max(peaks, default=None)
            check_peak(findings, used, planned)
            note_phases(findings, memory["phases"])
            check_sleep(findings, used, steps)

        try:
            resumed = train_and_kill(findings, flags, output, patience, on_last)
        finally:
            memory["peak"] = max(size for _, size in used)
            measured["seconds"]["training, killed and resumed"] = time.monotonic() - start
    rows = list(read_rows(output / METRICS))
    measured["seconds"]["a step"] = phase_seconds(rows)
    if gpu.device.type == "cuda" and EAGER not in flags:
        graphs = [line for line in chosen_lines(output) if line.startswith(GRAPHS_DONE)]
        findings.add(GRAPHS, graphs[0] if graphs else "none", "captured", bool(graphs))
    check_steps(findings, rows, len(resumed))


if __name__ == "__main__":
    sys.exit(run_command(main))

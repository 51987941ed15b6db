"""Does training work on this machine's GPU? Takes minutes; run it before you rent hours.

Scores in bfloat16 with both backends, trains the embedded policy on one GPU as the launch scripts do it (vLLM with
CUDA graphs and DeepSpeed in turn, weights over CUDA IPC), kills and resumes the run, and compares the memory with
`openrlhf-swap plan`. Ends at the first thing that makes the rest pointless, with a remedy: most show within two
minutes. Everything that a bug report needs is in gpu_check.json in the output folder, without secrets and paths.
Further flags go to the training. Exit status: 0, 1 when something is wrong, 2 without a GPU.
"""

import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from openrlhf_swap.command import Parser, run_command
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.files import read_rows
from openrlhf_swap.gpu_check import checks
from openrlhf_swap.gpu_check.checks import FatalFinding, Findings, write_report
from openrlhf_swap.runs.checkpoints import CONFIGURATION
from openrlhf_swap.runs.model_code import check_model_files

POLICY = Path(__file__).parents[2] / "examples" / "worlds" / "policies" / "addition"  # of a checkout


@dataclass(frozen=True)
class Gpu:
    """The GPU that is checked."""

    device: torch.device
    used: Callable[[], int]  # bytes in use, by any process
    total: int  # bytes


def main(argv: list[str]) -> int:
    """Run the command."""
    parser = Parser("openrlhf-swap gpu-check", __doc__)
    parser.add_argument("--output", type=Path, default=Path("outputs/gpu_check"), help="folder, which must be new")
    parser.add_argument("--model", default=str(POLICY), help="folder or hub id; by default the embedded policy")
    patience = "seconds without any output after which the training counts as stuck (default: 120)"
    parser.add_argument("--patience", type=float, default=120, metavar="SECONDS", help=patience)
    own, extra = parser.parse_known_args(argv)
    if not torch.cuda.is_available():
        if torch.version.cuda is None:
            raise ConfigError("torch is a CPU build; install the other one: PROFILE=gpu bash scripts/setup.sh")
        raise ConfigError("no CUDA GPU can be used; see nvidia-smi, and install a driver of 580 or newer (CUDA 13)")
    if own.output.exists():
        raise ConfigError(f"--output is {own.output}, which is there already; remove it, or name another folder")
    check_model_files("--model", own.model)
    device, properties = torch.device("cuda", 0), torch.cuda.get_device_properties(0)
    gpu = Gpu(device, lambda: torch.cuda.device_memory_used(device), properties.total_memory)
    print(f"[gpu_check] {properties.name}; about three minutes on an H100, logs in {own.output}", flush=True)
    return check(own.model, own.output, gpu, own.patience, extra, argv).print_table()


def check(
    model: str, output: Path, gpu: Gpu, patience: float, extra: Sequence[str], argv: Sequence[str] = ()
) -> Findings:
    """Run all checks, up to the first fatal finding, and write the report.

    `extra` are flags of the training, `argv` the command's arguments for the report.
    """
    findings, seconds, memory = Findings(), dict[str, Any](), dict[str, Any]()
    measured = {"complete": False, "seconds": seconds, "memory": memory}
    output.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()

    def on_last(steps: list[checks.Step]) -> None:
        """What the first process tells, while it still runs: nothing else is worth waiting for if it is wrong."""
        seconds["until the first step"] = steps[0][0] - start
        peaks = [row["memory/policy_peak_gib"] for _, row in steps if "memory/policy_peak_gib" in row]
        planned = checks.planned_bytes(output, gpu.total)
        memory.update(before=used[0][1], policy_peak_gib_by_torch=max(peaks, default=None), planned=planned)
        checks.check_memory(findings, used, steps, max(planned.values()))

    try:
        with suppress(FatalFinding):
            print("[gpu_check] scoring with both backends in bfloat16", flush=True)
            checks.check_scoring(findings, model, gpu.device)
            seconds["scoring"], start = time.monotonic() - start, time.monotonic()
            if gpu.device.type == "cuda":
                torch.cuda.empty_cache()
            flags = [*checks.training_flags(model, output), *extra]
            with checks.polled(gpu.used) as used:
                try:
                    resumed = checks.train_and_kill(findings, flags, output, patience, on_last)
                finally:
                    memory["peak"] = max(size for _, size in used)
                    seconds["training, killed and resumed"] = time.monotonic() - start
            rows = list(read_rows(output / checks.METRICS))
            seconds["a step"] = checks.phase_seconds(rows)
            checks.check_steps(
                findings, rows, len(resumed), "finished" in json.loads((output / CONFIGURATION).read_bytes())
            )
            measured["complete"] = True
    finally:
        print(f"[gpu_check] report: {write_report(output, argv, findings, measured)}", flush=True)
    return findings


if __name__ == "__main__":
    sys.exit(run_command(main))

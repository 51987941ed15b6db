"""Does training work on this machine's GPU? Some minutes, before hours are paid for.

Trains the embedded policy on one GPU as the launch scripts do it (vLLM and DeepSpeed in turn, weights over CUDA IPC),
kills and resumes the run, scores in bfloat16 with both backends, and compares the memory with `openrlhf_swap.plan`.
Further flags go to the training. Exit status: 0, 1 when something is wrong, 2 without a GPU.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from openrlhf_swap.command import Parser, check_model_exists, run_command
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.gpu_check.findings import Findings
from openrlhf_swap.gpu_check.memory import check_memory, planned_bytes, polled
from openrlhf_swap.gpu_check.scoring import check_scoring
from openrlhf_swap.gpu_check.training import check_training, train_and_kill, training_flags

POLICY = Path(__file__).parents[2] / "examples" / "worlds" / "policies" / "addition"  # of a checkout


def main(argv: list[str]) -> int:
    """Run the command."""
    parser = Parser("openrlhf_swap.gpu_check", __doc__)
    parser.add_argument("--output", type=Path, default=Path("outputs/gpu_check"), help="folder, which must be new")
    parser.add_argument("--model", default=str(POLICY), help="folder or hub id; by default the embedded policy")
    own, extra = parser.parse_known_args(argv)
    device = find_gpu()
    if own.output.exists():
        raise ConfigError(f"--output is {own.output}, which is there already; remove it, or name another folder")
    check_model_exists("--model", own.model)
    total = torch.cuda.get_device_properties(device).total_memory
    print(f"[gpu_check] {torch.cuda.get_device_name(device)}; some minutes, logs in {own.output}", flush=True)
    findings = check(own.model, own.output, device, lambda: torch.cuda.device_memory_used(device), total, extra)
    return findings.report()


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
    model: str, output: Path, device: torch.device, memory: Callable[[], int], total: int, extra: Sequence[str]
) -> Findings:
    """Run all checks.

    Args:
        model: folder or hub id of the policy to train and to score with.
        output: folder for the runs.
        device: to score on.
        memory: bytes of the GPU in use.
        total: bytes of the GPU.
        extra: flags of the training.

    Raises:
        LostActorError: if the training ends with an error.
    """
    findings = Findings()
    output.mkdir(parents=True, exist_ok=True)
    flags = [*training_flags(model, output), *extra]
    with polled(memory) as used:
        metrics = train_and_kill(flags, output)
    check_training(findings, metrics)
    check_memory(findings, used, planned_bytes(output, total))
    check_scoring(findings, model, device)
    return findings


if __name__ == "__main__":
    sys.exit(run_command(main))

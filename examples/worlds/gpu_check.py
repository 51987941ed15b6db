"""Does training work on this machine's GPU? A check of some minutes, before paying for hours.

Trains the embedded policy on one GPU like the presets (vLLM and DeepSpeed taking turns, weights over CUDA IPC), kills
and resumes the run, scores in bfloat16 with two scoring backends, and compares the memory with `openrlhf_swap.plan`.
Further flags go to the training. Exit status: 0, 1 when something is wrong, 2 without a GPU.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

import torch
from addition import overthinking_trace, problems, prompt
from make_data import write
from quickstart import PHASES
from tabulate import tabulate

from openrlhf_swap import plan
from openrlhf_swap.command import Parser, run_command
from openrlhf_swap.config import SwapConfig
from openrlhf_swap.errors import ConfigError, LostActorError
from openrlhf_swap.files import read_rows

HERE = Path(__file__).parent
POLICY = HERE / "policies" / "addition"
STEPS = 3  # the last one after a kill
MOST_KL = 1e-2  # between vLLM's and the trainer's log-probabilities; bfloat16 kernels differ by less
MOST_SCORE = 0.1  # nats between the two scoring backends in bfloat16
WAY = ["--train.colocate_all", "--vllm.enable_sleep", "--ds.enable_sleep", "--vllm.sync_backend", "nccl"]
FLAGS = [*WAY, "--vllm.num_engines", "1", "--actor.num_gpus_per_node", "1", "--vllm.enforce_eager"]
FLAGS += ["--vllm.gpu_memory_utilization", "0.5", "--actor.gradient_checkpointing_enable"]
# With this correction OpenRLHF compares vLLM's log-probabilities with the trainer's.
FLAGS += ["--algo.advantage.is_correction_level", "token", "--ckpt.save_steps", "1", "--ckpt.load_enable"]


@dataclass
class Findings:
    """Rows of the table (check, found, expected), and what is wrong with its remedy."""

    rows: list[tuple[str, str, str]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def add(self, what: str, found: str, wanted: str, remedy: str | None) -> None:
        """Record a finding; `remedy` says what to do about it, None if it is as expected."""
        self.rows.append((what, found, wanted))
        if remedy is not None:
            self.wrong.append(f"{what}: {found}; {remedy}")


def find_gpu() -> torch.device:
    """The first GPU.

    Raises:
        ConfigError: without a GPU that torch can use.
    """
    if torch.cuda.is_available():
        return torch.device("cuda", 0)
    if torch.version.cuda is None:
        raise ConfigError("torch is a CPU build; install the GPU build: PROFILE=gpu bash scripts/setup.sh")
    raise ConfigError("no CUDA GPU can be used here; see nvidia-smi, and install a driver of 580 or newer (CUDA 13)")


def check(output: Path, device: torch.device, memory: Callable[[], int], total: int, extra: list[str]) -> Findings:
    """Run all checks.

    Args:
        output: folder for the runs; a metrics file in it is overwritten.
        device: the one to score on.
        memory: returns the bytes of the GPU in use.
        total: bytes of memory that the GPU has.
        extra: further flags for the training.

    Raises:
        LostActorError: if the training ends with an error.
    """
    findings = Findings()
    prompts = output / "prompts.jsonl"
    output.mkdir(parents=True, exist_ok=True)
    write(prompts, [problem for problem, _ in zip(problems(7), range(16 * STEPS), strict=False)])
    environment = {
        "MODEL": str(POLICY),
        "PROMPTS": str(prompts),
        "OUTPUT": str(output),
        "STEPS": str(STEPS),
    }
    command = ["bash", str(HERE / "train_swap.sh"), *FLAGS, *extra]
    with polled(memory) as used:
        metrics = train_and_kill(command, environment, output)
    check_training(findings, metrics)
    check_memory(findings, used, planned_bytes(output, total))
    check_scoring(findings, device)
    return findings


@contextlib.contextmanager
def polled(memory: Callable[[], int]) -> Iterator[list[int]]:
    """Append `memory()` to the yielded list five times a second while the block runs."""
    used, done = [memory()], threading.Event()

    def poll() -> None:
        while not done.wait(0.2):
            used.append(memory())

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        yield used
    finally:
        done.set()
        thread.join()


def train_and_kill(command: list[str], environment: dict[str, str], output: Path) -> list[dict]:
    """Train, kill the run when step 2 is saved, and resume; returns the metrics of each step in the files."""
    process, log = start(command, environment, output / "console.log")
    seal = output / "checkpoints" / "_actor" / f"global_step{STEPS - 1}" / "complete.json"
    while process.poll() is None and not seal.exists():
        time.sleep(0.1)
    if process.poll() is None:
        process.kill()
    elif process.returncode:
        raise failed(log)
    process.wait()
    time.sleep(5)  # for its child processes to notice
    process, log = start(command, environment, output / "resumed.log")
    if process.wait():
        raise failed(log)
    return list(read_rows(output / "metrics.jsonl"))


def start(command: list[str], environment: dict[str, str], log: Path) -> tuple[subprocess.Popen, Path]:
    with open(log, "w", encoding="utf-8") as file:
        return subprocess.Popen(command, stdout=file, stderr=file, env={**os.environ, **environment}), log


def failed(log: Path) -> LostActorError:
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error: ")] or lines[-1:] or ["no output"]
    return LostActorError(f"the training ended: {errors[-1].removeprefix('error: ')} (full output: {log})")


def check_training(findings: Findings, metrics: list[dict]) -> None:
    """Check the recorded steps, before and after the kill."""
    steps = [row["step"] for row in metrics]
    wanted = list(range(1, STEPS + 1))
    remedy = "see resumed.log, and docs/use/faults.md for what a resumed run does"
    findings.add("steps, resumed after a kill", str(steps), str(wanted), None if steps == wanted else remedy)
    largest = max((abs(row.get("policy/vllm_kl", float("inf"))) for row in metrics), default=float("inf"))
    remedy = "vLLM and the trainer have different weights: do not train; try VLLM_USE_V2_MODEL_RUNNER=0"
    findings.add("vllm_kl", f"{largest:.1e}", f"< {MOST_KL:.0e}", None if largest < MOST_KL else remedy)
    for name, key in PHASES.items():
        if seconds := [row[key] for row in metrics[1:] if key in row]:
            findings.add(f"seconds a step: {name}", f"{fmean(seconds):.2f}", "", None)


def planned_bytes(output: Path, total: int) -> dict[str, int]:
    """Bytes on the GPU by phase, as `openrlhf_swap.plan` computes them for the run that wrote `output`."""
    command = json.loads((output / "swap_config.json").read_text(encoding="utf-8"))["command"]
    with contextlib.redirect_stdout(io.StringIO()) as text:
        plan.main(["--json", "--gpu", str(total / 2**30), "--reserve", "0", "--command", command])
    return {phase: sum(parts.values()) for phase, parts in json.loads(text.getvalue())["phases"].items()}


def check_memory(findings: Findings, used: list[int], planned: dict[str, int]) -> None:
    """Compare the peak, and what stays in use while vLLM sleeps, with the plan."""
    gib = 2**30
    before, peak = used[0], max(used)
    asleep = min(used[used.index(peak) :])
    phases = ", ".join(f"{phase} {size / gib:.1f}" for phase, size in planned.items())
    findings.add("peak GiB", f"{(peak - before) / gib:.1f}", f"planned, without CUDA contexts: {phases}", None)
    slept = asleep - before < 0.7 * (peak - before) or peak == before
    remedy = "vLLM's sleep frees no memory: drop --vllm.enable_sleep and --train.colocate_all"
    findings.add("GiB while vLLM sleeps", f"{(asleep - before) / gib:.1f}", "well below", None if slept else remedy)


def check_scoring(findings: Findings, device: torch.device) -> None:
    """Compare scores from the shared prefix with one forward pass per prefix, in bfloat16 on the GPU."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from openrlhf_swap.scoring.scorer import Scorer

    tokenizer = AutoTokenizer.from_pretrained(POLICY)
    model = AutoModelForCausalLM.from_pretrained(POLICY, dtype=torch.bfloat16, attn_implementation="sdpa")
    config = SwapConfig(step_tokens=8, close_template="</think>\n\n**Final Answer**\n\\boxed{")
    chosen = [problem for problem, _ in zip(problems(3), range(8), strict=False)]
    rows = [(prompt(problem), problem.answer, overthinking_trace(problem, random.Random(1))) for problem in chosen]
    values = []
    for backend in ("shared_prefix", "per_prefix"):
        scorer = Scorer(model.eval().to(device), tokenizer, config, backend)
        values.append(torch.tensor([value for row in rows for value in scorer.score(*row)["answer_logprobs"]]))
    largest = (values[0] - values[1]).abs().max().item()
    remedy = "the two scoring backends disagree: train with --swap.scoring per_prefix"
    findings.add(
        "scoring, shared against per prefix",
        f"{largest:.3f} nats",
        f"< {MOST_SCORE}",
        None if largest < MOST_SCORE else remedy,
    )


def report(findings: Findings) -> int:
    """Print the table and what is wrong; returns the exit status."""
    print(tabulate(findings.rows, ["check", "found", "expected"], disable_numparse=True))
    for line in findings.wrong:
        print(f"wrong: {line}")
    print("[gpu_check] see above" if findings.wrong else "[gpu_check] all is as it should be")
    return 1 if findings.wrong else 0


def main(argv: list[str]) -> int:
    """Run the command."""
    parser = Parser("gpu_check", __doc__)
    parser.add_argument("--output", type=Path, default=Path("outputs/gpu_check"), help="a new folder")
    own, extra = parser.parse_known_args(argv)
    device = find_gpu()
    if own.output.exists():
        raise ConfigError(f"--output is {own.output}, which already exists; remove it, or use another folder")
    total = torch.cuda.get_device_properties(device).total_memory
    print(f"[gpu_check] {torch.cuda.get_device_name(device)}; some minutes, logs in {own.output}", flush=True)
    return report(check(own.output, device, lambda: torch.cuda.device_memory_used(device), total, extra))


if __name__ == "__main__":
    sys.exit(run_command(main))

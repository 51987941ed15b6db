"""A training of a few steps as the launch scripts do it on one GPU, killed and resumed."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from openrlhf_swap.errors import LostActorError
from openrlhf_swap.files import Row, read_rows, write_rows
from openrlhf_swap.gpu_check.findings import Findings
from openrlhf_swap.gpu_check.problems import additions
from openrlhf_swap.runs.metric_names import STEP_PHASES

STEPS = 3  # the last one after a kill
PROMPTS_A_STEP, RESPONSES = 16, 8
STEP_TOKENS = 8
CLOSE_TEMPLATE = "</think>\n\n**Final Answer**\n\\boxed{"  # the embedded policy closes its thought on a new line
MOST_KL = 1e-2  # between vLLM's and the trainer's log-probabilities; bfloat16 kernels differ by less
# vLLM and DeepSpeed take turns on one GPU.
SHARED_GPU = ["--train.colocate_all", "--vllm.enable_sleep", "--ds.enable_sleep", "--vllm.sync_backend", "nccl"]


def training_flags(model: str, output: Path) -> list[str]:
    """Flags of the training; writes its prompts into `output`."""
    prompts = output / "prompts.jsonl"
    write_rows(prompts, ({"problem": p, "answer": a} for p, a in additions(STEPS * PROMPTS_A_STEP, seed=7)))
    flags = ["--actor.model_name_or_path", model, "--data.prompt_dataset", str(prompts)]
    flags += ["--data.input_key", "problem", "--data.label_key", "answer", "--data.apply_chat_template"]
    flags += ["--data.max_len", "400", "--rollout.max_new_tokens", "320", "--rollout.micro_batch_size", "32"]
    flags += ["--rollout.batch_size", f"{PROMPTS_A_STEP}", "--rollout.n_samples_per_prompt", f"{RESPONSES}"]
    flags += ["--train.batch_size", f"{PROMPTS_A_STEP * RESPONSES}", "--train.micro_batch_size", "32"]
    flags += ["--swap.step_tokens", f"{STEP_TOKENS}", "--swap.close_template", CLOSE_TEMPLATE]
    flags += ["--actor.adam.lr", "3e-4", "--actor.lr_scheduler", "constant", "--rollout.temperature", "1.0"]
    flags += [*SHARED_GPU, "--vllm.num_engines", "1", "--actor.num_gpus_per_node", "1", "--vllm.enforce_eager"]
    flags += ["--vllm.gpu_memory_utilization", "0.5", "--actor.gradient_checkpointing_enable"]
    # With this correction OpenRLHF compares vLLM's log-probabilities with the trainer's.
    flags += ["--algo.advantage.is_correction_level", "token"]
    flags += ["--swap.output_dir", str(output), "--ckpt.output_dir", str(output / "policy")]
    return [*flags, "--ckpt.path", str(output / "checkpoints"), "--ckpt.save_steps", "1", "--ckpt.load_enable"]


def train_and_kill(flags: Sequence[str], output: Path) -> list[Row]:
    """Train, kill the run when its last step but one is saved, and resume it; returns the metrics of each step.

    Raises:
        LostActorError: if the training ends with an error.
    """
    process, log = _start(flags, output / "console.log")
    seal = output / "checkpoints" / "_actor" / f"global_step{STEPS - 1}" / "complete.json"
    while process.poll() is None and not seal.exists():
        time.sleep(0.1)
    if process.poll() is None:
        process.kill()
    elif process.returncode:
        raise _failed(log)
    process.wait()
    time.sleep(5)  # until what it started has noticed
    process, log = _start(flags, output / "resumed.log")
    if process.wait():
        raise _failed(log)
    return list(read_rows(output / "metrics.jsonl"))


def _start(flags: Sequence[str], log: Path) -> tuple[subprocess.Popen[bytes], Path]:
    with open(log, "w", encoding="utf-8") as file:
        command = [sys.executable, "-m", "openrlhf_swap.train", *flags]
        return subprocess.Popen(command, stdout=file, stderr=file), log


def _failed(log: Path) -> LostActorError:
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error: ")] or lines[-1:] or ["it said nothing"]
    return LostActorError(f"the training ended: {errors[-1].removeprefix('error: ')} (all of it: {log})")


def check_training(findings: Findings, metrics: Sequence[Row]) -> None:
    """The steps that were trained before and after the kill, vLLM's weights, and the seconds of each phase."""
    steps = [row["step"] for row in metrics]
    wanted = list(range(1, STEPS + 1))
    remedy = "docs/use/faults.md says what a resumed run does; see resumed.log"
    findings.add("steps, resumed after a kill", str(steps), str(wanted), None if steps == wanted else remedy)
    largest = max((abs(row.get("policy/vllm_kl", float("inf"))) for row in metrics), default=float("inf"))
    remedy = "vLLM has other weights than the trainer: do not train; try VLLM_USE_V2_MODEL_RUNNER=0"
    findings.add("vllm_kl", f"{largest:.1e}", f"< {MOST_KL:.0e}", None if largest < MOST_KL else remedy)
    for name, key in STEP_PHASES.items():
        if seconds := [row[key] for row in metrics[1:] if key in row]:
            findings.add(f"seconds a step: {name}", f"{fmean(seconds):.2f}", "", None)

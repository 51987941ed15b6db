"""A training of a few steps as the launch scripts do it on one GPU, killed and resumed."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean

from openrlhf_swap.files import Row, write_rows
from openrlhf_swap.gpu_check.findings import RESUME, WEIGHTS, Findings
from openrlhf_swap.gpu_check.memory import Step
from openrlhf_swap.gpu_check.problems import additions
from openrlhf_swap.gpu_check.running import watch
from openrlhf_swap.runs.metrics import STEP_PHASES

STEPS = 3  # the last one after a kill
PROMPTS_A_STEP, RESPONSES = 16, 8
CONTEXT = 400  # tokens of a prompt and its response
STEP_TOKENS = 8
CLOSE_TEMPLATE = "</think>\n\n**Final Answer**\n\\boxed{"  # the embedded policy closes its thought on a new line
TEMPERATURE = "0.6"  # as in a real training: at 1, logits that nobody scales would pass
MOST_KL = 1e-2  # between vLLM's and the trainer's log-probabilities; bfloat16 kernels differ by less
# As in the scripts: vLLM (with CUDA graphs) and DeepSpeed take turns on one GPU, and weights go over CUDA IPC.
SHARED_GPU = ["--train.colocate_all", "--vllm.enable_sleep", "--ds.enable_sleep", "--vllm.sync_backend", "nccl"]


def training_flags(model: str, output: Path) -> list[str]:
    """Flags of the training; writes its prompts into `output`."""
    prompts = output / "prompts.jsonl"
    write_rows(prompts, ({"problem": p, "answer": a} for p, a in additions(STEPS * PROMPTS_A_STEP, seed=7)))
    flags = ["--actor.model_name_or_path", model, "--data.prompt_dataset", str(prompts)]
    flags += ["--data.input_key", "problem", "--data.label_key", "answer", "--data.apply_chat_template"]
    flags += ["--data.max_len", f"{CONTEXT}", "--rollout.max_new_tokens", "320", "--rollout.micro_batch_size", "32"]
    flags += ["--rollout.batch_size", f"{PROMPTS_A_STEP}", "--rollout.n_samples_per_prompt", f"{RESPONSES}"]
    flags += ["--train.batch_size", f"{PROMPTS_A_STEP * RESPONSES}", "--train.micro_batch_size", "32"]
    flags += ["--swap.objective", "swap", "--swap.step_tokens", f"{STEP_TOKENS}"]
    flags += ["--swap.close_template", CLOSE_TEMPLATE]
    flags += ["--actor.adam.lr", "3e-4", "--actor.lr_scheduler", "constant", "--rollout.temperature", TEMPERATURE]
    flags += [*SHARED_GPU, "--actor.num_nodes", "1", "--actor.num_gpus_per_node", "1", "--ds.zero_stage", "2"]
    flags += ["--vllm.num_engines", "1", "--vllm.tensor_parallel_size", "1", "--vllm.gpu_memory_utilization", "0.5"]
    flags += ["--actor.gradient_checkpointing_enable"]
    if importlib.util.find_spec("flash_attn"):  # then the scripts pack responses
        flags += ["--ds.packing_samples", "--train.dynamic_batch_enable"]
        flags += [f"--{part}.max_tokens_per_gpu={32 * CONTEXT}" for part in ("train", "rollout")]
    # With this correction OpenRLHF compares vLLM's log-probabilities with the trainer's.
    flags += ["--algo.advantage.is_correction_level", "token"]
    flags += ["--swap.output_dir", str(output), "--ckpt.output_dir", str(output / "policy")]
    flags += ["--ckpt.path", str(output / "checkpoints"), "--ckpt.save_steps", "1", "--ckpt.load_enable"]
    return [*flags, "--ckpt.save_hf", "--ckpt.max_num", "2", "--logger.tensorboard_dir", str(output / "tensorboard")]


def train_and_kill(
    findings: Findings, flags: Sequence[str], output: Path, patience: float, on_last: Callable[[list[Step]], None]
) -> list[Step]:
    """Train, kill the run when its last step but one is saved, and resume it.

    Args:
        findings: as for `watch`; gets the weights too, after each step.
        flags: the training's.
        output: its output folder.
        patience: as for `watch`.
        on_last: called with the steps of the first process, at the end of the last of them.

    Returns:
        The steps of the second process.

    Raises:
        FatalFinding: as soon as something is wrong.
    """

    def on_step(steps: list[Step]) -> None:
        print(f"[gpu_check] step {steps[-1][1]['step']} of {STEPS}", flush=True)
        check_weights(findings, steps[-1][1])
        if len(steps) == STEPS - 1:
            on_last(steps)

    seal = output / "checkpoints" / "_actor" / f"global_step{STEPS - 1}" / "complete.json"
    watch(findings, flags, output, "console.log", patience, on_step, seal.exists)
    time.sleep(5)  # until what it started has noticed
    return watch(findings, flags, output, "resumed.log", patience, on_step)


def check_weights(findings: Findings, row: Row) -> None:
    """Whether vLLM generated a step's responses with the trainer's weights."""
    found = row.get("policy/vllm_kl")  # null where it was not a number
    kl = float("inf") if found is None else abs(found)
    findings.add(WEIGHTS, f"{kl:.1e} in step {row['step']}", f"< {MOST_KL:.0e}", kl < MOST_KL)


def check_steps(findings: Findings, rows: Sequence[Row], resumed: int) -> None:
    """The steps that were trained, `resumed` of them after the kill, and the seconds of each phase."""
    steps, wanted = [row["step"] for row in rows], list(range(1, STEPS + 1))
    good = steps == wanted and resumed > 0
    findings.add(RESUME, f"{steps}, {resumed} after the kill", f"{wanted}, 1 after the kill", good)
    for name, seconds in phase_seconds(rows).items():
        findings.note(f"seconds a step: {name}", f"{seconds:.2f}")


def phase_seconds(rows: Sequence[Row]) -> dict[str, float]:
    """Mean seconds of each phase, without the first step, which warms up."""
    found = {name: [row[key] for row in rows[1:] if key in row] for name, key in STEP_PHASES.items()}
    return {name: fmean(seconds) for name, seconds in found.items() if seconds}

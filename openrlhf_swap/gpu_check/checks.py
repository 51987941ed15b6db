"""The checks: scoring, a training as the launch scripts do it on one GPU, killed and resumed, and its memory."""

import contextlib
import os
import platform
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from tabulate import tabulate
from torch.utils.collect_env import get_env_info

from openrlhf_swap.config import SwapConfig
from openrlhf_swap.errors import first_line
from openrlhf_swap.files import Row, read_rows, to_line, write_rows, write_text
from openrlhf_swap.flags.configuration import configure
from openrlhf_swap.runs import provenance
from openrlhf_swap.runs.metrics import STEP_PHASES
from openrlhf_swap.sizing.memory import phases
from openrlhf_swap.sizing.models import gib
from openrlhf_swap.sizing.remedies import Machine, place_optimizer
from openrlhf_swap.sizing.settings import read_run
from openrlhf_swap.train import redacted

NAME = "gpu_check.json"
MACHINE = (
    "os",
    "python_version",
    "cuda_compiled_version",
    "nvidia_driver_version",
    "nvidia_gpu_models",
    "pip_packages",
)
_SECRET_NAME = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$", re.IGNORECASE)
_FOLDERS = re.compile(r"(?<![\w.:/~])/(?:[^\s/'\",:=()]+/)+")
_ADDRESS = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b")
_HUB_TOKEN = re.compile(r"\bhf_\w{16,}")
STEP_TOKENS = 8
CLOSE_TEMPLATE = "</think>\n\n**Final Answer**\n\\boxed{"  # the embedded policy closes its thought on a new line
MOST_SCORE = 0.1  # nats between the two backends in bfloat16
RESPONSE_TOKENS = 160
STEPS = 3  # the last one after a kill
PROMPTS_A_STEP, RESPONSES = 16, 8
CONTEXT = 400  # tokens of a prompt and its response
MOST_KL = 1e-2  # between vLLM's and the trainer's log-probabilities; bfloat16 kernels differ by less
METRICS, LIBRARIES = "metrics.jsonl", "train.log"  # in the output folder
# As in the scripts: vLLM (with CUDA graphs) and DeepSpeed take turns on one GPU, and weights go over CUDA IPC.
SHARED_GPU = ["--train.colocate_all", "--vllm.enable_sleep", "--ds.enable_sleep", "--vllm.sync_backend", "nccl"]
# The temperature is a real training's: at 1, logits that nobody scales would pass. With the correction, OpenRLHF
# compares vLLM's log-probabilities with the trainer's.
FLAGS = f"""
    --data.input_key problem --data.label_key answer --data.apply_chat_template --data.max_len {CONTEXT}
    --rollout.max_new_tokens 320 --rollout.batch_size {PROMPTS_A_STEP} --rollout.n_samples_per_prompt {RESPONSES}
    --rollout.micro_batch_size 32 --rollout.temperature 0.6 --swap.objective swap --swap.step_tokens {STEP_TOKENS}
    --train.batch_size {PROMPTS_A_STEP * RESPONSES} --train.micro_batch_size 32 --actor.adam.lr 3e-4
    --actor.adam.betas 0.9 0.999 --actor.adam.weight_decay 0.01
    --actor.lr_scheduler constant --actor.gradient_checkpointing_enable --actor.num_nodes 1
    --actor.num_gpus_per_node 1 --ds.zero_stage 2 --vllm.num_engines 1 --vllm.tensor_parallel_size 1
    --vllm.gpu_memory_utilization 0.5 --algo.advantage.is_correction_level token
    --ds.packing_samples --train.dynamic_batch_enable
    --ckpt.save_steps 1 --ckpt.load_enable --ckpt.save_hf --ckpt.max_num 2""".split()

Reading = tuple[float, int]
"""Seconds of the monotonic clock, and bytes of the GPU in use."""
Step = tuple[float, Row]
"""When a step was seen to have ended, and its metrics."""


class FatalFinding(Exception):
    """Something is wrong that makes all other checks pointless; it is in `Findings`."""


class Findings:
    """What was found, in the order of the checks; the remedy is None where nothing is wrong."""

    def __init__(self) -> None:
        self.lines: list[dict[str, str | None]] = []

    def add(
        self, name: str, found: str, wanted: str = "", good: bool = True, remedy: str = "", fatal: bool = False
    ) -> None:
        """Note what a check found; raises FatalFinding if it is wrong and `fatal`."""
        self.lines.append({"name": name, "found": found, "wanted": wanted, "remedy": None if good else remedy})
        if fatal and not good:
            raise FatalFinding(name)

    @property
    def wrong(self) -> list[str]:
        """A line with a remedy for everything that is wrong."""
        return [f"{line['name']}: {line['found']}; {line['remedy']}" for line in self.lines if line["remedy"]]

    def print_table(self) -> int:
        """Print the table and what is wrong; returns the exit status."""
        rows = [(line["name"], line["found"], line["wanted"]) for line in self.lines]
        print(tabulate(rows, ["check", "found", "wanted"], disable_numparse=True, maxcolwidths=[None, 60, 50]))
        for text in self.wrong:
            print(f"wrong: {text}")
        print("[gpu_check] see above" if self.wrong else "[gpu_check] all is as it should be")
        return 1 if self.wrong else 0


def write_report(output: Path, argv: Sequence[str], findings: Findings, measured: dict[str, Any]) -> Path:
    """Write the report into the folder of the run, and return its path.

    `measured` has seconds by phase, memory in bytes, and whether all checks were made.
    """
    made, machine = provenance.made_of("openrlhf-swap gpu-check", redacted(list(argv))), get_env_info()._asdict()
    content = {
        "passed": not findings.wrong and measured["complete"],
        "command": scrubbed(made["command"]),
        "commit": made["commit"],
        "versions": made["versions"],
        "machine": {name: machine[name] for name in MACHINE},
        **measured,
        "findings": [{key: value and scrubbed(value) for key, value in line.items()} for line in findings.lines],
    }
    write_text(output / NAME, to_line(content, indent=2))
    return output / NAME


def scrubbed(text: str) -> str:
    """A text without the values of secret variables, hub tokens, folders, addresses and the machine's name."""
    secrets = [value for name, value in os.environ.items() if _SECRET_NAME.search(name) and len(value) >= 6]
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    text = _FOLDERS.sub(".../", _HUB_TOKEN.sub("***", text).replace(str(Path.home()), "~"))
    return _ADDRESS.sub("<address>", text).replace(platform.node() or "\0", "<host>")


def training_flags(model: str, output: Path) -> list[str]:
    """Flags of the training; writes its prompts into `output`."""
    prompts = output / "prompts.jsonl"
    write_rows(prompts, ({"problem": p, "answer": a} for p, a in additions(STEPS * PROMPTS_A_STEP, seed=7)))
    flags = ["--actor.model_name_or_path", model, "--data.prompt_dataset", str(prompts), *FLAGS, *SHARED_GPU]
    flags += ["--swap.close_template", CLOSE_TEMPLATE, "--swap.output_dir", str(output)]
    return [*flags, *(f"--{part}.max_tokens_per_gpu={32 * CONTEXT}" for part in ("train", "rollout"))]


def train_and_kill(
    findings: Findings, flags: Sequence[str], output: Path, patience: float, on_last: Callable[[list[Step]], None]
) -> list[Step]:
    """Train, kill the run when its last step but one is saved, and resume it.

    `on_last` is called with the steps of the first process, at the end of the last of them; those of the second are
    returned.
    """

    def on_step(steps: list[Step]) -> None:
        check_weights(findings, steps[-1][1])
        if len(steps) == STEPS - 1:
            on_last(steps)

    seal = output / "checkpoints" / "_actor" / f"global_step{STEPS - 1}" / "complete.json"
    watch(findings, flags, output, patience, on_step, seal.exists)
    print(f"[gpu_check] killed after step {STEPS - 1}; resuming", flush=True)
    time.sleep(5)  # until what it started has noticed
    return watch(findings, flags, output, patience, on_step)


def watch(
    findings: Findings,
    flags: Sequence[str],
    output: Path,
    patience: float,
    on_step: Callable[[list[Step]], None],
    done: Callable[[], bool] = lambda: False,
) -> list[Step]:
    """Run a training until it ends or `done`, and kill it then; `on_step` gets all steps so far after each of them.

    Returns:
        Its steps, each with the time at which it was seen to have ended.

    Raises:
        FatalFinding: if it ends with an error, or if neither train.log nor the metrics grow for `patience` seconds.
    """
    metrics, errors = output / METRICS, output / "errors.log"
    known, size, ended = len(list(read_rows(metrics))), 0, False
    steps: list[Step] = []
    grew_at = time.monotonic()
    with open(errors, "w", encoding="utf-8") as file:
        process = subprocess.Popen([sys.executable, "-m", "openrlhf_swap", "train", *flags], stderr=file)
    try:
        while not (ended or done()):
            ended = process.poll() is not None  # before anything is read, so that nothing is missed
            for row in list(read_rows(metrics))[known + len(steps) :]:
                steps.append((time.monotonic(), row))
                on_step(steps)
            now, before = time.monotonic(), size
            size = sum(path.stat().st_size for path in (output / LIBRARIES, metrics) if path.exists())
            grew_at = grew_at if size == before else now
            if now - grew_at > patience:
                silence = f"nothing for {now - grew_at:.0f} s after {len(steps)} steps"
                remedy = (
                    "if a compiler is running (nvcc, ptxas or g++ in top), start again with a larger --patience; "
                    "otherwise try it with --vllm.enforce_eager"
                )
                findings.add("progress", silence, f"something every {patience:.0f} s", False, remedy, fatal=True)
            time.sleep(0.1)
    finally:
        process.kill()
        status = process.wait()
    if ended and status:
        remedy = f"see the end of {LIBRARIES} and docs/use/troubleshooting.md; attach gpu_check.json to a report"
        lines = errors.read_text(encoding="utf-8", errors="replace").splitlines() or ["it said nothing"]
        error = f"{lines[-1].removeprefix('error: ')} (status {status})"
        findings.add("training", error, "no error", False, remedy, fatal=True)
    return steps


def check_weights(findings: Findings, row: Row) -> None:
    """Whether vLLM generated a step's responses with the trainer's weights."""
    value = row.get("vllm_kl")  # null where it was not a number
    kl, wanted = float("inf") if value is None else abs(value), f"< {MOST_KL:.0e}"
    remedy = "vLLM has other weights than the trainer: do not train; try VLLM_USE_V2_MODEL_RUNNER=0"
    findings.add("vllm_kl", f"{kl:.1e} in step {row['step']}", wanted, kl < MOST_KL, remedy, fatal=True)


def check_steps(findings: Findings, rows: Sequence[Row], resumed: int, finished: bool) -> None:
    """The steps that were trained, `resumed` of them after the kill, and the seconds of each phase."""
    steps, wanted = [row["step"] for row in rows], list(range(1, STEPS + 1))
    good, remedy = steps == wanted and resumed > 0 and finished, "docs/use/faults.md says what a resumed run does"
    trained = f"{steps}, {resumed} after the kill" + ("" if finished else ", not finished")
    name = "steps, resumed after a kill"
    findings.add(name, trained, f"{wanted}, 1 after the kill", good, f"{remedy}; see train.log")
    for phase, seconds in phase_seconds(rows).items():
        findings.add(f"seconds a step: {phase}", f"{seconds:.2f}")


def phase_seconds(rows: Sequence[Row]) -> dict[str, float]:
    """Mean seconds of each phase, without the first step, which warms up."""
    times = {name: [row[key] for row in rows[1:] if key in row] for name, key in STEP_PHASES.items()}
    return {name: fmean(seconds) for name, seconds in times.items() if seconds}


@contextlib.contextmanager
def polled(memory: Callable[[], int]) -> Iterator[list[Reading]]:
    """A list to which the results of `memory` are appended, ten a second."""
    used, done = [(time.monotonic(), memory())], threading.Event()

    def poll() -> None:
        while not done.wait(0.1):
            used.append((time.monotonic(), memory()))

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        yield used
    finally:
        done.set()
        thread.join()


def planned_bytes(output: Path, total: int) -> dict[str, int]:
    """Bytes on the GPU by phase, as the plan computes them for the run that wrote `output`."""
    model, given = read_run(configure(["--config", str(output / "run.yaml")], on_cpu=False))
    settings = place_optimizer(model, given, Machine(total, 1))
    return {phase: sum(parts.values()) for phase, parts in phases(model, settings, total).items()}


def check_memory(findings: Findings, used: Sequence[Reading], steps: Sequence[Step], planned: int) -> None:
    """Check the most in use, in bytes, and what sleep frees."""
    before = used[0][1]
    peak, remedy = max(size for _, size in used) - before, "lower --vllm.gpu_memory_utilization"
    wanted = f"<= {gib(planned)}, as planned"
    findings.add("GiB at most", gib(peak), wanted, peak <= planned, f"{remedy}, and report it: the plan is too small")
    # Between the first and the last step of a process: outside of these the engine does not exist yet, or has ended.
    inside = [size - before for moment, size in used if steps[0][0] <= moment <= steps[-1][0]] or [0]
    asleep, awake = min(inside), max(inside)
    remedy = "sleep frees no memory: leave out --vllm.enable_sleep and --train.colocate_all"
    good, wanted = awake > 0 and asleep < 0.7 * awake, f"< 70% of {gib(awake)}"
    findings.add("GiB while vLLM sleeps", gib(asleep), wanted, good, remedy, fatal=True)


def additions(count: int, seed: int) -> list[tuple[str, str]]:
    """Pairs of problem and answer, as the embedded policy was taught: additions of three-digit numbers."""
    rng = random.Random(seed)
    pairs = [(rng.randint(100, 999), rng.randint(100, 999)) for _ in range(count)]
    return [(f"What is {left} + {right}?", str(left + right)) for left, right in pairs]


def check_scoring(findings: Findings, name: str, device: torch.device) -> None:
    """Score the model's own responses with one forward for all prefixes and with one for each, in bfloat16.

    Raises FatalFinding if it ends with an error.
    """
    try:
        difference = largest_difference(name, device)
    except (RuntimeError, OSError) as error:  # those of CUDA are RuntimeErrors
        remedy = "fix what the error names"
        findings.add("scoring on the GPU", first_line(error), "no error", False, remedy, fatal=True)
        return
    good, remedy = difference < MOST_SCORE, "train with --swap.scoring per_prefix, and report it"
    name, wanted = "scoring, shared against per prefix", f"< {MOST_SCORE}"
    findings.add(name, f"{difference:.3f} nats", wanted, good, remedy)


def largest_difference(name: str, device: torch.device) -> float:
    """The largest difference between both backends' log-probabilities of an answer, in nats."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from openrlhf_swap.rollouts.families import prompt_ids
    from openrlhf_swap.scoring.backends import PER_PREFIX, SHARED_PREFIX
    from openrlhf_swap.scoring.scorer import Scorer

    tokenizer = AutoTokenizer.from_pretrained(name)
    model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.bfloat16, attn_implementation="sdpa")
    model = model.eval().to(device)
    config = SwapConfig(step_tokens=STEP_TOKENS, close_template=CLOSE_TEMPLATE)
    # Before anything is generated, because they leave out cuDNN, which builds a plan for each length.
    scorers = [Scorer(model, tokenizer, config, backend) for backend in (SHARED_PREFIX, PER_PREFIX)]
    rows = []
    for problem, answer in additions(8, seed=3):
        prompt = torch.tensor([prompt_ids(tokenizer, problem)], device=device)
        mask = torch.ones_like(prompt)
        ids = model.generate(prompt, attention_mask=mask, max_new_tokens=RESPONSE_TOKENS, do_sample=False)[0]
        rows.append((problem, answer, str(tokenizer.decode(ids[prompt.shape[1] :]))))
    shared, alone = (
        torch.tensor([value for row in rows for value in scorer.score(*row)["answer_logprobs"]]) for scorer in scorers
    )
    return (shared - alone).abs().max().item()

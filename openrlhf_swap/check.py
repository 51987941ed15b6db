"""Does training work on this machine's GPU? Takes minutes; run it before you rent hours.

Scores in bfloat16 with both backends, trains the quickstart's policy on one GPU as the launch
scripts do it (vLLM with CUDA graphs and DeepSpeed in turn, weights over CUDA IPC), kills and
resumes the run, and compares the memory with `openrlhf-swap plan`. Ends at the first thing that is
wrong, with a remedy. For a bug report, gpu_check.json in the output folder has versions, machine,
seconds, memory and findings; it is written anew with every finding, so that it may be left alone.
SIGTERM ends it and its training. Further flags go to the training. Exit status: 0, 1 when something
is wrong, 2 without a GPU.
"""

import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from statistics import fmean

import torch
from tabulate import tabulate
from torch.utils.collect_env import get_env_info

from openrlhf_swap.command import PROGRAM, Parser, run_command
from openrlhf_swap.config import SwapConfig
from openrlhf_swap.errors import ConfigError, first_line
from openrlhf_swap.files import Row, read_rows, to_line, write_text
from openrlhf_swap.flags.configuration import configure
from openrlhf_swap.objectives.registry import build
from openrlhf_swap.process.sessions import end_session, ended_by_sigterm, start_session
from openrlhf_swap.quickstart import POLICY
from openrlhf_swap.quickstart.addition import problems
from openrlhf_swap.quickstart.make_data import write
from openrlhf_swap.quickstart.world import CLOSE
from openrlhf_swap.runs import checkpoints
from openrlhf_swap.runs.metrics import STEP_PHASES
from openrlhf_swap.runs.model_code import check_model_files
from openrlhf_swap.runs.provenance import made_of
from openrlhf_swap.sizing.fitting import Machine, fit
from openrlhf_swap.sizing.memory import phases
from openrlhf_swap.sizing.models import gib
from openrlhf_swap.sizing.settings import read_run

COMMAND = f"{PROGRAM} check"
MARK = "[gpu_check]"
REPORT = "gpu_check.json"
MACHINE = (
    "os",
    "python_version",
    "cuda_compiled_version",
    "nvidia_driver_version",
    "nvidia_gpu_models",
)
STEP_TOKENS = 8
MOST_SCORE = 0.1  # nats between the two backends in bfloat16
RESPONSE_TOKENS = 160
STEPS = 3  # the last one after a kill
PROMPTS_A_STEP = 16
RESPONSES = 8
CONTEXT = 400  # tokens of a prompt and its response
# Between vLLM's and the trainer's log-probabilities; kernels for bfloat16 differ by less.
MOST_KL = 1e-2
# As in the scripts: vLLM (with CUDA graphs) and DeepSpeed take turns on one GPU, and weights go
# over CUDA IPC.
SHARED_GPU = [
    "--train.colocate_all",
    "--vllm.enable_sleep",
    "--ds.enable_sleep",
    "--vllm.sync_backend",
    "nccl",
]
# The temperature is a real training's: at 1, logits that nobody scales would pass. With the
# correction, OpenRLHF compares vLLM's log-probabilities with the trainer's.
FLAGS = f"""
    --data.input_key problem --data.label_key answer --data.apply_chat_template
    --data.max_len {CONTEXT} --rollout.max_new_tokens 320
    --rollout.batch_size {PROMPTS_A_STEP} --rollout.n_samples_per_prompt {RESPONSES}
    --rollout.micro_batch_size 32 --rollout.temperature 0.6
    --swap.objective swap --swap.step_tokens {STEP_TOKENS}
    --train.batch_size {PROMPTS_A_STEP * RESPONSES} --train.micro_batch_size 32
    --actor.adam.lr 3e-4 --actor.adam.betas 0.9 0.999 --actor.adam.weight_decay 0.01
    --actor.lr_scheduler constant --actor.gradient_checkpointing_enable --actor.num_nodes 1
    --actor.num_gpus_per_node 1 --ds.zero_stage 2
    --vllm.num_engines 1 --vllm.tensor_parallel_size 1 --vllm.gpu_memory_utilization 0.5
    --algo.advantage.is_correction_level token
    --ds.packing_samples --train.dynamic_batch_enable
    --ckpt.save_steps 1 --ckpt.load_enable --ckpt.save_hf --ckpt.max_num 2""".split()

Reading = tuple[float, int]
"""Seconds of the monotonic clock, and bytes of the GPU in use."""
Step = tuple[float, Row]
"""When a step was seen to have ended, and its metrics."""


@dataclass(frozen=True)
class Gpu:
    """The GPU that is checked."""

    device: torch.device
    used: Callable[[], int]  # bytes in use, by any process
    total: int  # bytes


class WrongError(Exception):
    """A check failed; `Findings` has it."""


@dataclass
class Findings:
    """What was found, in the order of the checks; `remedy` is None where nothing is wrong.

    With a `file`, all of it is written there, anew with each finding.
    """

    file: Path | None = None
    about: Row = field(default_factory=dict)  # commit, versions and machine
    lines: list[dict[str, str | None]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    memory: Row = field(default_factory=dict)
    finished: bool = False

    def add(
        self, name: str, found: str, wanted: str = "", good: bool = True, remedy: str = ""
    ) -> None:
        """Note, print and write what a check found; raises WrongError if that is not good."""
        wrong_with = None if good else remedy
        self.lines.append({"name": name, "found": found, "wanted": wanted, "remedy": wrong_with})
        print(f"{MARK} {name}: {found}{f' (wanted: {wanted})' if wanted else ''}", flush=True)
        self.write()
        if not good:
            raise WrongError(name)

    def write(self) -> None:
        """Write the report."""
        report = {
            "passed": self.finished and not self.wrong,
            **self.about,
            "seconds": self.seconds,
            "memory": self.memory,
            "findings": self.lines,
        }
        if self.file:
            write_text(self.file, to_line(report, indent=2))

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Keep the seconds of what runs inside."""
        begun = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = time.monotonic() - begun
            self.write()

    @property
    def wrong(self) -> str | None:
        """What is wrong, with a remedy; None for nothing."""
        for line in self.lines:
            if line["remedy"]:
                return f"{line['name']}: {line['found']}; {line['remedy']}"
        return None

    def print_table(self) -> int:
        """Print the table and what is wrong; returns the exit status."""
        rows = [(line["name"], line["found"], line["wanted"]) for line in self.lines]
        header = ["check", "found", "wanted"]
        widths = [None, 60, 50]
        print(tabulate(rows, header, disable_numparse=True, maxcolwidths=widths))
        print(f"{MARK} wrong: {self.wrong}" if self.wrong else f"{MARK} all is as it should be")
        return 1 if self.wrong else 0


def main(argv: list[str]) -> int:
    """Run the command."""
    parser = Parser(COMMAND, __doc__)
    parser.add_argument(
        "--output", type=Path, default=Path("outputs/gpu_check"), help="folder, which must be new"
    )
    parser.add_argument(
        "--model", default=str(POLICY), help="folder or hub id; by default the quickstart's policy"
    )
    own, extra = parser.parse_known_args(argv)
    if torch.version.cuda is None and not torch.cuda.is_available():
        remedy = "install the other one: PROFILE=gpu bash scripts/setup.sh"
        raise ConfigError(f"torch is a CPU build; {remedy}")
    if not torch.cuda.is_available():
        remedy = "see nvidia-smi, and install a driver of 580 or newer (CUDA 13)"
        raise ConfigError(f"no CUDA GPU can be used; {remedy}")
    if own.output.exists():
        raise ConfigError(
            f"--output is {own.output}, which is there already; remove it, or name another folder"
        )
    check_model_files("--model", own.model)
    device = torch.device("cuda", 0)
    properties = torch.cuda.get_device_properties(0)
    gpu = Gpu(device, lambda: torch.cuda.device_memory_used(device), properties.total_memory)
    print(f"{MARK} {properties.name}; about three minutes on an H100, logs in {own.output}")
    return check(own.model, own.output, gpu, extra).print_table()


def check(model: str, output: Path, gpu: Gpu, extra: Sequence[str] = ()) -> Findings:
    """Run the checks up to the first that fails, and write the report as they come.

    `extra` are flags of the training. Any error, and a signal that ends this process, is a finding.
    """
    output.mkdir(parents=True, exist_ok=True)
    machine = get_env_info()._asdict()
    made = made_of(COMMAND, [])
    about = {
        "commit": made["commit"],
        "versions": made["versions"],
        "machine": {name: machine[name] for name in MACHINE},
    }
    findings = Findings(output / REPORT, about)
    remedy = "see the traceback in the console; report it with this file"
    try:
        with ended_by_sigterm():
            run_checks(findings, model, output, gpu, extra)
        findings.finished = True
    except WrongError:
        pass
    except Exception as error:  # noqa: BLE001  whatever it is, the report has it
        traceback.print_exc()
        named = f"{type(error).__name__}: {first_line(error)}"
        with suppress(WrongError):
            findings.add("an error", named, "none", False, remedy)
    except BaseException as error:
        with suppress(WrongError):
            name = type(error).__name__
            findings.add("stopped", f"{name} {error}".strip(), "the end", False, "run it again")
        raise
    findings.write()
    print(f"{MARK} report: {findings.file}", flush=True)
    return findings


def run_checks(
    findings: Findings, model: str, output: Path, gpu: Gpu, extra: Sequence[str]
) -> None:
    """Run the checks; raises WrongError at the first that fails."""
    print(f"{MARK} scoring with both backends in bfloat16", flush=True)
    with findings.timed("scoring"):
        check_scoring(findings, model, gpu.device)
    if gpu.device.type == "cuda":
        torch.cuda.empty_cache()
    flags = [*training_flags(model, output), *extra]
    saved = output / "checkpoints" / checkpoints.FOLDER / f"global_step{STEPS - 1}"
    with findings.timed("training"), polled(gpu.used) as used:
        steps = watch(findings, flags, output, saved.exists)
    check_weights(findings, steps)
    planned = planned_bytes(output, gpu.total)
    findings.memory["before"] = used[0][1]
    findings.memory["peak"] = max(size for _, size in used)
    findings.memory["planned"] = planned
    check_memory(findings, used, steps, max(planned.values()))
    print(f"{MARK} killed after step {STEPS - 1}; resuming", flush=True)
    with findings.timed("training, resumed"):
        resumed = watch(findings, flags, output)
    check_weights(findings, resumed)
    check_steps(findings, [row for _, row in [*steps, *resumed]], len(resumed))


def training_flags(model: str, output: Path) -> list[str]:
    """Flags of the training; writes its prompts into `output`."""
    prompts = output / "prompts.jsonl"
    write(prompts, islice(problems(seed=7), STEPS * PROMPTS_A_STEP))
    flags = ["--actor.model_name_or_path", model, "--data.prompt_dataset", str(prompts)]
    # With both flags neither side of so small a model would sleep, and nothing could be checked.
    flags += [*FLAGS, *SHARED_GPU, "--no-ds.enable_sleep"]
    flags += ["--swap.close_template", CLOSE, "--swap.output_dir", str(output)]
    for part in ("train", "rollout"):
        flags.append(f"--{part}.max_tokens_per_gpu={32 * CONTEXT}")
    return flags


def watch(
    findings: Findings, flags: Sequence[str], output: Path, done: Callable[[], bool] = lambda: False
) -> list[Step]:
    """Run a training until it ends or `done`, and kill it then, with all that it started.

    Returns:
        Its steps, each with the time at which it was seen to have ended.

    Raises:
        WrongError: if it ends with an error, which it has then printed.
    """
    metrics = output / "metrics.jsonl"
    known = len(list(read_rows(metrics)))
    ended = False
    steps: list[Step] = []
    process = start_session([sys.executable, "-m", "openrlhf_swap", "train", *flags])
    try:
        while not (ended or done()):
            ended = process.poll() is not None  # before anything is read, so that nothing is missed
            rows = list(read_rows(metrics))[known + len(steps) :]
            steps += [(time.monotonic(), row) for row in rows]
            time.sleep(0.1)
    finally:
        status = end_session(process)
    if ended and status:
        remedy = "see the error above, the end of train.log and docs/help.md"
        findings.add("training", f"an error (status {status})", "no error", False, remedy)
    return steps


def check_weights(findings: Findings, steps: Sequence[Step]) -> None:
    """Whether vLLM generated the responses of steps with the trainer's weights."""
    remedy = "vLLM has other weights than the trainer: do not train; try VLLM_USE_V2_MODEL_RUNNER=0"
    for _, row in steps:
        value = row.get("vllm_kl")  # null where it was not a number
        kl = float("inf") if value is None else abs(value)
        found = f"{kl:.1e} in step {row['step']}"
        findings.add("vllm_kl", found, f"< {MOST_KL:.0e}", kl < MOST_KL, remedy)


def check_steps(findings: Findings, rows: Sequence[Row], resumed: int) -> None:
    """Check the steps that were trained, and note the mean seconds of each phase.

    `resumed` of the steps were trained after the kill.
    """
    steps = [row["step"] for row in rows]
    wanted = list(range(1, STEPS + 1))
    findings.add(
        "steps, resumed after a kill",
        f"{steps}, {resumed} after the kill",
        f"{wanted}, 1 after the kill",
        good=steps == wanted and resumed > 0,
        remedy="docs/help.md says what a resumed run does; see train.log",
    )
    for phase, key in STEP_PHASES.items():
        times = [row[key] for row in rows[1:] if key in row]  # the first step warms up
        if times:
            findings.add(f"seconds a step: {phase}", f"{fmean(times):.2f}")


@contextmanager
def polled(memory: Callable[[], int]) -> Iterator[list[Reading]]:
    """A list to which the results of `memory` are appended, ten a second."""
    used = [(time.monotonic(), memory())]
    done = threading.Event()

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
    run = configure(["--config", str(output / "run.yaml")], on_cpu=False)
    model, given = read_run(run, build(run.method))
    settings = fit(model, given, Machine(total, 1))
    return {phase: sum(parts.values()) for phase, parts in phases(model, settings, total).items()}


def check_memory(
    findings: Findings, used: Sequence[Reading], steps: Sequence[Step], planned: int
) -> None:
    """Check the most in use, in bytes, and what sleep frees."""
    before = used[0][1]
    first = steps[0][0]
    last = steps[-1][0]
    # Between the first and the last step of a process: outside of these the engine does not exist
    # yet, or has ended.
    inside = [size - before for moment, size in used if first <= moment <= last]
    asleep = min(inside, default=0)
    awake = max(inside, default=0)
    findings.add(
        "GiB while vLLM sleeps",
        gib(asleep),
        f"< 70% of {gib(awake)}",
        good=awake > 0 and asleep < 0.7 * awake,
        remedy="sleep frees no memory: leave out --vllm.enable_sleep and --train.colocate_all",
    )
    peak = max(size for _, size in used) - before
    findings.add(
        "GiB at most",
        gib(peak),
        f"<= {gib(planned)}, as planned",
        good=peak <= planned,
        remedy="lower --vllm.gpu_memory_utilization, and report it: the plan is too small",
    )


def check_scoring(findings: Findings, name: str, device: torch.device) -> None:
    """Score the model's own responses in bfloat16 with both backends, and compare.

    One makes one forward for all prefixes, the other one for each.
    """
    remedy = "fix what the error names"
    try:
        difference = largest_difference(name, device)
    except (RuntimeError, OSError) as error:  # errors of CUDA are RuntimeErrors
        findings.add("scoring on the GPU", first_line(error), "no error", False, remedy)
        return
    findings.add(
        "scoring, shared against per prefix",
        f"{difference:.3f} nats",
        f"< {MOST_SCORE}",
        good=difference < MOST_SCORE,
        remedy="train with --swap.scoring per_prefix, and report it",
    )


def largest_difference(name: str, device: torch.device) -> float:
    """The largest difference between both backends' log-probabilities of an answer, in nats."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from openrlhf_swap.rollouts.families import prompt_ids
    from openrlhf_swap.scoring.backends import PER_PREFIX, SHARED_PREFIX
    from openrlhf_swap.scoring.scorer import Scorer

    tokenizer = AutoTokenizer.from_pretrained(name)
    model = AutoModelForCausalLM.from_pretrained(
        name, dtype=torch.bfloat16, attn_implementation="sdpa"
    )
    model = model.eval().to(device)
    config = SwapConfig(step_tokens=STEP_TOKENS, close_template=CLOSE)
    # Before anything is generated, because they leave out cuDNN, which builds a plan for each
    # length.
    scorers = [Scorer(model, tokenizer, config, backend) for backend in (SHARED_PREFIX, PER_PREFIX)]
    rows = []
    for problem in islice(problems(seed=3), 8):
        prompt = torch.tensor([prompt_ids(tokenizer, problem.question)], device=device)
        limits = {"max_new_tokens": RESPONSE_TOKENS, "do_sample": False}
        (ids,) = model.generate(prompt, attention_mask=torch.ones_like(prompt), **limits)
        response = str(tokenizer.decode(ids[prompt.shape[1] :]))
        rows.append((problem.question, problem.answer, response))
    scores = []
    for scorer in scorers:
        found = [torch.tensor(scorer.score(*row)["answer_logprobs"]) for row in rows]
        scores.append(torch.cat(found))
    shared, alone = scores
    return (shared - alone).abs().max().item()


if __name__ == "__main__":
    sys.exit(run_command(main))

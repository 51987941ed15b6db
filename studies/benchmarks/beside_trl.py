"""A training step by phases, with swap, with grpo, and in TRL's GRPO on the same machine.

    python -m studies.benchmarks.beside_trl

Without a GPU the quickstart's policy trains as `scripts/train_swap.sh laptop` has it, and TRL
samples with transformers. With one, a model of R1-Distill-Qwen-1.5B's sizes with random weights
trains as `train_swap.sh 1gpu` has it, both with vLLM on the same GPU; its responses end at random,
after 1,100 tokens on average. A coin says which are correct. The first step of each, which warms
up, is left out of the medians.

It may be left alone, and needs no network. The stages are model, swap, grpo and TRL. Each has a
limit of --limit seconds and a log in the output folder, and after each results.json there is
written anew: with the steps that were finished, also of a stage that failed or was cut off. Nothing
is deleted. Exit status: 0, or 1 if a stage failed.

TRL runs in an environment of its own, --environment, which has to be there:
studies/benchmarks/requirements-trl.txt says how it is made.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import torch
from tabulate import tabulate

from openrlhf_swap.command import run_command
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.files import read_rows, to_line, write_rows, write_text
from openrlhf_swap.integration.patches import CPU_COMMAND, EVERY_CPU, VARIABLES
from openrlhf_swap.process.sessions import ended_by_sigterm
from openrlhf_swap.quickstart import POLICY
from openrlhf_swap.quickstart.addition import problems
from studies.benchmarks.stages import run_stage
from studies.benchmarks.trl_trial import MARK

ROOT = Path(__file__).parents[2]
MODEL = "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"  # a preset: its sizes are known without a hub
ENDS = 100  # tokens that end a response: one of them comes up after vocabulary / ENDS tokens
ON_CPU = {"steps": 4, "prompts": 16, "responses": 8, "tokens": 320, "rows": 32}
ON_GPU = {"steps": 4, "prompts": 8, "responses": 8, "tokens": 2048, "rows": 4}
MAKE_MODEL = (
    "import sys; from studies.benchmarks.beside_trl import make_model; make_model(*sys.argv[1:])"
)
# Phases -> the metric of a step.
OURS = {
    "generation": "timing/generation",
    "log-probabilities": "timing/make_experience",
    "of it, scoring": "timing/score",
    "update": "timing/ppo_train",
    "weights to the engine": "timing/broadcast",
    "step": "timing/step_total",
}
Seconds = dict[str, float]


@dataclass
class Results:
    """Each stage's steps by phases, its seconds and its fault; written anew after each stage."""

    file: Path
    about: dict[str, Any]
    stages: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, name: str, start: float, fault: str | None, steps: Sequence[Seconds]) -> None:
        """Note, print and write what a stage gave; `start` is of the monotonic clock."""
        seconds = round(time.monotonic() - start, 1)
        self.stages[name] = {"seconds": seconds, "fault": fault, "steps": list(steps)}
        write_text(self.file, to_line({**self.about, "stages": self.stages}, indent=2))
        said = fault or "done"
        print(f"[beside_trl] {name}: {said}, {len(steps)} steps, {seconds} s", flush=True)

    def medians(self) -> dict[str, Seconds]:
        """Of each stage with at least two steps, the median seconds of a phase after the first."""
        found: dict[str, Seconds] = {}
        for name, stage in self.stages.items():
            first, *later = stage["steps"] or [{}]
            if later:
                found[name] = {}
                for phase in first:
                    found[name][phase] = median(step[phase] for step in later)
        return found

    def print_table(self) -> None:
        """Print the phases of all stages side by side, and the ratios of their steps."""
        medians = self.medians()
        rows: list[list[Any]] = []
        for phase in OURS:
            seconds = [steps.get(phase) for steps in medians.values()]
            rows.append([phase, *seconds])
        header = ["seconds", *medians]
        print(tabulate(rows, header, tablefmt="github", floatfmt=".2f", missingval="-"))
        for other, meaning in (("TRL", "a step of TRL's GRPO"), ("grpo", "a step with grpo")):
            if medians.keys() >= {"swap", other}:
                ratio = medians["swap"]["step"] / medians[other]["step"]
                print(f"ratio {ratio:.2f}: a step with swap, to {meaning}")


def make_model(folder: str, tokenizer: str) -> None:
    """Save a model with random weights that ends its responses."""
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    from studies.benchmarks.policy_step import save_random_model

    save_random_model(MODEL, folder)
    words = AutoTokenizer.from_pretrained(tokenizer)
    words.save_pretrained(folder)
    size = AutoConfig.from_pretrained(folder).vocab_size
    ends = [words.eos_token_id, *range(size // 3, size // 3 + ENDS)]
    GenerationConfig(eos_token_id=ends, pad_token_id=words.pad_token_id).save_pretrained(folder)


def write_prompts(path: Path, number: int) -> None:
    """Write sums as problems."""
    sums = islice(problems(5), number)
    write_rows(path, [{"problem": each.question, "answer": each.answer} for each in sums])


def flags_of(objective: str, args: argparse.Namespace) -> list[str]:
    """The flags of a training of ours."""
    preset = "1gpu" if args.on_gpu else "laptop"
    flags = {
        "config": ROOT / "scripts" / f"train_swap_{preset}.yaml",
        "swap.objective": objective,
        "swap.grader": "studies.benchmarks.trl_trial:verify",
        "swap.self_test_steps": 0,
        "swap.output_dir": args.output / objective,
        "actor.model_name_or_path": args.model,
        "data.prompt_dataset": args.output / "prompts.jsonl",
        "data.max_len": args.context,
        "rollout.batch_size": args.prompts,
        "rollout.n_samples_per_prompt": args.responses,
        "rollout.max_new_tokens": args.tokens,
        "rollout.temperature": 1.0,
        "train.batch_size": args.prompts * args.responses,
        "train.num_episodes": 1,
        "ckpt.save_steps": 1000,
    }
    words = []
    for name, value in flags.items():
        words += [f"--{name}", str(value)]
    return words + args.flags


def train(objective: str, args: argparse.Namespace) -> tuple[str | None, list[Seconds]]:
    """Train with an objective of ours; returns what went wrong, and the phases of each step."""
    command = [sys.executable, "-m", "openrlhf_swap.train", *flags_of(objective, args)]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
    fault = run_stage(command, args.output / f"{objective}.log", args.limit, environment)
    rows = list(read_rows(args.output / objective / "metrics.jsonl"))
    steps = []
    for row in rows:
        steps.append({phase: row.get(name, 0.0) for phase, name in OURS.items()})
    return fault, steps


def train_trl(args: argparse.Namespace) -> tuple[str | None, list[Seconds]]:
    """Train in TRL; returns what went wrong, and the phases of each step."""
    settings = {
        "model": str(args.model),
        "prompts": str(args.output / "prompts.jsonl"),
        "prompts_a_step": args.prompts,
        "context": args.context,
        "learning_rate": 1e-6 if args.on_gpu else 3e-4,
        **{name: getattr(args, name) for name in ("steps", "responses", "tokens", "rows")},
    }
    python = args.environment / "bin" / "python"
    if not python.exists():
        return f"{python} is not there; see studies/benchmarks/requirements-trl.txt", []
    command = [str(python), str(Path(__file__).with_name("trl_trial.py")), json.dumps(settings)]
    ours_on_a_cpu = {} if args.on_gpu else VARIABLES[EVERY_CPU] | VARIABLES[CPU_COMMAND]
    log = args.output / "TRL.log"
    fault = run_stage(command, log, args.limit, {**os.environ, **ours_on_a_cpu})
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return fault, [json.loads(line[len(MARK) :]) for line in lines if line.startswith(MARK)]


def parse(argv: Sequence[str], on_gpu: bool) -> argparse.Namespace:
    """Parse the command line; further flags are those of our trainings."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    for name, size in (ON_GPU if on_gpu else ON_CPU).items():
        parser.add_argument(f"--{name}", type=int, default=size, help="(default: %(default)s)")
    output = Path("outputs") / time.strftime("beside_trl_%Y%m%d_%H%M%S")
    parser.add_argument("--output", type=Path, default=output, help="new folder (%(default)s)")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds of a stage, at most")
    parser.add_argument(
        "--model", type=Path, help="on a GPU: folder of a model, instead of random weights"
    )
    parser.add_argument(
        "--tokenizer", help="on a GPU, without --model: folder, or hub id where there is a network"
    )
    parser.add_argument(
        "--environment", type=Path, default=ROOT / ".venv-trl", help="TRL's (default: %(default)s)"
    )
    args, args.flags = parser.parse_known_args(argv)
    args.on_gpu = on_gpu
    args.context = args.tokens + (1000 if on_gpu else 80)
    args.output = args.output.absolute()
    if on_gpu and not args.model and not args.tokenizer:
        raise ConfigError("--tokenizer is missing; name a folder with R1's tokenizer, or a --model")
    if args.output.exists():
        raise ConfigError(
            f"--output is {args.output}, which is there already; remove it, or name another folder"
        )
    return args


def main(argv: list[str]) -> int:
    """Run the stages; returns 1 if one of them failed."""
    on_gpu = torch.cuda.is_available()
    args = parse(argv, on_gpu)
    args.output.mkdir(parents=True)
    device = torch.cuda.get_device_name() if on_gpu else f"{len(os.sched_getaffinity(0))} cores"
    sizes = {name: getattr(args, name) for name in ON_CPU}
    results = Results(args.output / "results.json", {"device": device, **sizes})
    with ended_by_sigterm():
        run_stages(args, results)
    print(f"{args.prompts} x {args.responses} responses of at most {args.tokens} tokens; {device}")
    results.print_table()
    return int(any(stage["fault"] for stage in results.stages.values()))


def run_stages(args: argparse.Namespace, results: Results) -> None:
    """Run one stage after the other; without a model there is nothing to train."""
    write_prompts(args.output / "prompts.jsonl", args.prompts * args.steps)
    if not args.model and not args.on_gpu:
        args.model = POLICY
    if not args.model:
        args.model = args.output / "model"
        start = time.monotonic()
        # In a process of its own, whose memory on the GPU ends with it.
        command = [sys.executable, "-c", MAKE_MODEL, str(args.model), args.tokenizer]
        fault = run_stage(command, args.output / "model.log", args.limit)
        results.add("model", start, fault, [])
        if fault:
            return
    for name in ("swap", "grpo", "TRL"):
        start = time.monotonic()
        fault: str | None = "stopped by a signal"
        steps: list[Seconds] = []
        try:
            fault, steps = train_trl(args) if name == "TRL" else train(name, args)
        finally:
            results.add(name, start, fault, steps)


if __name__ == "__main__":
    sys.exit(run_command(main))

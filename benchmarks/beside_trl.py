"""A training step by phases, with swap, with grpo, and in TRL's GRPO on the same model, prompts and
machine.

    python -m benchmarks.beside_trl

Without a GPU the embedded policy trains as `scripts/train_swap.sh laptop` has it, and TRL samples
with transformers. With one, a model of R1-Distill-Qwen-1.5B's sizes with random weights trains as
`train_swap.sh 1gpu` has it, both with vLLM on the same GPU; its responses end at random, after
1,100 tokens on average. A coin says which are correct.

TRL gets an environment of its own in --environment, which sees the packages of this one; what it
adds stands in benchmarks/requirements-trl.txt. The first step of each, which warms up, is left out.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import site
import subprocess
import sys
import tempfile
import venv
from itertools import islice
from pathlib import Path
from statistics import median

import torch
from tabulate import tabulate

from benchmarks.trl_trial import MARK
from openrlhf_swap.integration.patches import CPU_COMMAND, EVERY_CPU, VARIABLES

ROOT = Path(__file__).parents[1]
POLICY = ROOT / "examples" / "worlds" / "policies" / "addition"
MODEL = "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"
ENDS = 100  # tokens that end a response of random weights: one of them comes up after vocabulary / ENDS tokens
SIZES = {  # with a GPU: -> the defaults of the flags
    False: {"steps": 4, "prompts": 16, "responses": 8, "tokens": 320, "rows": 32},
    True: {"steps": 4, "prompts": 8, "responses": 8, "tokens": 2048, "rows": 4},
}
# Phases -> the metrics of a step that make them.
OURS = {
    "generation": ["timing/generation"],
    "log-probabilities": ["timing/make_experience"],
    "of it, scoring": ["timing/score"],
    "update": ["timing/ppo_train"],
    "weights to the engine": ["timing/broadcast"],
    "step": ["timing/step_total"],
}
Seconds = dict[str, float]


def make_model(folder: Path, tokenizer: str) -> None:
    """Save a model with random weights that ends its responses."""
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    from benchmarks.policy_step import save_random_model

    save_random_model(MODEL, str(folder))
    words = AutoTokenizer.from_pretrained(tokenizer)
    words.save_pretrained(folder)
    size = AutoConfig.from_pretrained(folder).vocab_size
    ends = [words.eos_token_id, *range(size // 3, size // 3 + ENDS)]
    GenerationConfig(eos_token_id=ends, pad_token_id=words.pad_token_id).save_pretrained(folder)


def write_prompts(path: Path, number: int) -> None:
    sys.path.insert(0, str(ROOT / "examples" / "worlds"))
    from addition import problems

    rows = (
        {"problem": problem.question, "answer": problem.answer}
        for problem in islice(problems(5), number)
    )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def flags_of(
    objective: str, model: Path, prompts: Path, output: str, context: int, args: argparse.Namespace
) -> list[str]:
    """Our command line."""
    preset = "1gpu" if args.on_gpu else "laptop"
    flags = {
        "config": ROOT / "scripts" / f"train_swap_{preset}.yaml",
        "swap.objective": objective,
        "swap.grader": "benchmarks.trl_trial:verify",
        "swap.self_test_steps": 0,
        "swap.output_dir": output,
        "actor.model_name_or_path": model,
        "data.prompt_dataset": prompts,
        "data.max_len": context,
        "rollout.batch_size": args.prompts,
        "rollout.n_samples_per_prompt": args.responses,
        "rollout.max_new_tokens": args.tokens,
        "rollout.temperature": 1.0,
        "train.batch_size": args.prompts * args.responses,
        "train.num_episodes": 1,
        "ckpt.save_steps": 1000,
    }
    return [
        str(word) for name, value in flags.items() for word in (f"--{name}", value)
    ] + args.flags


def train(
    objective: str, model: Path, prompts: Path, context: int, args: argparse.Namespace
) -> list[Seconds]:
    """The phases of each step of ours."""
    with tempfile.TemporaryDirectory() as output:
        command = [sys.executable, "-m", "openrlhf_swap.train"]
        command += flags_of(objective, model, prompts, output, context, args)
        subprocess.run(command, check=True, stdout=sys.stderr, cwd=ROOT)
        rows = [
            json.loads(line) for line in (Path(output) / "metrics.jsonl").read_text().splitlines()
        ]
    return [
        {phase: sum(row.get(name, 0.0) for name in names) for phase, names in OURS.items()}
        for row in rows
    ]


def train_trl(model: Path, prompts: Path, context: int, args: argparse.Namespace) -> list[Seconds]:
    """The phases of each step of TRL's."""
    python = args.environment / "bin" / "python"
    if not python.exists():
        venv.create(args.environment, with_pip=True)
        (packages,) = args.environment.glob("lib/python*/site-packages")
        (packages / "stack.pth").write_text("\n".join(site.getsitepackages()) + "\n")
        requirements = ROOT / "benchmarks" / "requirements-trl.txt"
        install = [
            str(python),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "-r",
            str(requirements),
        ]
        subprocess.run(install, check=True, stdout=sys.stderr)
    settings = {
        "model": str(model),
        "prompts": str(prompts),
        "prompts_a_step": args.prompts,
        "context": context,
        "learning_rate": 1e-6 if args.on_gpu else 3e-4,
        **{name: getattr(args, name) for name in ("steps", "responses", "tokens", "rows")},
    }
    command = [str(python), str(ROOT / "benchmarks" / "trl_trial.py"), json.dumps(settings)]
    environment = {
        **os.environ,
        **({} if args.on_gpu else VARIABLES[EVERY_CPU] | VARIABLES[CPU_COMMAND]),
    }
    result = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    print(result.stdout, file=sys.stderr)
    return [
        json.loads(line.removeprefix(MARK))
        for line in result.stdout.splitlines()
        if line.startswith(MARK)
    ]


def main() -> None:
    on_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, size in SIZES[on_gpu].items():
        parser.add_argument(f"--{name}", type=int, default=size, help="(default: %(default)s)")
    parser.add_argument(
        "--tokenizer", default=MODEL, help="on a GPU: folder or hub id (default: %(default)s)"
    )
    parser.add_argument(
        "--environment", type=Path, default=ROOT / ".venv-trl", help="TRL's (default: %(default)s)"
    )
    args, args.flags = parser.parse_known_args()
    args.on_gpu = on_gpu
    context = args.tokens + (1000 if on_gpu else 80)
    with tempfile.TemporaryDirectory() as folder:
        prompts, model = Path(folder) / "prompts.jsonl", POLICY
        write_prompts(prompts, args.prompts * args.steps)
        if on_gpu:
            model = Path(folder) / "model"
            # In a process of its own, whose memory on the GPU ends with it.
            making = multiprocessing.get_context("spawn").Process(
                target=make_model, args=(model, args.tokenizer)
            )
            making.start()
            making.join()
        found = {name: train(name, model, prompts, context, args) for name in ("swap", "grpo")}
        found["TRL"] = train_trl(model, prompts, context, args)
    medians = {
        name: {phase: median(step[phase] for step in steps[1:]) for phase in steps[0]}
        for name, steps in found.items()
    }
    rows = [[phase, *(steps.get(phase) for steps in medians.values())] for phase in OURS]
    device = torch.cuda.get_device_name() if on_gpu else f"{len(os.sched_getaffinity(0))} cores"
    print(
        f"{args.prompts} x {args.responses} responses of at most {args.tokens} tokens, {args.steps} steps; {device}"
    )
    print(tabulate(rows, ["seconds", *medians], tablefmt="github", floatfmt=".2f", missingval="-"))
    print(
        "first steps:",
        ", ".join(f"{name} {steps[0]['step']:.1f} s" for name, steps in found.items()),
    )
    ours, theirs = medians["swap"]["step"], medians["TRL"]["step"]
    print(f"ratio {ours / theirs:.2f}: a step with swap, to a step of TRL's GRPO")
    print(f"ratio {ours / medians['grpo']['step']:.2f}: a step with swap, to a step with grpo")


if __name__ == "__main__":
    main()

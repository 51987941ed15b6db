r"""Train arms of `plain_loop.py` by the whole stack: do the two agree?

It writes what the loop writes.

    python -m studies.credit.stack_runs --arms steps.uniform steps.tau1 --seeds 101 102 103 \
        --theta 1 --steps 16 \
        --learning-rate 1.5e-3 --output outputs/stack

Ray, vLLM, DeepSpeed and the graders by studies/toy_tasks/train_swap.sh, with the loop's settings: 8
prompts with 8 responses a step, one update, a cosine to 0, the same training problems for a seed
(in another order). The trained policy answers the same 500 held-out problems by the loop's own
sampler. Arms that choose by the program's labels exist in the loop alone. An answer such as 070000
keeps its zero, which the package's cleaning takes for a number's: this file starts the training
without it (`LAUNCHER`).

`objective.NAME` is an objective of the package with its flags of `comparison/objectives.json`.
For L1 the policy is first taught to read a budget, into OUTPUT/WORLD/taught_policy, and it gets one
with the held-out problems; for AdaptThink the policy first answers the training problems four
times. Such a run writes the row of the held-out problems alone.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd
import torch
from transformers import AutoModelForCausalLM

from openrlhf_swap import __main__ as program
from openrlhf_swap.data import references
from openrlhf_swap.files import read_rows
from openrlhf_swap.quickstart.make_data import write
from openrlhf_swap.quickstart.world import Problem, counts, rendered
from openrlhf_swap.recipes import as_words
from studies.comparison.objectives import TABLE, row_of
from studies.credit.arms import arm_settings
from studies.credit.loop_runs import begun
from studies.credit.plain_loop import HELD_OUT, PROMPTS, RESPONSES, Loop
from studies.toy_tasks import NAMES

TOY_TASKS = Path(__file__).parents[1] / "toy_tasks"
# Letter by letter, as in the loop; math-verify would take 70000 for 070000.
GRADER = r"regex:\\boxed\{(\d*)\}"
OBJECTIVE = "objective."
LAUNCHER = "studies.credit.stack_runs"  # this module, which `python -m` runs


def train(
    loop: Loop, folder: Path, problems: int, seed: int, rate: float, flags: Sequence[str]
) -> None:
    """One training of the loop's policy into `folder`; CalledProcessError if it fails."""
    environment = {
        "MODEL": loop.folder,
        "PROMPTS": folder / "train.jsonl",
        "OUTPUT": folder,
        "STEPS": problems // PROMPTS,
        "PROMPTS_A_STEP": PROMPTS,
        "SEED": seed,
        "STEP_TOKENS": loop.world.STEP_TOKENS,
        "LEARNING_RATE": rate,
        "LR_SCHEDULER": "cosine",
        "LAUNCHER": LAUNCHER,
    }
    kept = ["--swap.rollouts_every", "1", "--swap.rollouts_groups", str(PROMPTS)]
    words = {name: str(value) for name, value in environment.items()}
    command = ["bash", TOY_TASKS / "train_swap.sh", "--swap.grader", GRADER, *kept, *flags]
    subprocess.run(command, env={**os.environ, **words}, check=True)


def objective_flags(name: str, loop: Loop, world: str, folder: Path) -> list[str]:
    """The flags of an objective, after making what it starts from, beside and in `folder`."""
    shared = folder.parent / world
    row = row_of(world, name)
    if name in TABLE["taught"]:
        teach(loop, world, shared / "taught_policy")
    if name == "adaptthink":
        answer_first(loop, folder)
    reference = folder / "reference.jsonl"
    flags = [word.replace("{sweep}/reference.jsonl", str(reference)) for word in row["train"]]
    return [word.replace("{sweep}", str(shared)) for word in flags]


def teach(loop: Loop, world: str, folder: Path) -> None:
    """Teach the loop's policy to read budgets, unless it was done."""
    if (folder / "trained" / "model.safetensors").exists():
        return
    words = {"WORLD": world, "OUTPUT": folder, "ROWS": 12000, "LEARNING_RATE": 1e-3}
    environment = {name: str(value) for name, value in words.items()}
    command = ["bash", TOY_TASKS / "train_policy.sh", "--start", loop.folder, "--modes"]
    subprocess.run(command, env={**os.environ, **environment}, check=True)


def answer_first(loop: Loop, folder: Path) -> None:
    """Let the untrained policy answer the training problems, for AdaptThink."""
    command = [sys.executable, "-m", LAUNCHER, "reference", "--model", loop.folder, "--samples", 4]
    command += ["--dataset", folder / "train.jsonl", "--output", folder / "reference.jsonl"]
    command += ["--temperature", 1, "--top-p", 1, "--max-tokens", 320, "--max-model-len", 512]
    subprocess.run([*map(str, command), "--swap.grader", GRADER], check=True)


def read_run(loop: Loop, folder: Path, problems: list[Problem]) -> list[dict[str, Any]]:
    """A row a step."""
    by_prompt = {rendered(problem.question): problem.question for problem in problems}
    rows = []
    for step, file in enumerate(sorted((folder / "rollouts").glob("step_*.jsonl"))):
        responses = list(read_rows(file))
        lines = [counts(loop.world, by_prompt[row["prompt"]], row["response"]) for row in responses]
        assert len(responses) == PROMPTS * RESPONSES
        means = pd.DataFrame(lines)[list(loop.world.LABELS)].mean().to_dict()
        means["accuracy"] = fmean(row["reward"] for row in responses)
        means["tokens"] = fmean(row["length"] for row in responses)
        rows.append({"step": step, **means})
    return rows


def held_out(loop: Loop, folder: Path, test: list[Problem], suffix: str = "") -> dict[str, Any]:
    """The row of the held-out problems, each with a suffix; it has no step."""
    trained = AutoModelForCausalLM.from_pretrained(folder / "policy", dtype=torch.bfloat16)
    loop.model = trained.eval()
    _, responses = loop.respond(test, suffix=suffix)
    return {"step": None, **loop.measured(test, responses)}


def arm_flags(arm: str, theta: float, discount: float) -> list[str]:
    """The flags of an arm of `arms.py`."""
    settings = {**arm_settings(arm), "process_weight": theta, "step_discount": discount}
    return as_words({f"swap.{name}": value for name, value in settings.items()})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--world", choices=NAMES, default="columns")
    parser.add_argument("--arms", nargs="+", required=True)
    parser.add_argument("--seeds", type=int, nargs="+", required=True)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--theta", type=float, default=1.0)
    parser.add_argument("--discount", type=float, default=1.0, help="gamma (default: 1)")
    parser.add_argument("--learning-rate", type=float, default=1.5e-3)
    parser.add_argument(
        "--output", type=Path, required=True, help="folder of WORLD-ARM-THETA-K-SEED.jsonl"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    loop = Loop(args.world)
    test = list(islice(loop.world.problems(1), HELD_OUT))
    for seed in args.seeds:
        stream = loop.world.problems(1000 + seed, exclude=frozenset(test))
        problems = list(islice(stream, args.steps * PROMPTS))
        for arm in args.arms:
            label = arm if args.discount == 1 else f"{arm}+gamma{args.discount:g}"
            name = f"{args.world}-{label}-{args.theta:g}-25-{seed}"
            file = args.output / f"{name}.jsonl"
            if file.exists():
                continue
            folder = args.output / name
            folder.mkdir(parents=True, exist_ok=True)
            write(folder / "train.jsonl", problems)
            suffix = ""
            if arm.startswith(OBJECTIVE):
                objective = arm.removeprefix(OBJECTIVE)
                flags = objective_flags(objective, loop, args.world, folder)
                _, suffix = row_of(args.world, objective).get("evaluate", ("", ""))
            else:
                flags = arm_flags(arm, args.theta, args.discount)
            beginning = begun()
            start = time.monotonic()
            train(loop, folder, len(problems), seed, args.learning_rate, flags)
            beginning["seconds"] = round(time.monotonic() - start, 1)
            rows = [] if arm.startswith(OBJECTIVE) else read_run(loop, folder, problems)
            torch.manual_seed(seed)
            rows.append({**held_out(loop, folder, test, suffix), **beginning})
            file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
            print(file.name, rows[-1], flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] in (["train"], ["reference"]):
        references.normal_answer = str
        sys.exit(program.main())
    main()

"""Train the embedded policy with SWAP, and show what it unlearned.

Trains on the real stack, evaluates the base and the trained policy on the same held-out problems
and seeds, and writes a table, a figure, a page (report.html), summary.json and the trained policy
to the output folder.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

import psutil
from before_after import write_page
from report import draw, table
from tqdm import tqdm

from openrlhf_swap.files import read_rows
from openrlhf_swap.runs.metrics import STEP_PHASES

HERE = Path(__file__).parent
LEASH = [sys.executable, str(HERE.parent / "leash.py")]  # ends a command with this process
SHOWN = 5  # problems on the page
# Its two updates per step need about two thirds of the steps that one needs, and its learning rate
# decays to zero, which avoids the bad last steps that a constant one has now and then:
# docs/measurements.md.
SETTINGS = HERE.parents[1] / "scripts" / "train_swap_laptop.yaml"
PROMPTS_A_STEP = 16


def run(name: str, command: list[str], log: Path) -> Iterator[float]:
    """Run a command with its output in `log`.

    Yields the GiB that its processes occupy, about once a second. Less often for many gigabytes:
    counting their pages slows the processes down.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "w", encoding="utf-8") as file:
        process = subprocess.Popen([*LEASH, *command], stdout=file, stderr=subprocess.STDOUT)
        try:
            while process.poll() is None:
                started = time.perf_counter()
                yield memory_gib(process.pid)
                time.sleep(min(10, max(1, 50 * (time.perf_counter() - started))))
        finally:
            process.terminate()
    if process.wait() != 0:
        tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])
        sys.exit(f"{tail}\nerror: {name} failed; the lines above are the end of {log}")


def memory_gib(pid: int) -> float:
    """Proportional set size of a process and all its descendants; shared pages count once."""
    total = 0
    try:
        root = psutil.Process(pid)
        for process in [root, *root.children(recursive=True)]:
            try:
                total += process.memory_full_info().pss
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
    except psutil.NoSuchProcess:
        pass
    return total / 2**30


def evaluate(policies: dict[str, Path], problems: Path, samples: int, output: Path) -> list[dict]:
    """Evaluate named policies in one process, because its start takes longest.

    Returns their summaries.
    """
    print(f"[quickstart] evaluating the {' and the '.join(policies)} policy", flush=True)
    files = [output / f"{name}.json" for name in policies]
    command = [
        sys.executable,
        str(HERE / "evaluate.py"),
        "--problems",
        str(problems),
        "--samples",
        str(samples),
    ]
    command += [
        "--model",
        *map(str, policies.values()),
        "--output",
        *map(str, files),
        "--traces",
        str(SHOWN),
    ]
    for _ in run("the evaluation", command, output / "evaluate.log"):
        pass
    return [json.loads(file.read_text(encoding="utf-8")) for file in files]


def train(
    model: Path, prompts: Path, output: Path, steps: int, seed: int, recipe: str | None
) -> tuple[list[dict], float]:
    """Train in a separate process with a progress bar.

    Returns the metrics of each step and the peak memory.
    """
    print(
        f"[quickstart] training {steps} steps; Ray and vLLM need about a minute to start",
        flush=True,
    )
    flags = {
        "--config": SETTINGS,
        "--swap.output_dir": output / "train",
        "--actor.model_name_or_path": model,
        "--data.prompt_dataset": prompts,
        "--data.max_samples": steps * PROMPTS_A_STEP,
        "--train.num_episodes": 1,
        "--train.seed": seed,
        "--ckpt.save_steps": -1,
    }
    if recipe is not None:
        flags["--swap.recipe"] = recipe
    command = [sys.executable, "-m", "openrlhf_swap", "train", "--no-ckpt.load_enable"]
    for flag, value in flags.items():
        command += [flag, str(value)]
    metrics_file = output / "train" / "metrics.jsonl"
    shutil.rmtree(output / "train", ignore_errors=True)  # left by an earlier quickstart
    peak = 0.0
    metrics = []
    # Frequent in a terminal, rare in a log file.
    interval = 1 if sys.stderr.isatty() else 20
    with tqdm(total=steps, desc="[quickstart] training", unit="step", mininterval=interval) as bar:
        for memory in run("the training", command, output / "train.log"):
            peak = max(peak, memory)
            metrics = list(read_rows(metrics_file))
            bar.update(len(metrics) - bar.n)
            if measured := [
                row for row in metrics if "swap/accuracy" in row
            ]:  # a skipped step has none
                last = measured[-1]
                bar.set_postfix(
                    accuracy=f"{last['swap/accuracy']:.2f}",
                    tokens=f"{last['length/mean']:.0f}",
                    refresh=False,
                )
        metrics = list(read_rows(metrics_file))
        bar.update(len(metrics) - bar.n)
    return metrics, peak


def warnings_in(log: Path) -> list[str]:
    """The training's warnings."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return [line for line in lines if line.startswith("[swap] warning")]


def main() -> None:
    parser = argparse.ArgumentParser(
        sys.argv[0], description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model", type=Path, default=HERE / "policies" / "addition", help="the base policy"
    )
    parser.add_argument(
        "--output", type=Path, default=Path("outputs/quickstart"), help="output folder"
    )
    parser.add_argument(
        "--steps", type=int, default=24, help="training steps of 16 prompts x 8 responses"
    )
    parser.add_argument("--problems", type=int, default=500, help="held-out problems")
    parser.add_argument("--samples", type=int, default=1, help="responses per held-out problem")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument(
        "--recipe", help="own_bill or needed, for example; the paper's equations by default"
    )
    args = parser.parse_args()

    started = time.perf_counter()
    args.output.mkdir(parents=True, exist_ok=True)
    data = args.output / "data"
    make_data = [sys.executable, str(HERE / "make_data.py"), "--output", str(data)]
    make_data += ["--train", str(args.steps * PROMPTS_A_STEP), "--test", str(args.problems)]
    subprocess.run(make_data, check=True)

    prompts = data / "train.jsonl"
    metrics, peak = train(args.model, prompts, args.output, args.steps, args.seed, args.recipe)
    for warning in warnings_in(args.output / "train.log"):
        print(warning)
    policies = {"base": args.model, "trained": args.output / "train" / "policy"}
    base, trained = evaluate(policies, data / "test.jsonl", args.samples, args.output)

    summary = {
        "base": base,
        "trained": trained,
        "seconds": {
            name: fmean(step[key] for step in metrics[1:] or metrics)
            for name, key in STEP_PHASES.items()
        },
        "peak_memory_gib": peak,
    }
    path = args.output / "summary.json"
    path.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    draw(metrics, summary, args.output / "training.png")
    page = write_page(policies, summary, args.output)
    print(table(summary))
    print(
        f"[quickstart] {time.perf_counter() - started:.0f} s in all; peak memory of the training "
        f"{peak:.1f} GiB"
    )
    print(f"[quickstart] curves: {args.output}/training.png   numbers: {path}")
    print(f"[quickstart] trained policy in Hugging Face format: {args.output}/train/policy")
    print(f"[quickstart] before and after, step by step: open {page} in a browser")


if __name__ == "__main__":
    main()

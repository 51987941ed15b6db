"""Train the quickstart's policy on this machine, without a GPU, and show what it unlearned.

    openrlhf-swap quickstart [--output outputs/quickstart] [--steps 24]

Trains with Ray, vLLM and DeepSpeed, evaluates the base and the trained policy on the same held-out
problems and seeds, and writes a table, a figure, a page (report.html), summary.json and the trained
policy to the output folder.
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import psutil
from tqdm import tqdm

from openrlhf_swap.command import PROGRAM, Parser, run_command
from openrlhf_swap.errors import ConfigError, RunError
from openrlhf_swap.files import Row, read_rows, to_line, write_text
from openrlhf_swap.process.locks import LOCK, locked
from openrlhf_swap.quickstart import POLICY
from openrlhf_swap.quickstart.before_after import write_page
from openrlhf_swap.quickstart.make_data import write_problems
from openrlhf_swap.quickstart.report import draw, table
from openrlhf_swap.quickstart.world import ADDITION, load_world
from openrlhf_swap.runs.metrics import STEP_PHASES

LEASH = [sys.executable, "-m", "openrlhf_swap.process.leash"]  # ends a command with this process
SETTINGS = Path(__file__).with_name("settings.yaml")
MARK = "[quickstart]"
CLAIM = "made_by_the_quickstart.txt"
SHOWN = 5  # problems on the page
PROMPTS_A_STEP = 16
TAIL = 15  # lines of a log that are shown after an error


@dataclass(frozen=True)
class Training:
    """What a training did: the metrics of each step, and the peak of its memory in GiB."""

    metrics: list[Row]
    peak_memory: float


def main(argv: list[str]) -> None:
    parser = Parser(f"{PROGRAM} quickstart", __doc__)
    parser.add_argument("--model", type=Path, default=POLICY, help="the base policy")
    parser.add_argument(
        "--output", type=Path, default=Path("outputs/quickstart"), help="output folder"
    )
    parser.add_argument(
        "--steps", type=int, default=24, help="training steps of 16 prompts x 8 responses"
    )
    parser.add_argument("--problems", type=int, default=500, help="held-out problems")
    parser.add_argument("--samples", type=int, default=1, help="responses per held-out problem")
    parser.add_argument("--seed", type=int, default=42)
    recipe_help = "own_bill or needed, for example; the paper's equations by default"
    parser.add_argument("--recipe", help=recipe_help)
    args = parser.parse_args(argv)

    with locked({"--output": args.output}):
        claim(args.output)
        train_and_compare(args)


def claim(output: Path) -> None:
    """Mark a new or empty folder as a quickstart's; raises ConfigError for anybody else's files."""
    mark = output / CLAIM
    if mark.exists():
        return
    others = sorted(path.name for path in output.iterdir() if path.name != LOCK)
    if others:
        raise ConfigError(
            f"--output is {output}, which holds {others[0]} and no {CLAIM}: its files are not a "
            "quickstart's and might be replaced; name a new folder"
        )
    write_text(mark, "The quickstart made this folder, and replaces its files at its next start.\n")


def train_and_compare(args: argparse.Namespace) -> None:
    """Train, evaluate both policies, and write and print what the training changed."""
    started = time.perf_counter()
    output: Path = args.output
    data = output / "data"
    write_problems(load_world(ADDITION), data, args.steps * PROMPTS_A_STEP, args.problems)
    command = training_command(args.model, output, args.steps, args.seed, args.recipe)
    training = train(command, output, args.steps)
    for warning in warnings_in(output / "train.log"):
        print(warning)
    policies = {"base": args.model, "trained": output / "train" / "policy"}
    evaluated = evaluate(policies, data / "test.jsonl", args.samples, output)

    summary = {
        **evaluated,
        "seconds": seconds_a_phase(training.metrics),
        "peak_memory_gib": training.peak_memory,
    }
    numbers = output / "summary.json"
    write_text(numbers, to_line(summary, indent=2))
    draw(training.metrics, summary, output / "training.png")
    page = write_page(policies, summary, output)
    print(table(summary))
    seconds = time.perf_counter() - started
    memory = f"peak memory of the training {training.peak_memory:.1f} GiB"
    print(f"{MARK} {seconds:.0f} s in all; {memory}")
    print(f"{MARK} curves: {output}/training.png   numbers: {numbers}")
    print(f"{MARK} trained policy in Hugging Face format: {output}/train/policy")
    print(f"{MARK} before and after, step by step: open {page} in a browser")


def run(name: str, command: list[str], log: Path) -> Iterator[float]:
    """Run a command with its output in `log`.

    Yields the GiB that its processes occupy, about once a second. Less often for many gigabytes:
    counting their pages slows the processes down. Raises RunError when the command fails.
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
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        print("\n".join(lines[-TAIL:]), file=sys.stderr)
        raise RunError(f"{name} failed; the lines above are the end of {log}")


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


def training_command(
    model: Path, output: Path, steps: int, seed: int, recipe: str | None
) -> list[str]:
    """The command that trains on the problems in `output`."""
    flags = {
        "--config": SETTINGS,
        "--swap.output_dir": output / "train",
        "--actor.model_name_or_path": model,
        "--data.prompt_dataset": output / "data" / "train.jsonl",
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
    return command


def train(command: list[str], output: Path, steps: int) -> Training:
    """Train in a separate process with a progress bar."""
    print(f"{MARK} training {steps} steps; Ray and vLLM need about a minute to start", flush=True)
    metrics_file = output / "train" / "metrics.jsonl"
    shutil.rmtree(output / "train", ignore_errors=True)  # left by an earlier quickstart
    peak = 0.0
    # Frequent in a terminal, rare in a log file.
    interval = 1 if sys.stderr.isatty() else 20
    with tqdm(total=steps, desc=f"{MARK} training", unit="step", mininterval=interval) as bar:
        for memory in run("the training", command, output / "train.log"):
            peak = max(peak, memory)
            metrics = list(read_rows(metrics_file))
            bar.update(len(metrics) - bar.n)
            show_last(bar, metrics)
        metrics = list(read_rows(metrics_file))
        bar.update(len(metrics) - bar.n)
    return Training(metrics, peak)


def show_last(bar: tqdm, metrics: list[Row]) -> None:
    """Show accuracy and length of the last step beside the bar; a skipped step has none."""
    measured = [row for row in metrics if "swap/accuracy" in row]
    if measured:
        accuracy = f"{measured[-1]['swap/accuracy']:.2f}"
        tokens = f"{measured[-1]['length/mean']:.0f}"
        bar.set_postfix(accuracy=accuracy, tokens=tokens, refresh=False)


def evaluate(
    policies: Mapping[str, Path], problems: Path, samples: int, output: Path
) -> dict[str, Row]:
    """Evaluate named policies in one process, because its start takes longest.

    Returns the summary of each.
    """
    print(f"{MARK} evaluating the {' and the '.join(policies)} policy", flush=True)
    files = {name: output / f"{name}.json" for name in policies}
    command = [sys.executable, "-m", "openrlhf_swap.quickstart.evaluate"]
    command += ["--problems", str(problems), "--samples", str(samples), "--traces", str(SHOWN)]
    command += ["--model", *map(str, policies.values())]
    command += ["--output", *map(str, files.values())]
    for _ in run("the evaluation", command, output / "evaluate.log"):
        pass
    return {name: json.loads(file.read_text(encoding="utf-8")) for name, file in files.items()}


def seconds_a_phase(metrics: list[Row]) -> dict[str, float]:
    """Mean seconds of each phase of a step, without the first step, which warms up."""
    steps = metrics[1:] or metrics
    return {name: fmean(step[key] for step in steps) for name, key in STEP_PHASES.items()}


def warnings_in(log: Path) -> list[str]:
    """The training's warnings."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return [line for line in lines if line.startswith("[swap] warning")]


if __name__ == "__main__":
    sys.exit(run_command(main))

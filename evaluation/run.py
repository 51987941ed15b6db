r"""Evaluate a model on benchmarks.

    python -m evaluation.run --model MODEL --benchmarks math500 aime24 --output outputs/eval/base

Writes each sample as it finishes, then grades and prints a table. Started again with the same settings, it goes on
where it stopped; `python -m evaluation.report` makes tables of any number of evaluations.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from evaluation.benchmarks import BENCHMARKS, Problem, load_benchmark, short_name
from evaluation.generate import Sampling, Task, generate
from evaluation.grade import grade_file
from evaluation.samples import (
    SETTINGS,
    drop_unfinished_line,
    key_of,
    merge_parts,
    part_path,
    problems_path,
    read_new_rows,
    read_rows,
    samples_path,
    sort_file,
)
from openrlhf_swap.answers import SUFFIX
from openrlhf_swap.errors import ConfigError, SwapError
from openrlhf_swap.rewards import Grader


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status: 0, or 2 after a one-line error."""
    args = parse(argv)
    try:
        evaluate(args)
        return 0
    except SwapError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m evaluation.run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="hub id, or folder in Hugging Face format")
    parser.add_argument(
        "--benchmarks",
        nargs="+",
        default=["math500", "amc23", "aime24", "aime25", "olympiadbench"],
        help=f"some of {', '.join(BENCHMARKS)}, or JSONL files with problem and answer (default: the paper's five)",
    )
    parser.add_argument("--output", type=Path, required=True, help="folder of this evaluation")
    parser.add_argument("--data", type=Path, help="folder with local copies of the benchmarks; the hub by default")
    parser.add_argument("--samples", type=int, default=16, help="responses a problem (default: 16)")
    parser.add_argument("--limit", type=int, help="only the first so many problems of each benchmark")
    parser.add_argument("--temperature", type=float, default=0.6)
    parser.add_argument("--top-p", type=float, default=0.95)
    parser.add_argument("--max-tokens", type=int, default=32768, help="longest response (default: 32768)")
    parser.add_argument("--seed", type=int, default=0, help="every sample's seed is made from it")
    parser.add_argument(
        "--suffix",
        default=SUFFIX,
        help="text after each problem, as in training, '' for nothing (default: %(default)r)",
    )
    parser.add_argument("--max-model-len", type=int, help="longest prompt and response; the model's by default")
    parser.add_argument("--engines", type=int, default=1, help="vLLM engines that share the samples, placed by Ray")
    parser.add_argument("--tensor-parallel-size", type=int, default=1, help="GPUs of each engine")
    parser.add_argument("--grade-again", action="store_true", help="throw the grades away and grade the samples again")
    return parser.parse_args(argv)


def evaluate(args: argparse.Namespace) -> None:
    """Generate what is missing, grade it, print the table.

    Raises:
        ConfigError: for settings that contradict the folder's earlier ones.
        DataError: for a benchmark that cannot be used.
    """
    for name in ("samples", "max_tokens", "engines", "tensor_parallel_size"):
        if getattr(args, name) < 1:
            raise ConfigError(f"--{name.replace('_', '-')} is {getattr(args, name)}; use at least 1")
    names = [short_name(name) for name in args.benchmarks]
    if len(set(names)) != len(names):
        raise ConfigError(f"--benchmarks is {' '.join(args.benchmarks)}; their files need different names")
    problems = {short_name(name): load_benchmark(name, args.data)[: args.limit] for name in args.benchmarks}
    check_settings(args)
    for name, rows in problems.items():
        text = "".join(json.dumps(dataclasses.asdict(row), ensure_ascii=False) + "\n" for row in rows)
        problems_path(args.output, name).write_text(text, encoding="utf-8")
    tasks = missing_tasks(args.output, problems, args.samples)
    total = sum(len(rows) for rows in problems.values()) * args.samples
    print(f"[evaluation] {total - len(tasks)} of {total} samples are there", flush=True)
    if tasks:
        sample(args, tasks, total)
    grader = Grader()
    for name, rows in problems.items():
        order = {problem.id: number for number, problem in enumerate(rows)}
        path = samples_path(args.output, name)
        empty = sum(row["tokens"] == 0 for row in read_rows(path))
        if empty:
            print(f"[evaluation] {empty} samples of {name} are empty: the problem does not fit the model's context")
        if all(row["id"] in order for row in read_rows(path)):
            sort_file(path, order)
        grade_file(args.output, name, rows, grader, args.grade_again)
    grader.close()

    from evaluation.report import make_table, measure

    print(make_table({args.output.name: measure(args.output)}, "terminal"))


def check_settings(args: argparse.Namespace) -> None:
    """Write the settings to `run.json`, or compare with what is there."""
    settings: dict[str, Any] = {name: getattr(args, name) for name in SETTINGS}
    path = args.output / "run.json"
    if path.exists():
        before = json.loads(path.read_text(encoding="utf-8"))
        for name, value in settings.items():
            if before[name] != value:
                raise ConfigError(
                    f"--{name.replace('_', '-')} is {value!r}, but the samples in {args.output} were made with "
                    f"{before[name]!r}; use another --output"
                )
        return
    args.output.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def missing_tasks(folder: Path, problems: dict[str, list[Problem]], samples: int) -> list[Task]:
    """What has not been sampled yet, benchmark by benchmark."""
    tasks = []
    for name, rows in problems.items():
        drop_unfinished_line(samples_path(folder, name))
        merge_parts(samples_path(folder, name))
        done = {key_of(row) for row in read_rows(samples_path(folder, name))}
        tasks += [
            Task(name, problem.id, number, problem.problem)
            for problem in rows
            for number in range(samples)
            if (problem.id, number) not in done
        ]
    return tasks


def sample(args: argparse.Namespace, tasks: list[Task], total: int) -> None:
    """Generate with a progress bar."""
    from tqdm import tqdm

    options: dict[str, Any] = {"tensor_parallel_size": args.tensor_parallel_size}
    if args.max_model_len:
        options["max_model_len"] = args.max_model_len
    files = {name: samples_path(args.output, name) for name in {task.benchmark for task in tasks}}
    tokens = 0
    with tqdm(total=total, initial=total - len(tasks), desc="sampling", unit="sample") as bar:

        def on_sample(count: int) -> None:
            nonlocal tokens
            tokens += count
            elapsed = bar.format_dict["elapsed"]
            bar.set_postfix_str(f"{tokens / max(elapsed, 1e-9):.0f} tokens/s", refresh=False)
            bar.update()

        sampling = Sampling(args.temperature, args.top_p, args.max_tokens, args.seed)
        if args.engines == 1:
            generate(args.model, tasks, sampling, args.suffix, files, on_sample, **options)
        else:
            sample_with_engines(args, tasks, sampling, files, on_sample, options)


def sample_with_engines(
    args: argparse.Namespace,
    tasks: list[Task],
    sampling: Sampling,
    files: dict[str, Path],
    on_sample: Callable[[int], None],
    options: dict[str, Any],
) -> None:
    """Share the tasks among engines in processes of their own; each writes files of its own, merged at the end."""
    # Ray reads this when it is imported, and then listens on 127.0.0.1 only (on Linux too, whatever the name says).
    if "RAY_ADDRESS" not in os.environ:
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    import ray

    from openrlhf_swap.integration.cpu import is_cpu_build

    gpus = 0 if is_cpu_build() else args.tensor_parallel_size
    ray.init(ignore_reinit_error=True, include_dashboard=False, log_to_driver=False)
    engine = ray.remote(num_gpus=gpus, num_cpus=1)(generate)
    paths = {name: path.resolve() for name, path in files.items()}
    parts = [{name: part_path(path, number) for name, path in paths.items()} for number in range(args.engines)]
    running = [
        engine.remote(args.model, tasks[number :: args.engines], sampling, args.suffix, part, None, **options)
        for number, part in enumerate(parts)
    ]
    offsets = {path: 0 for part in parts for path in part.values()}
    left = running
    while left:
        finished, left = ray.wait(left, num_returns=len(left), timeout=2)
        for path, offset in offsets.items():
            rows, offsets[path] = read_new_rows(path, offset)
            for row in rows:
                on_sample(row["tokens"])
        ray.get(finished)  # an engine's error ends the evaluation at once
    ray.shutdown()
    for path in paths.values():
        merge_parts(path)


if __name__ == "__main__":
    sys.exit(main())

"""The result of a training: tables over held-out problems, figures, and a page of responses."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import json
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from math import inf
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
from tabulate import tabulate

from openrlhf_swap import plan, score
from openrlhf_swap.config import SwapConfig
from openrlhf_swap.errors import DataError
from openrlhf_swap.evaluation import figures
from openrlhf_swap.evaluation.measures import Floats, bootstrap_interval, paired_difference
from openrlhf_swap.evaluation.samples import SampleFiles
from openrlhf_swap.evaluation.traces import traces
from openrlhf_swap.files import Row, read_rows, to_line, write_rows, write_text
from openrlhf_swap.runs.metrics import STEP_PHASES
from studies.smollm2 import operations, over_seeds, thoughts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SHOWN = 5  # problems on the page
LARGEST_PAGE = 300_000  # bytes
BASE = "warm-up"
GRPO = "grpo"
# A training's settings that its page follows: what is read of a step, and who would pay a penalty.
OF_NEED = ("step_reward", "need_window", "need_every")
OF_PENALTIES = ("length_coef", "tau", "weights_from", "step_price")

# A measure: name -> {task -> one value a problem}.
Values = dict[str, dict[str, Floats]]


def count_tokens(tokenizer: PreTrainedTokenizerBase, text: str) -> int:
    """Tokens of a text, without special tokens that the tokenizer would add."""
    return len(tokenizer(text, add_special_tokens=False)["input_ids"])


def batches_left(log: Path) -> float:
    """Micro-batches left in OpenRLHF's supervised training, by the progress bar that ends its log.

    Inf before that. A resumed training's bar counts only what is left, so what is done cannot be
    read from it.
    """
    with open(log, "rb") as file:
        file.seek(max(0, log.stat().st_size - 4096))
        found = re.findall(rb"Train step of epoch[^\r\n]*? (\d+)/(\d+) \[", file.read())
    return int(found[-1][1]) - int(found[-1][0]) if found else inf


def measure(folder: Path, held_out: Sequence[Path], tokenizer: PreTrainedTokenizerBase) -> Values:
    """An evaluation's measures: accuracy, tokens, and sentences by label.

    `Relative` tokens are those of the shortest correct response.

    Raises:
        DataError: if a task has no graded samples in the folder.
    """
    values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for path in held_out:
        asked = {row["problem"]: operations.from_row(row) for row in read_rows(path)}
        texts = SampleFiles(folder, path.stem).problems()
        for sample, grade in SampleFiles(folder, path.stem).graded():
            problem = asked[texts[sample["id"]]["problem"]]
            sentences = thoughts.classify(sample["text"], problem.operations)
            labels = [sentence.label for sentence in sentences]
            needed = count_tokens(tokenizer, thoughts.shortest(problem))
            found = {
                "accuracy": 100.0 * grade["correct"],
                "tokens": sample["tokens"],
                "times needed": sample["tokens"] / needed,
            }
            for label in thoughts.LABELS:
                found[label] = labels.count(label)
            for name, value in found.items():
                values[name][path.stem].append(value)
    if len(values.get("tokens", {})) < len(held_out):
        raise DataError(f"{folder} holds no graded samples of some task; evaluate again")
    arrays: Values = {}
    for name, tasks in values.items():
        arrays[name] = {task: np.array(of) for task, of in tasks.items()}
    return arrays


def _all(tasks: Mapping[str, Floats]) -> Floats:
    return np.concatenate(list(tasks.values()))


def keep(path: Path, runs: Mapping[str, Values]) -> None:
    """Write a row for every policy and response, from which the tables follow.

    The same values give the same bytes.
    """
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["policy", "task", "response", *next(iter(runs.values()))])
    for run, values in runs.items():
        for task in values["accuracy"]:
            columns = [tasks[task] for tasks in values.values()]
            rows.writerows(
                [run, task, number, *map(float, of)]
                for number, of in enumerate(zip(*columns, strict=True))
            )
    path.write_bytes(gzip.compress(text.getvalue().encode(), mtime=0))


def overview(runs: Mapping[str, Values]) -> str:
    """One row per policy, over all problems: means with 95% intervals over problems.

    Sentences without intervals.
    """
    header = ["policy", "accuracy %", "tokens", "times needed", *thoughts.LABELS]
    rows = []
    for run, values in runs.items():
        means = [interval(_all(values[name])) for name in ("accuracy", "tokens", "times needed")]
        rows.append(
            [run, *means, *(f"{_all(values[label]).mean():.2f}" for label in thoughts.LABELS)]
        )
    return tabulate(rows, header, "github", disable_numparse=True)


def changes(runs: Mapping[str, Values]) -> str:
    """One row per policy and task: changes since the first policy, with 95% intervals.

    They are changes on the same problems.
    """
    (_, base), *others = runs.items()
    names = ("accuracy", "tokens", "essential", "useful", "redundant", "other")
    rows = []
    for run, values in others:
        tasks: dict[str, Callable[[Mapping[str, Floats]], Floats]] = {
            **{task: (lambda of, task=task: of[task]) for task in base["accuracy"]},
            "all": _all,
        }
        for task, part in tasks.items():
            pairs = [paired_difference(part(base[name]), part(values[name])) for name in names]
            cells = ["{:+z.1f} ({:+z.1f} to {:+z.1f})".format(*pair) for pair in pairs[:2]]
            rows.append(
                [
                    run,
                    task,
                    *cells,
                    *("{:+z.2f} ({:+z.2f} to {:+z.2f})".format(*pair) for pair in pairs[2:]),
                ]
            )
    return tabulate(
        rows, ["policy", "task", "accuracy, points", *names[1:]], "github", disable_numparse=True
    )


def tables(runs: Mapping[str, Values]) -> str:
    """The overview, methods over seeds, and differences from the first policy and from grpo."""
    means = {}
    for run, values in runs.items():
        means[run] = {name: float(_all(tasks).mean()) for name, tasks in values.items()}
    parts = [overview(runs)]
    of_methods = over_seeds.table(means, GRPO)
    if of_methods:
        parts += ["Methods over training seeds (t-tests with a seed as the unit):", of_methods]
    parts += [f"Changes since the {next(iter(runs))}:", changes(runs)]
    others = {name: values for name, values in list(runs.items())[1:] if name != GRPO}
    if GRPO in runs and others:
        parts += [f"Differences from {GRPO}:", changes({GRPO: runs[GRPO], **others})]
    return "\n\n".join(parts)


def interval(values: Floats) -> str:
    """A mean and its 95% interval."""
    low, high = bootstrap_interval(values)
    return f"{values.mean():.1f} ({low:.1f} to {high:.1f})"


def costs(metrics: Sequence[Row], peak_memory: float) -> str:
    """Seconds per step by phase, without the first step, and the peak memory."""
    # A skipped step has no such time.
    rows = [row for row in metrics[1:] or metrics if STEP_PHASES["score"] in row]
    if not rows:
        return f"no step was measured; at most {peak_memory:.1f} GiB"
    seconds = {}
    for name, key in STEP_PHASES.items():
        seconds[name] = fmean(row[key] for row in rows)
    parts = ", ".join(f"{name} {value:.1f}" for name, value in seconds.items() if name != "total")
    share = seconds["score"] / seconds["total"]
    a_step = f"{seconds['total']:.1f} s a step ({parts})"
    return f"{a_step}; scoring is {share:.0%} of it; at most {peak_memory:.1f} GiB"


def planned_share(run: Path, metrics: Sequence[Row]) -> float:
    """Scoring's share of a step's FLOPs by `openrlhf-swap plan`, at the run's own lengths."""
    rows = [row for row in metrics if "swap/accuracy" in row]
    tokens = fmean(row["length/mean"] for row in rows)
    right = fmean(row["swap/accuracy"] for row in rows)
    words = ["--json", "--gpu", "80", "--response", f"{tokens:.0f}", "--correct", f"{right:.3f}"]
    words += ["--config", str(run / "run.yaml")]
    with contextlib.redirect_stdout(io.StringIO()) as text:
        plan.main(words)
    return float(json.loads(text.getvalue())["step"]["scoring_of_the_step"])


def what_it_cost(output: Path, name: str) -> str:
    """A run's seconds per step, memory, and scoring's share, next to the planned share."""
    metrics = list(read_rows(output / "runs" / name / "metrics.jsonl"))
    peak = json.loads((output / "stages" / f"train_{name}.json").read_text(encoding="utf-8"))[
        "peak_memory_gib"
    ]
    share = planned_share(output / "runs" / name, metrics)
    return f"{name}: {costs(metrics, peak)}; openrlhf_swap.plan: {share:.0%} of the FLOPs"


def draw_labels(runs: Mapping[str, Values], path: Path) -> None:
    """Sentences per response by label, one bar per policy."""
    import matplotlib.pyplot as plt

    figure, panel = plt.subplots(figsize=(2 + 1.2 * len(runs), 3.4), layout="constrained")
    bottom = np.zeros(len(runs))
    for label in thoughts.LABELS:
        heights = np.array([_all(values[label]).mean() for values in runs.values()])
        panel.bar(list(runs), heights, bottom=bottom, label=label)
        bottom += heights
    panel.set_ylabel("sentences per held-out response")
    panel.legend(fontsize="small")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def page(before: Path, after: Path, model: Path, folder: Path, summary: Row) -> Path:
    """The page of responses to the same few problems, scored by the policy before.

    They are of as many tasks as possible. Need is shown where the training rewarded it. The summary
    precedes them, as in `openrlhf_swap.evaluation.page.contents.render`.

    Raises:
        DataError: when the page is too large to be mailed or kept in a repository.
    """
    from openrlhf_swap.evaluation.page.contents import page_data, render

    chosen: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for row in traces(before, 1):
        chosen[row["benchmark"]].append((row["benchmark"], row["id"]))
    in_turn: list[tuple[str, str]] = []
    for of_each_task in zip_longest(*chosen.values()):
        in_turn += [key for key in of_each_task if key is not None]
    shown = in_turn[:SHOWN]
    run = json.loads((after.parent / "swap_config.json").read_text(encoding="utf-8"))
    penalties = SwapConfig(**{name: run["swap"][name] for name in OF_PENALTIES})
    files = []
    for name, evaluated in ((BASE, before), (after.parent.name, after)):
        file = folder / f"{name}.traces.jsonl"
        write_rows(
            file, (row for row in traces(evaluated, 1) if (row["benchmark"], row["id"]) in shown)
        )
        files.append(folder / f"{name}.scored.jsonl")
        files[-1].unlink(missing_ok=True)
        flags = {
            "--model": model,
            "--input": file,
            "--output": files[-1],
            "--swap.end_of_thought": thoughts.END_OF_THOUGHT,
            "--swap.close_template": thoughts.CLOSE,
            "--swap.step_tokens": thoughts.STEP_TOKENS,
            "--swap.newline_patience": thoughts.PATIENCE,
        }
        flags |= {f"--swap.{name}": run["swap"][name] for name in OF_NEED}
        score.main([f"{flag}={value}" for flag, value in flags.items()])
    text = render(page_data(files, penalties, SHOWN) | {"summary": summary})
    path = folder / "page.html"
    if len(text.encode()) > LARGEST_PAGE:
        raise DataError(
            f"{path} would have {len(text.encode())} bytes; show fewer problems than {SHOWN}"
        )
    write_text(path, text)
    return path


def report(output: Path, run: Path, weights: Path, held_out: Sequence[Path]) -> dict[str, Any]:
    """Write all evaluated runs' tables, figures and values, and the page of a run.

    Print the tables.

    Returns:
        the run's accuracy in percent, tokens, and length relative to what is needed.
    """
    from transformers import AutoTokenizer

    from openrlhf_swap.evaluation.page.contents import charts

    tokenizer = AutoTokenizer.from_pretrained(weights)
    folder = run / "report"
    folder.mkdir(exist_ok=True)
    runs = {BASE: measure(output / "base", held_out, tokenizer)}
    finished = sorted(
        path.name.removeprefix("evaluate_") for path in (output / "stages").glob("evaluate_*.json")
    )
    names = [name.removesuffix(".json") for name in finished if name != "base.json"]
    for name in names:
        runs[name] = measure(output / "runs" / name / "evaluation", held_out, tokenizer)
    costs_of = {name: what_it_cost(output, name) for name in names}
    text = "\n\n".join([tables(runs), *costs_of.values()]) + "\n"
    write_text(output / "report.md", text)
    keep(output / "responses.csv.gz", runs)
    draw_labels(runs, output / "sentences.png")
    files = [output / "runs" / name / "metrics.jsonl" for name in names]
    figures.main(["dynamics", *map(str, files), "--output", str(output / "curves")])
    summary = {"notes": [costs_of[run.name]], "tables": [], "charts": charts(run / "metrics.jsonl")}
    shown = page(
        output / "base", run / "evaluation", output / "warm_up" / "policy", folder, summary
    )
    print(
        f"\n{text}\n{output}/report.md, responses.csv.gz, sentences.png, curves.png; {shown}",
        flush=True,
    )
    found = {
        name: round(float(_all(runs[run.name][name]).mean()), 2)
        for name in ("accuracy", "tokens", "times needed")
    }
    write_text(folder / "summary.json", to_line(found, indent=2))
    return found

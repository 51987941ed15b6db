"""The prompt data set as OpenRLHF reads and renders it, and the rows that a run trains on."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from openrlhf_swap.data.golds import examples
from openrlhf_swap.data.prompts import reasons_to_drop
from openrlhf_swap.data.references import answer_is_text, labelled, read_task, try_grader
from openrlhf_swap.errors import DataError, reader_errors
from openrlhf_swap.files import Row, write_rows
from openrlhf_swap.flags.rules import prompt_capacity
from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.rewards.verifiers import MATH

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase


def load_prompts(args: SimpleNamespace, flag: str = "--data.prompt_dataset") -> Dataset:
    """The prompt data set, or the one for evaluation, as OpenRLHF itself will load it.

    Raises:
        DataError: when it cannot be read, is empty, or lacks a column.
    """
    from openrlhf.datasets.utils import blending_datasets

    printer = SimpleNamespace(print=lambda *_: None, is_rank_0=lambda: False, args=args)
    if flag == "--eval.dataset":
        name, probabilities, options = args.eval.dataset, None, {"dataset_split": args.eval.split}
    else:
        name, probabilities = args.data.prompt_dataset, args.data.prompt_probs
        options = {"max_count": args.data.max_samples, "dataset_split": args.data.prompt_split}
    with reader_errors(f"{flag} is {name}, which cannot be read: {{reason}}"):
        rows = blending_datasets(name, probabilities, printer, args.train.seed, **options)
    if len(rows) == 0:
        raise DataError(f"{flag} is {name}, which has no rows; give a data set with at least one")
    for key_flag, key in (("--data.input_key", args.data.input_key), ("--data.label_key", args.data.label_key)):
        if key not in rows.column_names:
            raise DataError(
                f"{key_flag} is {key}, but {name} has no such column; its columns are: {', '.join(rows.column_names)}"
            )
    return rows.select(range(min(args.data.max_samples, len(rows))))


def render_prompts(rows: Sequence[Row], args: SimpleNamespace, tokenizer: PreTrainedTokenizerBase) -> list[str | None]:
    """Each prompt as OpenRLHF will render it; None for an empty one."""
    from openrlhf.datasets.prompts_dataset import preprocess_data

    template = tokenizer.apply_chat_template if args.data.apply_chat_template else None
    key = args.data.input_key
    return [
        preprocess_data(row, args.data.input_template, key, None, template)[0] if row[key] else None for row in rows
    ]


def write_usable_prompts(
    args: SimpleNamespace,
    objective: Objective,
    tokenizer: PreTrainedTokenizerBase,
    output: Path,
    grader: str = MATH,
) -> str:
    """Drop the rows of the prompt data set that cannot be trained on, count them, and print the counts.

    A row is dropped when its prompt is empty, does not fit the context or is changed by the tokenizer, or when its
    answer is empty, a solution or a sentence, or cannot be graded; answers take their normal form. If anything was
    changed, the remaining rows are written to `prompts.jsonl` in `output`; so are the objective's own problem
    texts, and for another grader than math-verify the columns that it may look at, as part of the answer.

    Returns:
        The data set to train on: the given one, or that file.

    Raises:
        ConfigError: for lengths that leave no room for a prompt, or a grader that fails on the first rows.
        DataError: for an unreadable or empty data set, a missing column, or too few rows that are left.
    """
    name, key = args.data.prompt_dataset, args.data.label_key
    capacity = prompt_capacity(args.data.max_len, args.rollout.max_new_tokens)
    original = list(load_prompts(args))
    tasks = [read_task(row, args.data.input_key, key, grader) for row in original]
    rows = [{**_rewritten(row, args, objective), key: task.answer} for row, task in zip(original, tasks, strict=True)]
    prompts = render_prompts(rows, args, tokenizer)
    reasons = reasons_to_drop(prompts, tasks, capacity, tokenizer, grader)
    kept = [number for number, reason in enumerate(reasons) if reason is None]
    counts = {reason: reasons.count(reason) for reason in sorted({reason for reason in reasons if reason})}
    summary = ", ".join(f"{count} with {reason}" for reason, count in counts.items())
    print(f"[swap] data: {len(kept)} of {len(rows)} rows usable" + (f"; dropped {summary}" if counts else ""))
    if not kept:
        raise DataError(f"--data.prompt_dataset is {name}, of which no row can be used: {summary}")
    if len(kept) < args.rollout.batch_size:
        raise DataError(
            f"--data.prompt_dataset is {name}, whose {len(kept)} usable rows do not fill one batch of "
            f"--rollout.batch_size {args.rollout.batch_size}; give more rows, or a smaller batch"
        )
    if answer_is_text(grader):
        for line in examples((original[number][key], tasks[number].answer) for number in kept):
            print(f"[swap] reference answer, as it is graded and scored: {line}")
    objective.check_prompts([prompts[number] or "" for number in kept])
    chosen = [rows[number] for number in kept]
    if grader != MATH:
        try_grader(grader, [tasks[number] for number in kept])
        chosen = [labelled(rows[number], tasks[number], args.data.input_key, key) for number in kept]
    if chosen == original:
        return str(name)
    output.mkdir(parents=True, exist_ok=True)
    write_rows(output / "prompts.jsonl", chosen)
    return str(output / "prompts.jsonl")


def write_evaluation(args: SimpleNamespace, output: Path, grader: str) -> str:
    """Write `--eval.dataset` to `evaluation.jsonl` in `output`, as another grader than math-verify needs its rows.

    Returns:
        The file.

    Raises:
        DataError: for a data set that cannot be read.
    """
    keys = args.data.input_key, args.data.label_key
    rows = list(load_prompts(args, "--eval.dataset"))
    output.mkdir(parents=True, exist_ok=True)
    write_rows(output / "evaluation.jsonl", (labelled(row, read_task(row, *keys, grader), *keys) for row in rows))
    return str(output / "evaluation.jsonl")


def _rewritten(row: Row, args: SimpleNamespace, objective: Objective) -> Row:
    """The row with the objective's problem text; drawn by the text and the run's seed, so the same in every run."""
    key = args.data.input_key
    problem: Any = row[key]
    rng = random.Random(f"{args.train.seed}:{problem}")
    if isinstance(problem, list) and problem and isinstance(problem[-1].get("content"), str):  # messages of a chat
        *before, last = problem
        return {**row, key: [*before, {**last, "content": objective.rewrite_problem(last["content"], rng)}]}
    if not isinstance(problem, str) or not problem:
        return row
    return {**row, key: objective.rewrite_problem(problem, rng)}

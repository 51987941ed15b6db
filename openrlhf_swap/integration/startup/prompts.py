"""The prompt data set as OpenRLHF reads and renders it, and the rows that a run trains on."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from openrlhf_swap.data.prompts import reasons_to_drop
from openrlhf_swap.data.references import answer_is_text, labelled, read_task, try_grader
from openrlhf_swap.data.rows import has_rows, readable_rows
from openrlhf_swap.data.tables import causes_of_loaders
from openrlhf_swap.errors import ConfigError, DataError, reader_errors
from openrlhf_swap.files import Row, replacing, write_rows
from openrlhf_swap.flags.paths import special_in
from openrlhf_swap.flags.rules import columns_of, prompt_capacity
from openrlhf_swap.integration.startup.model_check import check_chat_template
from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.rewards.golds import examples
from openrlhf_swap.rewards.verifiers import MATH, Reference

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class DataFlags:
    """The flags that name a data set, and the file that its usable rows are written to."""

    dataset: str
    split: str
    probabilities: str | None
    usable: str


TRAINING = DataFlags("data.prompt_dataset", "data.prompt_split", "data.prompt_probs", "prompts.jsonl")
EVALUATION = DataFlags("eval.dataset", "eval.split", None, "eval_prompts.jsonl")


def load_prompts(args: SimpleNamespace, flags: DataFlags = TRAINING, source: str | None = None) -> Dataset:
    """A data set of prompts, as OpenRLHF itself will load it; `source` in place of the one that was given.

    Raises:
        DataError: when it cannot be read, is empty, or lacks a column.
    """
    from openrlhf.datasets.utils import blending_datasets

    printer = SimpleNamespace(print=lambda *_: None, is_rank_0=lambda: False, args=args)
    name = attrgetter(flags.dataset)(args)
    probabilities = flags.probabilities and attrgetter(flags.probabilities)(args)
    options: Row = {"dataset_split": attrgetter(flags.split)(args)}
    if flags is TRAINING:
        options["max_count"] = args.data.max_samples
    with reader_errors(f"--{flags.dataset} is {name}, which cannot be read: {{reason}}"), causes_of_loaders():
        rows = blending_datasets(source or name, probabilities, printer, args.train.seed, **options)
    if len(rows) == 0:
        raise DataError(f"--{flags.dataset} is {name}, which has no rows; give a data set with at least one")
    for key_flag, key in columns_of(args).items():
        if key not in rows.column_names:
            raise DataError(
                f"{key_flag} is {key}, but {name} has no such column; its columns are: {', '.join(rows.column_names)}"
            )
    return rows.select(range(min(args.data.max_samples, len(rows))))


def render_prompts(rows: Sequence[Row], args: SimpleNamespace, tokenizer: PreTrainedTokenizerBase) -> list[str | None]:
    """Each prompt as OpenRLHF will render it; None for an empty one, and for what is neither text nor a chat.

    Raises:
        DataError: for a chat that the chat template refuses.
    """
    from openrlhf.datasets.prompts_dataset import preprocess_data

    template = tokenizer.apply_chat_template if args.data.apply_chat_template else None
    key = args.data.input_key

    def render(number: int, row: Row) -> str | None:
        if not _is_problem(row[key], args.data.apply_chat_template):
            return None
        with reader_errors(
            f"--data.input_key is {key}, but the model's chat template refuses row {number} ({{reason}}); "
            "correct the roles of its messages"
        ):
            return str(preprocess_data(row, args.data.input_template, key, None, template)[0])

    return [render(number, row) for number, row in enumerate(rows, 1)]


def write_usable_prompts(
    args: SimpleNamespace,
    objective: Objective,
    tokenizer: PreTrainedTokenizerBase,
    output: Path,
    grader: str = MATH,
) -> str:
    """Drop the rows of the prompt data set that cannot be trained on, count them, and print the counts.

    A row is dropped when it cannot be read, when its prompt is empty, does not fit the context or is changed by the
    tokenizer, or when its answer is empty, a solution or a sentence, or cannot be graded; answers take their normal
    form. If anything was changed, the remaining rows are written to `prompts.jsonl` in `output`; so are the rows of a
    CSV file, the objective's own problem texts, and for another grader than math-verify the columns that it may look
    at, as part of the answer.

    Returns:
        The data set to train on: the given one, or that file.

    Raises:
        ConfigError: for lengths that leave no room for a prompt, a chat template that the model has not, an output
            folder in which OpenRLHF would find no file, or a grader that fails on the first rows.
        DataError: for an unreadable or empty data set, a missing column, or too few rows that are left.
    """
    key = args.data.label_key
    found = _usable_rows(args, TRAINING, lambda row: _rewritten(row, args, objective), tokenizer, output, grader)
    if len(found.tasks) < args.rollout.batch_size:
        raise DataError(
            f"--data.prompt_dataset is {args.data.prompt_dataset}, whose {len(found.tasks)} usable rows do not fill "
            f"one batch of --rollout.batch_size {args.rollout.batch_size}; give more rows, or a smaller batch"
        )
    if answer_is_text(grader):
        for line in examples((given[key], task.answer) for given, task in zip(found.given, found.tasks, strict=True)):
            print(f"[swap] reference answer, as it is graded and scored: {line}")
    objective.check_prompts(found.prompts)
    try_grader(grader, found.tasks)
    return found.source


def write_usable_evaluation(
    args: SimpleNamespace, tokenizer: PreTrainedTokenizerBase, output: Path, grader: str = MATH
) -> str | None:
    """The same for the data set of `--eval.dataset`: rows that nothing can answer would count as wrong.

    Returns:
        The data set to evaluate on: the given one, or `eval_prompts.jsonl` in `output`.

    Raises:
        ConfigError: for a chat template that the model has not, or an output folder in which OpenRLHF would find no
            file.
        DataError: for an unreadable or empty data set, a missing column, or no row that is left.
    """
    return _usable_rows(args, EVALUATION, dict, tokenizer, output, grader).source if args.eval.dataset else None


@dataclass(frozen=True)
class _Usable:
    """The usable rows of a data set: as they were given, as tasks of the grader, their prompts, and where they are."""

    given: list[Row]
    tasks: list[Reference]
    prompts: list[str]
    source: str


def _usable_rows(
    args: SimpleNamespace,
    flags: DataFlags,
    rewrite: Callable[[Row], Row],
    tokenizer: PreTrainedTokenizerBase,
    output: Path,
    grader: str,
) -> _Usable:
    check_chat_template(args, tokenizer)
    name, key = attrgetter(flags.dataset)(args), args.data.label_key
    capacity = prompt_capacity(args.data.max_len, args.rollout.max_new_tokens)
    readable = readable_files(name, f"--{flags.dataset}", output)
    original = list(load_prompts(args, flags, readable))
    tasks = []
    for number, row in enumerate(original, 1):
        with reader_errors(f"--{flags.dataset} is {name}, row {number}: {{reason}}; give the reference answer alone"):
            tasks.append(read_task(row, args.data.input_key, key, grader))
    rows = [{**rewrite(row), key: task.answer} for row, task in zip(original, tasks, strict=True)]
    prompts = render_prompts(rows, args, tokenizer)
    reasons = reasons_to_drop(prompts, tasks, capacity, tokenizer, grader)
    kept = [number for number, reason in enumerate(reasons) if reason is None]
    counts = {reason: reasons.count(reason) for reason in sorted({reason for reason in reasons if reason})}
    summary = ", ".join(f"{count} with {reason}" for reason, count in counts.items())
    what = "data" if flags is TRAINING else "evaluation data"
    print(f"[swap] {what}: {len(kept)} of {len(rows)} rows usable" + (f"; dropped {summary}" if counts else ""))
    if not kept:
        raise DataError(f"--{flags.dataset} is {name}, of which no row can be used: {summary}")
    source, used = str(name), [rows[number] for number in kept]
    if grader != MATH:
        used = [labelled(rows[number], tasks[number], args.data.input_key, key) for number in kept]
    if readable != name or used != original:
        path = _readable_path(output, flags.usable)
        write_rows(path, used)
        source = str(path)
    given, chosen = [original[number] for number in kept], [tasks[number] for number in kept]
    return _Usable(given, chosen, [prompts[number] or "" for number in kept], source)


def readable_files(names: str, flag: str, output: Path) -> str:
    """The data sets, with the readable rows of a file in place of one that has others, which are counted and printed.

    The loader of `datasets` reads the whole of a file or nothing. Of a CSV file it guesses the types, and would turn
    007 into 7, 0.50 into 0.5 and NA into nothing, so the rows of one are always copied, as the texts that they are.

    Raises:
        ConfigError: for an output folder in which OpenRLHF would find no copy.
        DataError: for a file of which no row can be read.
    """
    sources = []
    for number, name in enumerate(word.strip() for word in names.split(",")):
        rows, others = readable_rows(name, flag) if has_rows(Path(name)) else ([], None)
        if others is not None:
            if not rows:
                raise DataError(f"{flag} is {others}")
            print(f"[swap] {others}; left out")
        is_csv = Path(name).suffix.lower() == ".csv"
        if rows and (others is not None or is_csv):
            stem = re.sub(r"[^\w.-]", "_", Path(name).stem)
            copy = _readable_path(output, f"readable/{number}_{stem}.{'parquet' if is_csv else 'jsonl'}")
            _write_texts(copy, rows) if is_csv else write_rows(copy, rows)
            name = str(copy)
        sources.append(name)
    return ",".join(sources)


def _write_texts(path: Path, rows: Sequence[Row]) -> None:
    """Rows of texts in a file that keeps them texts: the loader of JSON takes a column of dates for times."""
    from datasets import Dataset

    with replacing(path, "wb") as file:
        Dataset.from_list(list(rows)).to_parquet(file)


def _readable_path(output: Path, name: str) -> Path:
    """A file in the output folder that OpenRLHF is to read; its folder is made.

    Raises:
        ConfigError: when OpenRLHF would take the path for several names, or for a pattern.
    """
    if character := special_in(output):
        raise ConfigError(
            f"--swap.output_dir is {output}, but OpenRLHF is to read {name} there and takes a {character!r} in the "
            "name of a data set for something else: use a folder without one in its path"
        )
    path = output / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _is_problem(value: object, is_chat: bool) -> bool:
    """Whether a problem is text or, for a chat template, messages."""
    if isinstance(value, list) and is_chat:
        return bool(value) and all(isinstance(message, dict) and message.get("content") for message in value)
    return isinstance(value, str) and bool(value)


def _rewritten(row: Row, args: SimpleNamespace, objective: Objective) -> Row:
    """The row with the objective's problem text; drawn by the text and the run's seed, so the same in every run."""
    key = args.data.input_key
    problem: Any = row[key]
    rng = random.Random(f"{args.train.seed}:{problem}")
    if (
        _is_problem(problem, True) and isinstance(problem, list) and isinstance(problem[-1]["content"], str)
    ):  # messages of a chat
        *before, last = problem
        return {**row, key: [*before, {**last, "content": objective.rewrite_problem(last["content"], rng)}]}
    if not isinstance(problem, str) or not problem:
        return row
    return {**row, key: objective.rewrite_problem(problem, rng)}

"""The prompt data set as OpenRLHF reads and renders it, and the rows that a run trains on."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

from tqdm import tqdm

from openrlhf_swap.data.references import answer_is_text, find_faults, labelled, read_references, try_grader
from openrlhf_swap.data.rows import (
    as_table,
    causes_of_loaders,
    check_columns,
    described,
    has_rows,
    read_entries,
    readable_rows,
)
from openrlhf_swap.errors import ConfigError, DataError, reader_errors
from openrlhf_swap.files import Row, write_rows
from openrlhf_swap.flags.paths import special_in
from openrlhf_swap.flags.rules import columns_of, prompt_capacity
from openrlhf_swap.integration.startup.model_check import check_chat_template
from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.rewards.golds import examples
from openrlhf_swap.rewards.verifiers import MATH, Reference

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase

CHANGED_PROMPT = (
    "a prompt that the tokenizer changes (such as accents in decomposed form: convert it to Unicode NFC), so that its "
    "responses could not be graded"
)


@dataclass(frozen=True)
class DataFlags:
    """The flags that name a data set, and the file that its usable rows are written to."""

    dataset: str
    split: str
    probabilities: str | None
    usable: str


TRAINING = DataFlags("data.prompt_dataset", "data.prompt_split", "data.prompt_probs", "prompts.jsonl")
EVALUATION = DataFlags("eval.dataset", "eval.split", None, "eval_prompts.jsonl")


def load_prompts(args: SimpleNamespace, flags: DataFlags = TRAINING) -> tuple[Dataset, bool]:
    """A data set of prompts, mixed as OpenRLHF mixes it, and whether OpenRLHF itself would read the same.

    The loader of `datasets` reads all of a file or nothing; here the rows that cannot be read are counted, printed and
    left out. Of a CSV file it guesses the types, and would turn 007 into 7, 0.50 into 0.5 and NA into nothing; here
    its fields are the texts that they are.

    Raises:
        DataError: when it cannot be read, is empty, or lacks a column.
    """
    from datasets import concatenate_datasets, interleave_datasets
    from openrlhf.datasets.utils import blending_datasets

    printer = SimpleNamespace(print=lambda *_: None, is_rank_0=lambda: False, args=args)
    flag, names, split = f"--{flags.dataset}", attrgetter(flags.dataset)(args), attrgetter(flags.split)(args)
    probabilities = flags.probabilities and attrgetter(flags.probabilities)(args)
    parts, is_as_given = [], True
    for name in map(str.strip, names.split(",")):
        found = read_entries(Path(name), flag) if has_rows(Path(name)) else []
        rows = readable_rows(found)
        if wrong := len(found) - len(rows):
            print(f"[swap] {name}: {wrong} of {len(found)} rows cannot be read: {described(found)}; left out")
        with reader_errors(f"{flag} is {names}, which cannot be read: {{reason}}"), causes_of_loaders():
            if wrong or name.lower().endswith(".csv"):
                part, is_as_given = as_table(rows), False
            else:
                part = blending_datasets(name, None, printer, dataset_split=split)
        parts.append(part.select(range(min(args.data.max_samples, len(part)))) if flags is TRAINING else part)
    with reader_errors(f"{flag} is {names}, which cannot be read: {{reason}}"):
        if probabilities:
            shares = [float(share) for share in probabilities.split(",")]
            table = interleave_datasets(parts, shares, args.train.seed, stopping_strategy="all_exhausted")
        else:
            table = concatenate_datasets(parts)
    if len(table) == 0:
        raise DataError(f"{flag} is {names}, which has no rows; give a data set with at least one")
    check_columns(table.column_names, columns_of(args), names)
    return table.select(range(min(args.data.max_samples, len(table)))), is_as_given


def render_prompts(rows: Iterable[Row], args: SimpleNamespace, tokenizer: PreTrainedTokenizerBase) -> list[str | None]:
    """Each prompt as OpenRLHF will render it; None for an empty one, and for what is neither text nor a chat.

    Raises:
        DataError: for a chat that the chat template refuses.
    """
    from openrlhf.datasets.prompts_dataset import preprocess_data

    key, is_chat = args.data.input_key, args.data.apply_chat_template
    template = tokenizer.apply_chat_template if is_chat else None

    def render(number: int, row: Row) -> str | None:
        problem = row[key]
        if isinstance(problem, list) and is_chat:
            is_problem = problem and all(isinstance(message, dict) and message.get("content") for message in problem)
        else:
            is_problem = problem and isinstance(problem, str)
        if not is_problem:
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
        ConfigError: for lengths that leave no room for a prompt, a model without a chat template, an output folder in
            which OpenRLHF would find no file, or a grader that fails on the first rows.
        DataError: for an unreadable or empty data set, a missing column, or too few rows that are left.
    """

    def rewrite(row: Row) -> Row:
        """With the objective's problem text, drawn by the text and the run's seed, so the same in every run."""
        key, problem = args.data.input_key, row[args.data.input_key]
        rng = random.Random(f"{args.train.seed}:{problem}")
        match problem:
            case str(text) if text:
                return {**row, key: objective.rewrite_problem(text, rng)}
            case [*before, {"content": str(text)} as last]:
                return {**row, key: [*before, {**last, "content": objective.rewrite_problem(text, rng)}]}
        return row

    usable, source = _usable_rows(args, TRAINING, rewrite, tokenizer, output, grader)
    if len(usable) < args.rollout.batch_size:
        raise DataError(
            f"--data.prompt_dataset is {args.data.prompt_dataset}, whose {len(usable)} usable rows do not fill "
            f"one batch of --rollout.batch_size {args.rollout.batch_size}; give more rows, or a smaller batch"
        )
    if answer_is_text(grader):
        for line in examples((row.given[args.data.label_key], row.reference.answer) for row in usable):
            print(f"[swap] reference answer, as it is graded and scored: {line}")
    objective.check_prompts([row.prompt for row in usable])
    try_grader(grader, [row.reference for row in usable])
    return source


def write_usable_evaluation(
    args: SimpleNamespace, tokenizer: PreTrainedTokenizerBase, output: Path, grader: str = MATH
) -> str | None:
    """The same for the data set of `--eval.dataset`: rows that nothing can answer would count as wrong.

    Returns:
        The data set to evaluate on: the given one, or `eval_prompts.jsonl` in `output`.

    Raises:
        ConfigError, DataError: as `write_usable_prompts`, for no row that is left instead of too few.
    """
    return _usable_rows(args, EVALUATION, dict, tokenizer, output, grader)[1] if args.eval.dataset else None


@dataclass(frozen=True)
class _Usable:
    """A row that is trained or evaluated on: as it was given, its reference answer, and its rendered prompt."""

    given: Row
    reference: Reference
    prompt: str


def _usable_rows(
    args: SimpleNamespace,
    flags: DataFlags,
    rewrite: Callable[[Row], Row],
    tokenizer: PreTrainedTokenizerBase,
    output: Path,
    grader: str,
) -> tuple[list[_Usable], str]:
    """The usable rows of a data set, and where OpenRLHF finds them."""
    check_chat_template(args, tokenizer)
    name, key = attrgetter(flags.dataset)(args), args.data.label_key
    capacity = prompt_capacity(args.data.max_len, args.rollout.max_new_tokens)
    table, is_as_given = load_prompts(args, flags)
    given = list(table)
    references = read_references(given, args.data.input_key, key, grader, f"--{flags.dataset} is {name}")
    rows = [{**rewrite(row), key: reference.answer} for row, reference in zip(given, references, strict=True)]
    prompts = render_prompts(rows, args, tokenizer)
    reasons = reasons_to_drop(prompts, references, capacity, tokenizer, grader)
    counts = Counter(reason for reason in reasons if reason)
    summary = ", ".join(f"{count} with {reason}" for reason, count in sorted(counts.items()))
    kind = "data" if flags is TRAINING else "evaluation data"
    left = len(rows) - counts.total()
    print(f"[swap] {kind}: {left} of {len(rows)} rows usable" + (f"; dropped {summary}" if counts else ""))
    if not left:
        raise DataError(f"--{flags.dataset} is {name}, of which no row can be used: {summary}")
    usable, written = [], []
    for before, row, reference, prompt, reason in zip(given, rows, references, prompts, reasons, strict=True):
        if prompt is not None and reason is None:
            usable.append(_Usable(before, reference, prompt))
            written.append(row if grader == MATH else labelled(row, reference, args.data.input_key, key))
    if written == given and is_as_given:
        return usable, str(name)
    if character := special_in(output):
        raise ConfigError(
            f"--swap.output_dir is {output}, but OpenRLHF is to read {flags.usable} there and takes a {character!r} "
            "in the name of a data set for something else: use a folder without one in its path"
        )
    output.mkdir(parents=True, exist_ok=True)
    write_rows(output / flags.usable, written)
    return usable, str(output / flags.usable)


def reasons_to_drop(
    prompts: Sequence[str | None],
    references: Sequence[Reference],
    capacity: int,
    tokenizer: PreTrainedTokenizerBase,
    grader: str = MATH,
) -> list[str | None]:
    """Why each row cannot be trained on, worded to follow "dropped with"; None for a row that can.

    `prompts` are rendered, and have at most `capacity` tokens of the policy's tokenizer.
    """

    def fault_of_prompt(prompt: str | None) -> str | None:
        if prompt is None:
            return "an empty prompt, or one that is neither text nor a chat"
        ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
        if len(ids) > capacity:
            return f"a prompt of more than {capacity} tokens (--data.max_len minus --rollout.max_new_tokens)"
        # The reward function takes what follows the prompt in the decoded text as the response.
        return None if prompt in tokenizer.decode(ids, skip_special_tokens=False) else CHANGED_PROMPT

    faults = [fault_of_prompt(prompt) for prompt in tqdm(prompts, "[swap] checking prompts", unit="row", leave=False)]
    left = [number for number, fault in enumerate(faults) if fault is None]
    for number, fault in zip(left, find_faults([references[number] for number in left], grader, "swap"), strict=True):
        faults[number] = fault
    return faults

"""The prompt data set as OpenRLHF reads and renders it, and the rows that a run trains on."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from openrlhf_swap.data.references import find_faults, labelled, read_references, try_grader
from openrlhf_swap.data.rows import (
    as_table,
    check_columns,
    describe_faults,
    has_rows,
    loader_errors,
    read_entries,
    readable_rows,
)
from openrlhf_swap.errors import ConfigError, DataError, reader_errors
from openrlhf_swap.files import Row, write_rows
from openrlhf_swap.flags.paths import find_special
from openrlhf_swap.flags.rules import columns_of, prompt_capacity
from openrlhf_swap.integration.startup.model_check import check_chat_template
from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.rewards.golds import examples
from openrlhf_swap.rewards.verifiers import MATH, Reference, find_verifier

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase

CHANGED_PROMPT = (
    "a prompt that the tokenizer changes (such as accents in decomposed form: convert it to Unicode NFC), so that its "
    "responses could not be graded"
)


def load_prompts(args: SimpleNamespace, for_training: bool = True) -> tuple[Dataset, bool]:
    """The prompts to train or evaluate on, mixed as OpenRLHF mixes them, and whether it would read the same itself.

    `--data.max_samples` cuts those to train on, in OpenRLHF the others, too: it is told of none where there are both.
    The loader of `datasets` reads all of a file or nothing; here the rows that cannot be read are counted, printed and
    left out. Of a CSV file it guesses the types, and would turn 007 into 7, 0.50 into 0.5 and NA into nothing; here
    its fields are the texts that they are.

    Raises:
        DataError: when it cannot be read, is empty, or lacks a column.
    """
    from datasets import concatenate_datasets, interleave_datasets
    from openrlhf.datasets.utils import blending_datasets

    if for_training:
        flag, names, split = "--data.prompt_dataset", args.data.prompt_dataset, args.data.prompt_split
    else:
        flag, names, split = "--eval.dataset", args.eval.dataset, args.eval.split
    sources = [name.strip() for name in names.split(",")]
    read_here = {}
    for name in sources:
        if has_rows(Path(name)):
            entries = read_entries(Path(name), flag)
            rows = readable_rows(entries)
            if len(rows) < len(entries):
                counts = f"{len(entries) - len(rows)} of {len(entries)} rows cannot be read"
                print(f"[swap] {name}: {counts}: {describe_faults(entries)}; left out")
            if len(rows) < len(entries) or name.lower().endswith(".csv"):
                read_here[name] = rows
    printer = SimpleNamespace(print=lambda *_: None, is_rank_0=lambda: False, args=args)

    def load(name: str) -> Dataset:
        if name in read_here:
            return as_table(read_here[name])
        return blending_datasets(name, None, printer, dataset_split=split)

    most, lengths = args.data.max_samples if for_training else sys.maxsize, list[int]()

    def cut(table: Dataset) -> Dataset:
        lengths.append(len(table))
        return table.select(range(min(most, len(table))))

    with loader_errors(f"{flag} is {names}, which cannot be read: {{reason}}"):
        parts = [cut(load(name)) for name in sources]
        if for_training and args.data.prompt_probs:
            shares = [float(share) for share in args.data.prompt_probs.split(",")]
            table = interleave_datasets(parts, shares, args.train.seed, stopping_strategy="all_exhausted")
        else:
            table = concatenate_datasets(parts)
    if len(table) == 0:
        raise DataError(f"{flag} is {names}, which has no rows; give a data set with at least one")
    check_columns(table.column_names, columns_of(args), names)
    table = cut(table)
    return table, not read_here and (args.eval.dataset is None or max(lengths) <= most)


def render_prompts(rows: Iterable[Row], args: SimpleNamespace, tokenizer: PreTrainedTokenizerBase) -> list[str | None]:
    """Each prompt as OpenRLHF will render it; None for an empty one, and for what is neither text nor a chat.

    Raises:
        DataError: for a chat that the chat template refuses.
    """
    from openrlhf.datasets.prompts_dataset import preprocess_data

    key, is_chat = args.data.input_key, args.data.apply_chat_template
    template = tokenizer.apply_chat_template if is_chat else None

    def render(number: int, row: Row) -> str | None:
        if not _is_problem(row[key], is_chat):
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
    evaluates: bool = False,
) -> str:
    """Drop the rows of the prompt data set that cannot be trained on, count them, and print the counts.

    A row is dropped when it cannot be read, when its prompt is empty, does not fit the context or is changed by the
    tokenizer, or when its answer is empty, a solution or a sentence, or cannot be graded. The remaining rows get the
    normal form of their answers, the objective's own problem texts and, for another grader than math-verify, labels
    with the columns that it may look at. Where this changes anything they are written to `prompts.jsonl` in `output`.

    If it `evaluates`, it does the same for the data set of `--eval.dataset`, and `eval_prompts.jsonl`: rows that
    nothing can answer would count as wrong. Problem texts change there for some objectives only.

    Returns:
        The data set to train or evaluate on: the given one, or that file.

    Raises:
        ConfigError: for lengths that leave no room for a prompt, a model without a chat template, an output folder in
            which OpenRLHF would find no file, or a grader that fails on the first rows.
        DataError: for an unreadable or empty data set, a missing column, or too few rows that are left.
    """
    check_chat_template(args, tokenizer)
    if not evaluates:
        flag, name, file, kind = "--data.prompt_dataset", args.data.prompt_dataset, "prompts.jsonl", "data"
    else:
        flag, name, file, kind = "--eval.dataset", args.eval.dataset, "eval_prompts.jsonl", "evaluation data"
    problem_key, answer_key = args.data.input_key, args.data.label_key
    capacity = prompt_capacity(args)
    table, is_as_given = load_prompts(args, for_training=not evaluates)
    given: list[Row] = list(table)
    references = read_references(given, problem_key, answer_key, grader, f"{flag} is {name}")
    rows = [{**row, answer_key: reference.answer} for row, reference in zip(given, references, strict=True)]
    if not evaluates or objective.rewrites_evaluation:
        for row in rows:
            row[problem_key] = _rewritten(row[problem_key], objective, args.train.seed)
    prompts = render_prompts(rows, args, tokenizer)
    reasons = reasons_to_drop(prompts, references, capacity, tokenizer, grader)
    kept = [number for number, reason in enumerate(reasons) if reason is None]
    counts = Counter(reason for reason in reasons if reason)
    summary = ", ".join(f"{count} with {reason}" for reason, count in sorted(counts.items()))
    print(f"[swap] {kind}: {len(kept)} of {len(rows)} rows usable" + (f"; dropped {summary}" if counts else ""))
    if not kept:
        raise DataError(f"{flag} is {name}, of which no row can be used: {summary}")
    if not evaluates:
        if len(kept) < args.rollout.batch_size:
            raise DataError(
                f"{flag} is {name}, whose {len(kept)} usable rows do not fill one batch of "
                f"--rollout.batch_size {args.rollout.batch_size}; give more rows, or a smaller batch"
            )
        if find_verifier(grader).answer_is_text:
            for line in examples((given[number][answer_key], references[number].answer) for number in kept):
                print(f"[swap] reference answer, as it is graded and scored: {line}")
        objective.check_prompts([prompts[number] or "" for number in kept])
        try_grader(grader, [references[number] for number in kept])
    if grader == MATH:
        usable = [rows[number] for number in kept]
    else:
        usable = [labelled(rows[number], references[number], problem_key, answer_key) for number in kept]
    if usable == given and is_as_given:
        return str(name)
    if character := find_special(output):
        raise ConfigError(
            f"--swap.output_dir is {output}, but OpenRLHF is to read {file} there and takes a {character!r} "
            "in the name of a data set for something else: use a folder without one in its path"
        )
    output.mkdir(parents=True, exist_ok=True)
    write_rows(output / file, usable)
    return str(output / file)


def _is_problem(value: object, takes_chats: bool) -> bool:
    if takes_chats and isinstance(value, list):
        return bool(value) and all(isinstance(message, dict) and message.get("content") for message in value)
    return isinstance(value, str) and bool(value)


def _rewritten(problem: Any, objective: Objective, seed: int) -> Any:
    """The objective's text of a problem, drawn by its text and the run's seed, so the same in every run."""
    rng = random.Random(f"{seed}:{problem}")
    match problem:
        case str(text) if text:
            return objective.rewrite_problem(text, rng)
        case [*before, {"content": str(text)} as last]:
            return [*before, {**last, "content": objective.rewrite_problem(text, rng)}]
    return problem


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

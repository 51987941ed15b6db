"""The prompts of a run: loaded, cleaned, checked, reported, and written for OpenRLHF."""

import random
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from openrlhf_swap.data.chats import read_chat
from openrlhf_swap.data.files import (
    check_columns,
    columns_in,
    describe_faults,
    has_rows,
    read_entries,
    readable_rows,
)
from openrlhf_swap.data.references import example_answers, find_faults, read_references, try_grader
from openrlhf_swap.data.tables import loader_errors
from openrlhf_swap.errors import ConfigError, DataError, reader_errors
from openrlhf_swap.files import Row, write_rows
from openrlhf_swap.flags.configuration import NO_ANSWERS, Configuration, find_special
from openrlhf_swap.flags.rules import columns_of, prompt_capacity
from openrlhf_swap.flags.stock import FlagValues
from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.process.console import say
from openrlhf_swap.rewards.answers import visible_fault
from openrlhf_swap.rewards.references import Reference
from openrlhf_swap.rewards.verifiers import MATH, find_verifier

TRAINED_ON = "--data.prompt_dataset"
AT_A_TIME = 1000
CHANGED_PROMPT = (
    "a prompt that the tokenizer changes (such as accents in decomposed form: convert it to "
    "Unicode NFC), so that its responses could not be graded"
)


@dataclass(frozen=True)
class Source:
    """The data sets that a run trains or evaluates on, and where their usable rows go."""

    flag: str
    names: str  # with commas between them
    split: str
    title: str
    file: str
    trains: bool
    most: int = sys.maxsize  # rows that are taken

    @property
    def called(self) -> str:
        """The data sets with their flag, as the beginning of an error."""
        return f"{self.flag} is {self.names}"


def source_of(args: SimpleNamespace, for_training: bool) -> Source:
    """The data sets of the training, or of its evaluations."""
    if for_training:
        return Source(
            flag=TRAINED_ON,
            names=args.data.prompt_dataset,
            split=args.data.prompt_split,
            title="data",
            file="prompts.jsonl",
            trains=True,
            most=args.data.max_samples,
        )
    return Source(
        flag="--eval.dataset",
        names=args.eval.dataset,
        split=args.eval.split,
        title="evaluation data",
        file="eval_prompts.jsonl",
        trains=False,
    )


@dataclass(frozen=True)
class PromptRow:
    """A row with its normal answer and the objective's problem text, and what it was made of.

    `text` is the prompt as OpenRLHF renders it, empty for a faulty problem.
    """

    row: Row
    reference: Reference
    given_answer: Any
    text: str


@dataclass(frozen=True)
class UsableData:
    """The files of the rows that a run trains and evaluates on.

    Attributes:
        flags: the flags of OpenRLHF that name the files, and say how they are read.
        trained_on: the rows to train on, by the name of their data set and the hash of the usable
            ones: a checkpoint holds a position among these, whatever their file is called.
    """

    flags: FlagValues
    trained_on: Row


def write_data(
    run: Configuration,
    objective: Objective,
    tokenizer: PreTrainedTokenizerBase,
) -> UsableData:
    """Write the usable rows to train and to evaluate on.

    Raises ConfigError for what the flags name, and DataError for a data set.
    """
    args = run.args
    flags: FlagValues = {}
    if args.eval.dataset:
        evaluated = write_usable_prompts(run, objective, tokenizer, evaluates=True)
        flags |= {"eval.dataset": evaluated, "eval.split": "train"}
    prompts = write_usable_prompts(run, objective, tokenizer)
    flags |= {"data.prompt_dataset": prompts, "data.prompt_split": "train"}
    flags["data.max_samples"] = sys.maxsize  # it has been applied
    if args.data.chat_template_kwargs:  # the prompts are rendered
        flags |= {"data.apply_chat_template": False, "data.chat_template_kwargs": None}
    digest = sha256(Path(prompts).read_bytes()).hexdigest()
    return UsableData(flags, {"name": args.data.prompt_dataset, "sha256": digest})


def write_usable_prompts(
    configuration: Configuration,
    objective: Objective,
    tokenizer: PreTrainedTokenizerBase,
    evaluates: bool = False,
) -> str:
    """Write the rows that can be trained or evaluated on to a file; returns the file.

    Raises ConfigError for what the flags name, and DataError for the data set.
    """
    args = configuration.args
    source = source_of(args, for_training=not evaluates)
    _check_template(args, tokenizer)
    prompts = _load_cleaned(source, configuration, objective, tokenizer)
    reasons = reasons_to_drop(prompts, configuration, tokenizer)
    usable = [prompt for prompt, reason in zip(prompts, reasons, strict=True) if reason is None]
    _report_usable(reasons, source)
    if source.trains:
        _check_batch(len(usable), args, source)
        _report_answers(usable, configuration.run.grader, objective)
        objective.check_prompts(prompt.text for prompt in usable)
        references = [prompt.reference for prompt in usable]
        try_grader(configuration.run.grader, references)
    return _write(usable, source.file, configuration)


def _load_cleaned(
    source: Source,
    configuration: Configuration,
    objective: Objective,
    tokenizer: PreTrainedTokenizerBase,
) -> list[PromptRow]:
    """The rows of a source as prompts; an objective may leave the texts of an evaluation alone."""
    args = configuration.args
    problem_key = args.data.input_key
    answer_key = args.data.label_key
    rows = load_prompts(args, source.trains)
    grader = configuration.run.grader
    references = list(read_references(rows, problem_key, answer_key, grader, source.called))
    cleaned = []
    for row, reference in zip(rows, references, strict=True):
        problem = row[problem_key]
        if isinstance(problem, list):
            problem = read_chat(problem).messages or problem
        if source.trains or objective.rewrites_evaluation:
            problem = _rewritten(problem, objective, args.train.seed)
        cleaned.append({**row, problem_key: problem, answer_key: reference.answer})
    given = [row[answer_key] for row in rows]
    texts = render_prompts(cleaned, args, tokenizer)
    return list(map(PromptRow, cleaned, references, given, texts))


def load_prompts(args: SimpleNamespace, for_training: bool = True) -> list[Row]:
    """The rows to train on or to evaluate on, in the order of the data sets.

    Of those to train on the first `--data.max_samples` are taken. Raises DataError when a data set
    cannot be read, is empty, or lacks a column.
    """
    source = source_of(args, for_training)
    rows: list[Row] = []
    for name in source.names.split(","):
        rows += _read_source(name.strip(), source, args)
    if not rows:
        raise DataError(f"{source.called}, which has no rows; give a data set with at least one")
    check_columns(columns_in(rows), columns_of(args), source.names)
    if args.data.label_key == NO_ANSWERS:
        rows = [{**row, NO_ANSWERS: ""} for row in rows]
    return rows[: source.most]


def _read_source(name: str, source: Source, args: SimpleNamespace) -> list[Row]:
    from openrlhf.datasets.utils import blending_datasets

    if not has_rows(Path(name)):
        printer = SimpleNamespace(print=lambda *_: None, is_rank_0=lambda: False, args=args)
        message = f"{source.flag} is {name}, which cannot be read: {{reason}}"
        with loader_errors(message):
            return list(blending_datasets(name, None, printer, dataset_split=source.split))
    # Of a JSON or CSV file, `datasets` would read all or nothing, and guess types.
    entries = read_entries(Path(name), source.flag)
    rows = readable_rows(entries)
    bad = len(entries) - len(rows)
    if bad:
        faults = describe_faults(entries)
        say(f"{name}: {bad} of {len(entries)} rows cannot be read: {faults}; left out")
    columns = columns_in(rows)
    return [{**columns, **row} for row in rows]


def _check_template(args: SimpleNamespace, tokenizer: PreTrainedTokenizerBase) -> None:
    if args.data.apply_chat_template and tokenizer.chat_template is None:
        raise ConfigError(
            f"--data.apply_chat_template is on, but {args.actor.model_name_or_path} has no chat "
            "template; leave the flag out (where a recipe or a file sets it: "
            "--no-data.apply_chat_template) and give --data.input_template, or give a model with a "
            "template"
        )


def _rewritten(problem: Any, objective: Objective, seed: int) -> Any:
    """The objective's text of a problem, drawn by its text and the seed: the same in every run."""
    rng = random.Random(f"{seed}:{problem}")
    match problem:
        case str(text) if text:
            return objective.rewrite_problem(text, rng)
        case [*before, {"content": str(text)} as last]:
            return [*before, {**last, "content": objective.rewrite_problem(text, rng)}]
    return problem


def render_prompts(
    rows: Iterable[Row],
    args: SimpleNamespace,
    tokenizer: PreTrainedTokenizerBase,
) -> Iterator[str]:
    """Each prompt as OpenRLHF renders it, empty for a faulty problem.

    Raises DataError for a chat that the template refuses.
    """
    from openrlhf.datasets.prompts_dataset import preprocess_data

    key = args.data.input_key
    template = tokenizer.apply_chat_template if args.data.apply_chat_template else None
    for number, row in enumerate(rows, 1):
        if fault_of_problem(row[key], args):
            yield ""
            continue
        refusal = f"the model's chat template refuses row {number} ({{reason}})"
        remedy = "correct the roles of its messages"
        with reader_errors(f"--data.input_key is {key}, but {refusal}; {remedy}"):
            prompt = str(preprocess_data(row, args.data.input_template, key, None, template)[0])
        yield prompt


def fault_of_problem(problem: object, args: SimpleNamespace) -> str | None:
    """What is wrong with a problem, worded to follow "dropped with"; None if nothing is."""
    if isinstance(problem, list) and not args.data.apply_chat_template:
        return "a chat as its prompt, which needs --data.apply_chat_template"
    return read_chat(problem).fault


def reasons_to_drop(
    prompts: list[PromptRow],
    configuration: Configuration,
    tokenizer: PreTrainedTokenizerBase,
) -> list[str | None]:
    """Why each row cannot be used, worded to follow "dropped with"; None for a row that can."""
    args = configuration.args
    reasons: list[str | None] = []
    starts = range(0, len(prompts), AT_A_TIME)
    for start in tqdm(starts, "[swap] checking prompts", unit=f"{AT_A_TIME} rows", leave=False):
        part = prompts[start : start + AT_A_TIME]
        faults = _faults([prompt.text for prompt in part], args, tokenizer)
        for prompt, fault in zip(part, faults, strict=True):
            reasons.append(fault_of_problem(prompt.row[args.data.input_key], args) or fault)
    left = [number for number, fault in enumerate(reasons) if fault is None]
    answers = [prompts[number].reference for number in left]
    found = find_faults(answers, configuration.run.grader, "swap")
    for number, fault in zip(left, found, strict=True):
        reasons[number] = fault
    return reasons


def _faults(
    texts: list[str],
    args: SimpleNamespace,
    tokenizer: PreTrainedTokenizerBase,
) -> Iterator[str | None]:
    """What is wrong with each rendered prompt, once it is tokenized."""
    capacity = prompt_capacity(args)
    limit = "--data.max_len minus --rollout.max_new_tokens"
    ids = tokenizer(texts, add_special_tokens=False)["input_ids"]
    for text, own in zip(texts, ids, strict=True):
        # The reward function takes what follows the prompt in the decoded text as the response.
        if len(own) > capacity:
            yield f"a prompt of more than {capacity} tokens ({limit})"
        elif text not in tokenizer.decode(own, skip_special_tokens=False):
            yield CHANGED_PROMPT
        else:
            yield None


def _report_usable(reasons: list[str | None], source: Source) -> None:
    """Print how many rows are usable, and why others are not; raises DataError if none is."""
    counts = Counter(reason for reason in reasons if reason)
    usable = len(reasons) - counts.total()
    summary = ", ".join(f"{count} with {reason}" for reason, count in sorted(counts.items()))
    dropped = f"; dropped {summary}" if counts else ""
    say(f"{source.title}: {usable} of {len(reasons)} rows usable{dropped}")
    if not usable:
        raise DataError(f"{source.called}, of which no row can be used: {summary}")


def _check_batch(usable: int, args: SimpleNamespace, source: Source) -> None:
    if usable < args.rollout.batch_size:
        raise DataError(
            f"{source.called}, whose {usable} usable rows do not fill one batch of "
            f"--rollout.batch_size {args.rollout.batch_size}; give more rows, or a smaller batch"
        )


def _report_answers(prompts: list[PromptRow], grader: str, objective: Objective) -> None:
    """Print some answers as they are graded, and what is odd about those of another grader."""
    if not find_verifier(grader).answer_is_text:
        return
    answers = [prompt.reference.answer for prompt in prompts]
    given = [prompt.given_answer for prompt in prompts]
    for line in example_answers(zip(given, answers, strict=True)):
        say(f"reference answer, as it is graded and scored: {line}")
    if grader == MATH or not objective.scores_steps:  # math has dropped odd answers
        return
    odd = Counter(filter(None, map(visible_fault, answers)))
    if odd:
        listing = ", ".join(f"{count} with {fault}" for fault, count in odd.items())
        say(f"warning: rows kept for {grader}: {listing}; steps are scored by these texts")


def _write(prompts: list[PromptRow], file: str, configuration: Configuration) -> str:
    """Write the file that OpenRLHF reads; returns its path.

    With arguments for the chat template it has rendered prompts, as OpenRLHF hands a template no
    arguments. For another grader than math-verify the labels hold the columns that it may look at.
    No other column but `datasource` is written, because a loader would guess its type.
    """
    args = configuration.args
    folder = Path(configuration.run.output_dir)
    special = find_special(folder)
    if special:
        raise ConfigError(
            f"--swap.output_dir is {folder}, but OpenRLHF is to read {file} there and takes a "
            f"{special!r} in the name of a data set for something else: use a folder without one "
            "in its path"
        )
    columns = (args.data.input_key, args.data.label_key, "datasource")
    written = []
    for prompt in prompts:
        row = {name: prompt.row[name] for name in columns if name in prompt.row}
        if configuration.run.grader != MATH:
            row[args.data.label_key] = prompt.reference.label()
        if args.data.chat_template_kwargs:
            row[args.data.input_key] = prompt.text
        written.append(row)
    folder.mkdir(parents=True, exist_ok=True)
    write_rows(folder / file, written)
    return str(folder / file)

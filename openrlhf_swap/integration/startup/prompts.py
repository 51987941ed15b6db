"""The prompts of a run: read, rendered, checked, and written as the file that OpenRLHF reads."""

import random
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from openrlhf_swap.config import RunConfig
from openrlhf_swap.data import rows as data_sets
from openrlhf_swap.errors import ConfigError, DataError, reader_errors
from openrlhf_swap.files import Row, read_rows, to_line, write_rows
from openrlhf_swap.flags.configuration import Configuration, find_special
from openrlhf_swap.flags.rules import columns_of, prompt_capacity
from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.rewards.answers import visible_fault
from openrlhf_swap.rewards.verifiers import MATH, Reference, find_verifier

AT_A_TIME = 1000
CHANGED_PROMPT = (
    "a prompt that the tokenizer changes (such as accents in decomposed form: convert it to Unicode NFC), so that its "
    "responses could not be graded"
)


def load_prompts(args: SimpleNamespace, for_training: bool = True) -> list[Row]:
    """The rows to train on, of which `--data.max_samples` are taken, or to evaluate on, mixed as
    OpenRLHF mixes them.

    Raises DataError when a data set cannot be read, is empty, or lacks a column.
    """
    if for_training:
        flag, names, split = (
            "--data.prompt_dataset",
            args.data.prompt_dataset,
            args.data.prompt_split,
        )
    else:
        flag, names, split = "--eval.dataset", args.eval.dataset, args.eval.split
    most = args.data.max_samples if for_training else sys.maxsize
    parts = [_read_source(name.strip(), flag, split, args)[:most] for name in names.split(",")]
    if for_training and args.data.prompt_probs:
        rows = _interleave(
            parts, [float(share) for share in args.data.prompt_probs.split(",")], args.train.seed
        )
    else:
        rows = [row for part in parts for row in part]
    if not rows:
        raise DataError(f"{flag} is {names}, which has no rows; give a data set with at least one")
    data_sets.check_columns(
        dict.fromkeys(column for row in rows for column in row), columns_of(args), names
    )
    return rows[:most]


def _read_source(name: str, flag: str, split: str, args: SimpleNamespace) -> list[Row]:
    from openrlhf.datasets.utils import blending_datasets

    # Of a JSON or CSV file, `datasets` would read all or nothing, and guess types.
    if not data_sets.has_rows(Path(name)):
        printer = SimpleNamespace(print=lambda *_: None, is_rank_0=lambda: False, args=args)
        with data_sets.loader_errors(f"{flag} is {name}, which cannot be read: {{reason}}"):
            return list(blending_datasets(name, None, printer, dataset_split=split))
    entries = data_sets.read_entries(Path(name), flag)
    rows = data_sets.readable_rows(entries)
    if len(rows) < len(entries):
        counts = f"{len(entries) - len(rows)} of {len(entries)} rows cannot be read"
        print(f"[swap] {name}: {counts}: {data_sets.describe_faults(entries)}; left out")
    columns = dict.fromkeys(column for row in rows for column in row)
    return [{**dict.fromkeys(columns), **row} for row in rows]


def _interleave(parts: Sequence[list[Row]], shares: list[float], seed: int) -> list[Row]:
    from datasets import Dataset, interleave_datasets

    places = [
        Dataset.from_dict({"row": range(len(part)), "part": [i] * len(part)})
        for i, part in enumerate(parts)
    ]
    mixed = interleave_datasets(places, shares, seed, stopping_strategy="all_exhausted")
    return [parts[place["part"]][place["row"]] for place in mixed]


def render_prompts(
    rows: Iterable[Row], args: SimpleNamespace, tokenizer: PreTrainedTokenizerBase
) -> Iterator[str]:
    """Each prompt as OpenRLHF renders it, empty for a faulty problem; raises DataError for a chat
    that fails.
    """
    from openrlhf.datasets.prompts_dataset import preprocess_data

    key, is_chat = args.data.input_key, args.data.apply_chat_template
    template = tokenizer.apply_chat_template if is_chat else None
    for number, row in enumerate(rows, 1):
        if fault_of_problem(row[key], is_chat):
            yield ""
            continue
        with reader_errors(
            f"--data.input_key is {key}, but the model's chat template refuses row {number} ({{reason}}); "
            "correct the roles of its messages"
        ):
            prompt = str(preprocess_data(row, args.data.input_template, key, None, template)[0])
        yield prompt


def fault_of_problem(problem: object, takes_chats: bool) -> str | None:
    """What is wrong with a problem, worded to follow "dropped with"; None if nothing is."""
    if isinstance(problem, list) and not takes_chats:
        return "a chat as its prompt, which needs --data.apply_chat_template"
    return data_sets.read_chat(problem)[1]


def write_usable_prompts(
    configuration: Configuration,
    objective: Objective,
    tokenizer: PreTrainedTokenizerBase,
    evaluates: bool = False,
) -> str:
    """Write the rows that can be trained or evaluated on to a file, and count the others; returns
    the file.

    The rows get the normal form of their answers, the objective's own problem texts (in an
    evaluation for some objectives only), with arguments for the chat template rendered prompts and,
    for another grader than math-verify, labels with the columns that it may look at; no other
    column but `datasource` is written, because a loader would guess its type. Raises ConfigError
    for what the flags name, and DataError for the data set.
    """
    args, grader, output = (
        configuration.args,
        configuration.run.grader,
        Path(configuration.run.output_dir),
    )
    if args.data.apply_chat_template and tokenizer.chat_template is None:
        raise ConfigError(
            f"--data.apply_chat_template is on, but {args.actor.model_name_or_path} has no chat template; leave the "
            "flag out (where a recipe or a file sets it: --no-data.apply_chat_template) and give "
            "--data.input_template, or give a model with a template"
        )
    if not evaluates:
        flag, name, file, kind = (
            "--data.prompt_dataset",
            args.data.prompt_dataset,
            "prompts.jsonl",
            "data",
        )
    else:
        flag, name, file, kind = (
            "--eval.dataset",
            args.eval.dataset,
            "eval_prompts.jsonl",
            "evaluation data",
        )
    problem_key, answer_key = args.data.input_key, args.data.label_key
    given = load_prompts(args, for_training=not evaluates)
    references = data_sets.read_references(
        given, problem_key, answer_key, grader, f"{flag} is {name}"
    )
    rows = [
        {**row, answer_key: reference.answer}
        for row, reference in zip(given, references, strict=True)
    ]
    for row in rows:
        if isinstance(row[problem_key], list) and (
            chat := data_sets.read_chat(row[problem_key])[0]
        ):
            row[problem_key] = chat
        if not evaluates or objective.rewrites_evaluation:
            row[problem_key] = _rewritten(row[problem_key], objective, args.train.seed)
    reasons = _remembered_reasons(rows, references, configuration, tokenizer)
    kept = [number for number, reason in enumerate(reasons) if reason is None]
    counts = Counter(reason for reason in reasons if reason)
    summary = ", ".join(f"{count} with {reason}" for reason, count in sorted(counts.items()))
    print(
        f"[swap] {kind}: {len(kept)} of {len(rows)} rows usable"
        + (f"; dropped {summary}" if counts else "")
    )
    if not kept:
        raise DataError(f"{flag} is {name}, of which no row can be used: {summary}")
    if not evaluates:
        if len(kept) < args.rollout.batch_size:
            raise DataError(
                f"{flag} is {name}, whose {len(kept)} usable rows do not fill one batch of "
                f"--rollout.batch_size {args.rollout.batch_size}; give more rows, or a smaller batch"
            )
        if find_verifier(grader).answer_is_text:
            for line in data_sets.examples(
                (given[number][answer_key], references[number].answer) for number in kept
            ):
                print(f"[swap] reference answer, as it is graded and scored: {line}")
            odd = Counter(
                fault for number in kept if (fault := visible_fault(references[number].answer))
            )
            if odd and objective.scores_steps and grader != MATH:  # math drops them
                listing = ", ".join(f"{count} with {fault}" for fault, count in odd.items())
                print(
                    f"[swap] warning: rows kept for {grader}: {listing}; steps are scored by these texts"
                )
        objective.check_prompts(render_prompts((rows[number] for number in kept), args, tokenizer))
        data_sets.try_grader(grader, [references[number] for number in kept])
    if grader == MATH:
        usable = [rows[number] for number in kept]
    else:
        usable = [
            data_sets.labelled(rows[number], references[number], problem_key, answer_key)
            for number in kept
        ]
    if (
        args.data.chat_template_kwargs
    ):  # OpenRLHF hands a template no arguments, so it gets rendered prompts
        texts = render_prompts(usable, args, tokenizer)
        usable = [{**row, problem_key: text} for row, text in zip(usable, texts, strict=True)]
    if character := find_special(output):
        raise ConfigError(
            f"--swap.output_dir is {output}, but OpenRLHF is to read {file} there and takes a {character!r} "
            "in the name of a data set for something else: use a folder without one in its path"
        )
    output.mkdir(parents=True, exist_ok=True)
    columns = (problem_key, answer_key, "datasource")
    write_rows(
        output / file, ({name: row[name] for name in columns if name in row} for row in usable)
    )
    return str(output / file)


def _rewritten(problem: Any, objective: Objective, seed: int) -> Any:
    """The objective's text of a problem, drawn by its text and the run's seed, so the same in every
    run.
    """
    rng = random.Random(f"{seed}:{problem}")
    match problem:
        case str(text) if text:
            return objective.rewrite_problem(text, rng)
        case [*before, {"content": str(text)} as last]:
            return [*before, {**last, "content": objective.rewrite_problem(text, rng)}]
    return problem


def _remembered_reasons(
    rows: list[Row],
    references: list[Reference],
    configuration: Configuration,
    tokenizer: PreTrainedTokenizerBase,
) -> list[str | None]:
    """`reasons_to_drop`, which the next start with the same rows, tokenizer and settings finds in a
    file.
    """
    args, run = configuration.args, configuration.run
    data, memory, capacity = args.data, data_sets.remembered_file(), prompt_capacity(args)
    rendering = [
        data.input_template,
        data.apply_chat_template,
        data.chat_template_kwargs,
        tokenizer.chat_template,
    ]
    parts = [
        memory.name,
        tokenizer.backend_tokenizer.to_str(),
        rendering,
        capacity,
        run.grader,
        run.keep_placeholders,
    ]
    digest = sha256(to_line(parts).encode())
    for row, reference in zip(rows, references, strict=True):
        digest.update(to_line([row[data.input_key], reference.answer]).encode())
    path = memory.with_name(f"rows_{digest.hexdigest()[:32]}.jsonl")
    # A user's own function may change between two starts, so its rows are always checked.
    if run.grader == MATH and (known := list(read_rows(path))):
        return list(known[0])
    prompts = list(render_prompts(rows, args, tokenizer))
    faults = [fault_of_problem(row[data.input_key], data.apply_chat_template) for row in rows]
    reasons = reasons_to_drop(prompts, faults, references, capacity, tokenizer, run)
    if run.grader == MATH:
        data_sets.remember(path, [reasons])
    return reasons


def reasons_to_drop(
    prompts: Sequence[str],
    faults: Sequence[str | None],
    references: Sequence[Reference],
    capacity: int,
    tokenizer: PreTrainedTokenizerBase,
    run: RunConfig,
) -> list[str | None]:
    """Why each row cannot be used, worded to follow "dropped with"; None for a row that can.

    `prompts` are rendered, with the faults of their problems; more than `capacity` tokens are a
    fault.
    """
    reasons = list(faults)
    starts = range(0, len(prompts), AT_A_TIME)
    for start in tqdm(starts, "[swap] checking prompts", unit=f"{AT_A_TIME} rows", leave=False):
        part = prompts[start : start + AT_A_TIME]
        ids = tokenizer(part, add_special_tokens=False)["input_ids"]
        for number, (prompt, own) in enumerate(zip(part, ids, strict=True), start):
            if len(own) > capacity:
                limit = "--data.max_len minus --rollout.max_new_tokens"
                reasons[number] = f"a prompt of more than {capacity} tokens ({limit})"
            elif prompt not in tokenizer.decode(own, skip_special_tokens=False):
                # The reward function takes what follows the prompt in the decoded text as the
                # response.
                reasons[number] = reasons[number] or CHANGED_PROMPT
    left = [number for number, fault in enumerate(reasons) if fault is None]
    answers = [references[number] for number in left]
    found = data_sets.find_faults(answers, run.grader, "swap", run.keep_placeholders)
    for number, fault in zip(left, found, strict=True):
        reasons[number] = fault
    return reasons

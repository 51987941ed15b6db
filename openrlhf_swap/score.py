r"""Score where reasoning makes progress: log p(answer | prefix) after every step of a response.

Needs no Ray.

    openrlhf-swap score --model MODEL --input responses.jsonl --output scores.jsonl

Reads one JSON object per line with `problem`, `answer` and `response`. The problem is rendered with
the model's chat template; the response is tokenised once. An agent's response may be `turns`
instead, a list of `action` and `observation`, and the problem a `prompt` that is rendered: so it
reads a run's tables of rollouts. Writes one JSON line per response: the input's fields plus `row`
(its line in the input, from 0), `step_ends`, `answer_logprobs` (l_0..l_K), `gains` (Delta),
`local_gains` (g) and `steps` (texts). With `--swap.step_reward need` each line also gets `need`:
what the rest of the response loses without each step, in nats per token. With `--swap.grader` each
response is also graded, its row being the metadata: `correct`, `score`, `status` and `why`.

A row that cannot be read, lacks one of these fields, has an empty answer, or is longer than the
model's context is skipped, counted and reported. The same command resumes where it stopped;
OUTPUT.settings.json records the model and the flags that the rows depend on. Others are refused,
and so is an input with other rows.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from openrlhf_swap.command import Parser, check_writable, run_command
from openrlhf_swap.config import RunConfig, SwapConfig
from openrlhf_swap.data.files import Entry, describe_faults, read_entries
from openrlhf_swap.errors import ConfigError, DataError, reader_errors
from openrlhf_swap.files import Row, appending, read_rows
from openrlhf_swap.flags.configuration import TEMPLATE_ARGUMENTS, add_rendering, parse_with_settings
from openrlhf_swap.flags.step_tokens import advice_on_step_tokens
from openrlhf_swap.process.locks import locked_file
from openrlhf_swap.rewards import Grader
from openrlhf_swap.rewards.graded_text import text_to_grade
from openrlhf_swap.rewards.references import Reference, answer_text
from openrlhf_swap.rewards.verifiers import GRADER_FLAG, find_verifier
from openrlhf_swap.rollouts.families import set_template_arguments
from openrlhf_swap.runs.model_code import check_model_files
from openrlhf_swap.runs.provenance import grader_identity, identity, record_or_compare

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from openrlhf_swap.scoring.scorer import Scorer

FIELDS = ("problem", "answer", "response")
TURNS = "turns"  # may stand for a response
PROMPT = "prompt"  # may stand for a problem
KEYS = (*FIELDS, TURNS, PROMPT)
SETTINGS = (
    "step_tokens",
    "max_steps",
    "newline_patience",
    "steps",
    "end_of_thought",
    "close_template",
    "step_reward",
    "need_window",
    "need_every",
)


def main(argv: list[str]) -> None:
    args = parse_with_settings(_parser(), (*SETTINGS, "scoring", "trust_remote_code"), argv)
    config = SwapConfig(**{name: getattr(args, name) for name in SETTINGS})
    run = RunConfig(scoring=args.scoring)
    if args.grader and not find_verifier(args.grader).answer_is_text:
        raise ConfigError(
            f"{GRADER_FLAG} is {args.grader}, which has no answer text to score: use eval run"
        )
    check_model_files("--model", args.model, args.trust_remote_code, takes_adapters=True)
    check_writable("--output", args.output.parent)
    with locked_file("--output", args.output):
        _continue_file(args, config, run)


def _continue_file(args: argparse.Namespace, config: SwapConfig, run: RunConfig) -> None:
    """Score the rows that the output lacks, and say what became of all of them."""
    rows = [_scorable(entry) for entry in read_entries(args.input, "--input")]
    if all(entry.row is None for entry in rows):
        raise DataError(
            f"--input is {args.input}, of which no row can be scored: {describe_faults(rows)}"
        )
    record_or_compare(args.output, _settings(args, config, run))
    _check_scored(args.output, rows)
    model, tokenizer = _load_model(args)
    set_template_arguments(tokenizer, args.chat_template_kwargs, args.system_prompt)

    from openrlhf_swap.scoring.scorer import Scorer

    scorer = Scorer(model, tokenizer, config, run.scoring)
    print(*scorer.messages, sep="\n", file=sys.stderr)
    outcomes = _score_rows(scorer, rows, args)
    for outcome, count in sorted(outcomes.items()):
        print(f"{count:6} {outcome}")
    scored = [row["step_ends"] for row in read_rows(args.output) if row["step_ends"]]
    if scored and config.steps == "tokens":
        reasoning = fmean(ends[-1] + 1 for ends in scored)
        counts = [len(ends) for ends in scored]
        single = counts.count(1) / len(counts)
        advice = advice_on_step_tokens(reasoning, config.step_tokens, fmean(counts), single)
        if advice:
            print(f"warning: {advice}; use another --output for them")


def _settings(args: argparse.Namespace, config: SwapConfig, run: RunConfig) -> Row:
    """What the scores depend on, by flag."""
    settings = {f"--swap.{name}": getattr(config, name) for name in SETTINGS}
    return settings | {
        "--swap.scoring": run.scoring,
        GRADER_FLAG: grader_identity(args.grader) if args.grader else None,
        TEMPLATE_ARGUMENTS: args.chat_template_kwargs,
        "--system-prompt": args.system_prompt,
        "--model": identity(args.model),
        "--dtype": args.dtype,
    }


def _check_scored(output: Path, rows: Sequence[Entry]) -> None:
    """Raise DataError if the output has scores of other rows than the input's."""
    by_line = {entry.number: entry.row for entry in rows}
    for scored in read_rows(output):
        line = scored["row"] + 1
        row = by_line.get(line)
        if row is None or any(row.get(key) != scored.get(key) for key in KEYS):
            raise DataError(
                f"--input is not the file that the rows in {output} are the scores of: "
                f"row {line} differs; use another --output"
            )


def _parser() -> Parser:
    parser = Parser("openrlhf-swap score", __doc__)
    add = parser.add_argument
    add("--model", required=True, help="Hugging Face model id, or a folder")
    add("--input", type=Path, required=True, help="JSONL of problem, answer, and response or turns")
    add("--output", type=Path, required=True, help="JSONL to write; rows it already holds are kept")
    dtypes = ("float32", "bfloat16", "float16", "float64")
    text = "dtype of the model (default: %(default)s)"
    add("--dtype", choices=dtypes, default="float32", help=text)
    add_rendering(parser)
    add(GRADER_FLAG, help="also grade each response, by a name as in training (default: do not)")
    return parser


def _load_model(args: argparse.Namespace) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    name = args.model
    trusted = args.trust_remote_code
    with reader_errors(f"--model is {name}, which cannot be read: {{reason}}", ConfigError):
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=trusted)
        dtype = getattr(torch, args.dtype)
        model = AutoModelForCausalLM.from_pretrained(name, dtype=dtype, trust_remote_code=trusted)
    return model.eval().to("cuda" if torch.cuda.is_available() else "cpu"), tokenizer


def _score_rows(scorer: Scorer, rows: Sequence[Entry], args: argparse.Namespace) -> Counter[str]:
    """Append the scores of every row that the output does not hold yet.

    Returns how many rows had which outcome.
    """
    done = max((row["row"] + 1 for row in read_rows(args.output)), default=0)
    left = [entry for entry in rows if entry.number > done]
    before = len(rows) - len(left)
    outcomes: Counter[str] = Counter()
    if before:
        outcomes["already done"] = before
    skipped: list[Entry] = []
    grader = Grader(verifier=args.grader) if args.grader else None
    bar = tqdm(left, desc="scoring", unit="response", initial=before, total=len(rows))
    with appending(args.output) as append:
        for entry in bar:
            try:
                append(_scored(scorer, entry, grader))
                outcomes["scored"] += 1
            except DataError as error:
                outcomes[f"skipped: {str(error).partition(' (')[0]}"] += 1
                skipped.append(Entry(entry.number, None, str(error)))
    if skipped:
        print(f"skipped: {describe_faults(skipped)}", file=sys.stderr)
    return outcomes


def _scored(scorer: Scorer, entry: Entry, grader: Grader | None) -> Row:
    """A row with its scores, and with its grade where that is asked for."""
    if entry.row is None:
        raise DataError(entry.fault)
    is_rendered = "problem" not in entry.row
    problem = str(entry.row[PROMPT if is_rendered else "problem"])
    answer = str(entry.row["answer"])
    turns = turns_of(entry.row)
    response = "".join(turn["action"] for turn in turns) or str(entry.row.get("response"))
    row = {**entry.row, "row": entry.number - 1}
    row |= scorer.score(problem, answer, turns or response, is_rendered)
    if grader:
        metadata = {name: value for name, value in entry.row.items() if name not in KEYS}
        prompt = problem if is_rendered else ""
        text = text_to_grade(prompt, response, scorer.end_of_thought)
        grade = grader.grade(text, Reference(answer, problem, metadata), scorer.end_of_thought)
        for name in ("correct", "score", "status", "why"):
            row[name] = getattr(grade, name)
    return row


def _scorable(entry: Entry) -> Entry:
    """The entry, with a fault if one of the fields is missing or no text."""
    fault = _find_fault(entry.row) if entry.row else ""
    return Entry(entry.number, None, fault) if fault else entry


def _find_fault(row: Row) -> str:
    """What is wrong with a row; "" for nothing."""
    turns = turns_of(row)
    names = ["problem", "answer"]
    if PROMPT in row and "problem" not in row:
        names[0] = PROMPT
    if not turns:
        names.append("response")
    if not all(map(_is_turn, turns)):
        return "turns without the texts action and observation"
    missing = [name for name in names if row.get(name) in (None, "")]
    if missing:
        return f"no {' and no '.join(missing)}"
    for name in names:
        if not answer_text(row[name]):
            return f"{name} is neither text nor a number"
    return ""


def turns_of(row: Row) -> list[Any]:
    """The turns of a row's response; empty for a response of one turn."""
    turns = row.get(TURNS)
    return turns if isinstance(turns, list) else []


def _is_turn(turn: object) -> bool:
    match turn:
        case {"action": str(action), "observation": str()}:
            return bool(action)
    return False


if __name__ == "__main__":
    sys.exit(run_command(main))

r"""Ground truth by deletion: what a thought loses when it is cut before a step and goes on.

    python -m studies.real_model.deletion --model MODEL --thoughts outputs/signals/thoughts.jsonl \
        --output outputs/signals/truth.jsonl

The model continues the thought `--samples` times from each of its K+1 beginnings: nothing, then up
to the end of each step. V_k is the share of correct ones among the continuations of y_1..y_k, and
R_k the mean number of their tokens. Two truths about step k follow from the same samples:

* its necessity V_k - V_{k-1}, which is what success loses when the model has to go on without it;
* the tokens that it wastes, |s_k| + R_k - R_{k-1}: by so much a thought with it is longer.

This is one of the ways to leave a step out: the thought is cut before it, and the model may write
it again. The other ways keep later steps, and a later step mostly repeats the result of the one
that is missing ("Next, 60 x 4 = 240"), so that hardly a step would be needed. Cutting also costs
least, since neighbouring steps share a beginning, and necessities add up to V_K - V_0.

A thought is written when its last continuation is graded, and the same command goes on where it
stopped. On a CPU, `VLLM_CPU_KVCACHE_SPACE=3` keeps 256 sequences in the cache. The seed is the
engine's.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from openrlhf_swap.command import Parser, run_command
from openrlhf_swap.evaluation.samples import key_of
from openrlhf_swap.files import Row, appending, read_rows
from openrlhf_swap.generate import close_engine, generate, open_engine
from openrlhf_swap.process.locks import locked_file
from openrlhf_swap.rewards import Grader
from openrlhf_swap.rewards.references import Reference
from openrlhf_swap.rollouts.families import prompt_ids
from openrlhf_swap.rollouts.reader import ResponseReader
from openrlhf_swap.runs.provenance import commit, identity, record_or_compare
from studies.real_model.chosen_thoughts import STEP_TOKENS, open_reader

if TYPE_CHECKING:
    from vllm import CompletionOutput

LEAST_ROOM = 64  # tokens that a continuation may have, however long the thought is


@dataclass
class Thought:
    """A thought that is being continued.

    Attributes:
        row: of `chosen_thoughts`.
        prompt: the problem as the model reads it, as token ids.
        beginnings: K+1 beginnings of the response, as token ids.
        continued: by beginning, its continuations once they are there.
    """

    row: Row
    prompt: list[int]
    beginnings: list[list[int]]
    continued: dict[int, list[CompletionOutput]] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        return len(self.continued) == len(self.beginnings)


@dataclass(frozen=True)
class Origin:
    """When and by which commit the command was started."""

    started: str
    commit: str | None
    clock: float

    @classmethod
    def now(cls) -> Origin:
        started = datetime.now(timezone.utc).isoformat(timespec="seconds")
        return cls(started, commit(), time.monotonic())

    def row(self) -> Row:
        """What a kept row says of it, with the seconds from the start to now."""
        seconds = round(time.monotonic() - self.clock, 1)
        return {"started": self.started, "commit": self.commit, "seconds": seconds}


def beginnings(response: Sequence[int], step_ends: Sequence[int]) -> list[list[int]]:
    """Nothing, then a response's tokens up to the end of each step."""
    lengths = [0, *(end + 1 for end in step_ends)]
    return [list(response[:length]) for length in lengths]


def requests_of(
    thoughts: Sequence[Thought], samples: int, max_tokens: int
) -> list[tuple[list[int], dict[str, Any]]]:
    """What the engine is asked for: each beginning of each thought, in order."""
    requests = []
    for thought in thoughts:
        for beginning in thought.beginnings:
            room = max(max_tokens - len(beginning), LEAST_ROOM)
            options = {"n": samples, "temperature": 1.0, "max_tokens": room}
            requests.append(([*thought.prompt, *beginning], options))
    return requests


def owners_of(thoughts: Sequence[Thought]) -> list[tuple[Thought, int]]:
    """By request, its thought and the number of its beginning."""
    owners = []
    for thought in thoughts:
        for number in range(len(thought.beginnings)):
            owners.append((thought, number))
    return owners


def truth_of(thought: Thought, reader: ResponseReader, grader: Grader) -> Row:
    """The row of a thought.

    For each beginning it says of each continuation whether it is `correct`, its `tokens`, and
    whether it was `cut` off; `example` is the text of the first one, for a person to read.
    """
    row = thought.row
    reference = Reference(row["answer"], row["problem"])
    found: Row = {"correct": [], "tokens": [], "cut": [], "example": []}
    for number, beginning in enumerate(thought.beginnings):
        continuations = thought.continued[number]
        texts = [reader.text([*beginning, *each.token_ids]) for each in continuations]
        pairs = [(text, reference) for text in texts]
        grades = grader.grade_many(pairs, reader.end_of_thought)
        found["correct"].append([int(grade.correct) for grade in grades])
        found["tokens"].append([len(each.token_ids) for each in continuations])
        found["cut"].append([int(each.finish_reason == "length") for each in continuations])
        found["example"].append(texts[0][len(reader.text(beginning)) :])
    return {"id": row["id"], "sample": row["sample"], "step_ends": row["step_ends"], **found}


def whole_thoughts(
    engine: Any, thoughts: Sequence[Thought], samples: int, max_tokens: int
) -> Iterator[Thought]:
    """Continue all thoughts in one call of the engine, and yield each when it is whole."""
    requests = requests_of(thoughts, samples, max_tokens)
    owners = owners_of(thoughts)
    bar = tqdm(total=len(requests), desc="continuing", unit="beginning")
    for number, continuations in generate(engine, requests):
        thought, beginning = owners[number]
        thought.continued[beginning] = continuations
        bar.update()
        if thought.is_whole:
            yield thought


def unfinished(args: argparse.Namespace, reader: ResponseReader, tokenizer: Any) -> list[Thought]:
    """The thoughts that the output lacks."""
    done = {key_of(row) for row in read_rows(args.output)}
    thoughts = []
    for row in read_rows(args.thoughts):
        if key_of(row) in done:
            continue
        prompt = prompt_ids(tokenizer, row["problem"])
        parts = beginnings(reader.ids(row["response"]), row["step_ends"])
        thoughts.append(Thought(row, prompt, parts))
    return thoughts


def _continue_file(args: argparse.Namespace) -> None:
    """Continue the thoughts that the output lacks."""
    from transformers import AutoTokenizer

    origin = Origin.now()
    settings = {"--model": identity(args.model), "--samples": args.samples}
    record_or_compare(args.output, {**settings, "--max-tokens": args.max_tokens})
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    reader = open_reader(args.model, STEP_TOKENS)
    thoughts = unfinished(args, reader, tokenizer)
    if not thoughts:
        print("nothing is left to do")
        return
    longest_prompt = max(len(thought.prompt) for thought in thoughts)
    longest_beginning = max(len(thought.beginnings[-1]) for thought in thoughts)
    longest = longest_prompt + max(args.max_tokens, longest_beginning + LEAST_ROOM)
    grader = Grader()
    engine = open_engine(args.model, longest, max_num_seqs=args.sequences, seed=args.seed)
    with appending(args.output) as append:
        for thought in whole_thoughts(engine, thoughts, args.samples, args.max_tokens):
            append({**truth_of(thought, reader, grader), **origin.row()})
    close_engine(engine)
    grader.close()


def main(argv: list[str]) -> None:
    parser = Parser("deletion", __doc__)
    add = parser.add_argument
    add("--model", required=True, help="a hub id, or a folder")
    add("--thoughts", type=Path, required=True, help="what chosen_thoughts wrote")
    add("--output", type=Path, required=True, help="JSONL to write; rows it already holds are kept")
    add("--samples", type=int, default=8, help="continuations a beginning (default: %(default)s)")
    text = "of beginning and continuation together (default: %(default)s)"
    add("--max-tokens", type=int, default=512, help=text)
    text = "that the engine works on at a time (default: %(default)s)"
    add("--sequences", type=int, default=256, help=text)
    add("--seed", type=int, default=84, help="of the engine (default: %(default)s)")
    args = parser.parse_args(argv)
    with locked_file("--output", args.output):
        _continue_file(args)


if __name__ == "__main__":
    sys.exit(run_command(main))

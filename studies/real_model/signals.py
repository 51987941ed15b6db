r"""What the product's own scorer says of each step of chosen thoughts.

    python -m studies.real_model.signals --model MODEL --thoughts outputs/signals/thoughts.jsonl \
        --output outputs/signals/signals.jsonl

Reads l_0..l_K (`answer_logprobs`), the steps' entropies at temperature 1, and their need with each
window of `--windows`: 1, 2 and 4 later steps, and all of them (`need_0`). `SIGNALS` are the
candidates that follow from them, one number a step; each is written so that a step with more of it
should be needed more. The same command goes on where it stopped. On a CPU a thought takes a
forward for each window, so more windows can be read later, into another file of the folder.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from tqdm import tqdm

from openrlhf_swap.command import Parser, run_command
from openrlhf_swap.config import SwapConfig
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.evaluation.samples import key_of
from openrlhf_swap.files import Row, appending, read_rows
from openrlhf_swap.process.locks import locked_file
from openrlhf_swap.runs.provenance import identity, record_or_compare
from studies.real_model.chosen_thoughts import STEP_TOKENS

WINDOWS = (1, 2, 4, 0)  # later steps that are read again; 0: all of them
AHEAD = 2  # steps
# An equals sign and a number that no operator follows, as in `= \$60 \text{ dollars}`.
OPERATOR = r"(?:\\times|\\div|\\cdot|[-+*/\u00d7\u00f7])"
RESULT = re.compile(rf"=\s*\\?\$?\s*-?\d[\d.,]*(?![\d.,]*\s*{OPERATOR})")


def step_lengths(row: Row) -> list[int]:
    """The tokens of each step."""
    bounds = [-1, *row["step_ends"]]
    return [end - start for start, end in pairwise(bounds)]


def best_before(scores: list[float]) -> list[float]:
    """For each step the best score before it, max_{j<k} l_j."""
    return list(accumulate(scores[:-1], max))


def best_ahead(scores: list[float]) -> list[float]:
    """For each step the best score after it or after one of the next `AHEAD` steps."""
    return [max(scores[step : step + 1 + AHEAD]) for step in range(1, len(scores))]


def gain_ahead(row: Row) -> list[float]:
    """max(l_k..l_{k+2}) - l_{k-1}."""
    scores = row["answer_logprobs"]
    return [best - before for best, before in zip(best_ahead(scores), scores[:-1], strict=True)]


def best_gain_ahead(row: Row) -> list[float]:
    """max(0, max(l_k..l_{k+2}) - max_{j<k} l_j)."""
    scores = row["answer_logprobs"]
    pairs = zip(best_ahead(scores), best_before(scores), strict=True)
    return [max(0.0, best - before) for best, before in pairs]


def states_result(step: str) -> bool:
    """Whether the text of a step states the result of a computation."""
    return RESULT.search(step) is not None


def gain_of_results(row: Row) -> list[float]:
    """The change of l from one stated result to the next, given to each step in between.

    The last step counts as stating a result.
    """
    scores = row["answer_logprobs"]
    steps = row["steps"]
    gains: list[float] = []
    for number, step in enumerate(steps, start=1):
        if states_result(step) or number == len(steps):
            begun = len(gains)
            change = scores[number] - scores[begun]
            gains += [change] * (number - begun)
    return gains


def need_per_token(row: Row) -> list[float]:
    """Need of the next four steps, for each token of the step itself."""
    return [need / length for need, length in zip(row["need_4"], step_lengths(row), strict=True)]


def gain_and_need(row: Row) -> list[float]:
    """Delta_k + n_k, what `--swap.step_reward need` pays."""
    return [gain + need for gain, need in zip(row["gains"], row["need_4"], strict=True)]


SIGNALS: dict[str, Callable[[Row], list[float]]] = {
    "gain": lambda row: row["local_gains"],
    "best-so-far gain": lambda row: row["gains"],
    "gain, two steps ahead": gain_ahead,
    "best-so-far gain, two steps ahead": best_gain_ahead,
    "gain between results": gain_of_results,
    "need, 1 step": lambda row: row["need_1"],
    "need, 2 steps": lambda row: row["need_2"],
    "need, 4 steps": lambda row: row["need_4"],
    "need, all steps": lambda row: row["need_0"],
    "need per token": need_per_token,
    "best-so-far gain + need": gain_and_need,
    "entropy": lambda row: row["entropy"],
    "length": lambda row: [float(length) for length in step_lengths(row)],
    "early position": lambda row: [-float(step) for step in range(len(row["step_ends"]))],
}


def signals_of(row: Row) -> dict[str, list[float]]:
    """The signals of a row by name, without those of a window that was not read."""
    found = {}
    for name, signal in SIGNALS.items():
        with suppress(KeyError):
            found[name] = signal(row)
    return found


class SignalReader:
    """A model with one scorer for each window of need."""

    def __init__(self, model: str, dtype: str, windows: Sequence[int]) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        from openrlhf_swap.scoring.scorer import Scorer

        tokenizer = AutoTokenizer.from_pretrained(model)
        policy = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype))
        policy = policy.eval().to("cuda" if torch.cuda.is_available() else "cpu")
        self._scorers = {}
        for window in windows:
            config = SwapConfig(step_tokens=STEP_TOKENS, step_reward="need", need_window=window)
            # The entropies are the same for all windows, so one scorer reads them.
            temperature = 1.0 if window == windows[-1] else None
            scorer = Scorer(policy, tokenizer, config, entropy_temperature=temperature)
            self._scorers[window] = scorer

    def read(self, thought: Row) -> Row:
        """The scores of a thought; raises ConfigError if it is cut into other steps than before."""
        found: dict[str, Any] = {}
        needs = {}
        for window, scorer in self._scorers.items():
            found |= scorer.score(thought["problem"], thought["answer"], thought["response"])
            needs[f"need_{window}"] = found.pop("need")
        if found["step_ends"] != thought["step_ends"]:
            raise ConfigError(
                f"--thoughts has the step ends {thought['step_ends']} of {thought['id']}, and "
                f"--model gives {found['step_ends']}; choose the thoughts again"
            )
        return {"id": thought["id"], "sample": thought["sample"], **found, **needs}


def _continue_file(args: argparse.Namespace) -> None:
    """Score the thoughts that the output lacks."""
    settings = {"--model": identity(args.model), "--dtype": args.dtype}
    record_or_compare(args.output, {**settings, "--windows": args.windows})
    done = {key_of(row) for row in read_rows(args.output)}
    left = [row for row in read_rows(args.thoughts) if key_of(row) not in done]
    reader = SignalReader(args.model, args.dtype, args.windows)
    with appending(args.output) as append:
        for thought in tqdm(left, desc="scoring", unit="thought"):
            append(reader.read(thought))


def main(argv: list[str]) -> None:
    parser = Parser("signals", __doc__)
    add = parser.add_argument
    add("--model", required=True, help="a hub id, or a folder")
    add("--thoughts", type=Path, required=True, help="what chosen_thoughts wrote")
    add("--output", type=Path, required=True, help="JSONL to write; rows it already holds are kept")
    dtypes = ("float32", "bfloat16")
    add("--dtype", choices=dtypes, default="bfloat16", help="(default: %(default)s)")
    text = "of need, 0 for all later steps (default: %(default)s)"
    add("--windows", type=int, nargs="+", choices=WINDOWS, default=WINDOWS, help=text)
    args = parser.parse_args(argv)
    with locked_file("--output", args.output):
        _continue_file(args)


if __name__ == "__main__":
    sys.exit(run_command(main))

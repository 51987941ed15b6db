r"""Score where reasoning made progress: log p(answer | prefix) after every step of saved responses. Without Ray.

    python -m openrlhf_swap.score --model MODEL --input responses.jsonl --output scores.jsonl

Reads one JSON object a line with `problem`, `answer` and `response`. The problem goes through the model's chat
template, the response is tokenised once. Writes one JSON line a response: the input's fields plus `row` (its line in
the input), `step_ends`, `answer_logprobs` (l_0..l_K), `gains` (Delta), `local_gains` (g) and `steps` (texts).

A row without these fields, with an empty answer, or longer than the model's context is skipped, counted and reported.
Started again with the same arguments it goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openrlhf_swap.config import SwapConfig
from openrlhf_swap.errors import ConfigError, DataError, SwapError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

FIELDS = ("problem", "answer", "response")
DTYPES = ("float32", "bfloat16", "float16", "float64")


class Scorer:
    """A model and its tokenizer, ready to score responses one at a time."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, config: SwapConfig) -> None:
        """Takes a causal language model in eval mode."""
        from openrlhf_swap.scoring.reasoning import StepReader
        from openrlhf_swap.scoring.shared_prefix import branching_obstacle

        self._model = model
        self._tokenizer = tokenizer
        self._config = config
        self._reader = StepReader(tokenizer, config)
        self._obstacle = branching_obstacle(model)
        self._context = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        if self._obstacle:
            print(
                f"warning: every prefix is scored by a forward of its own, because {self._obstacle}", file=sys.stderr
            )

    def score(self, problem: str, answer: str, response: str) -> dict[str, Any]:
        """The fields that are added to a row.

        Raises:
            DataError: for an empty answer, or a row that is longer than the model's context.
        """
        import torch

        from openrlhf_swap.algorithm.gains import local_gains, monotone_gains
        from openrlhf_swap.scoring.answer import answer_branch

        prompt_ids = self._tokenizer(self._prompt(problem), add_special_tokens=False)["input_ids"]
        response_ids = self._tokenizer(response, add_special_tokens=False)["input_ids"]
        branch = answer_branch(self._tokenizer, self._config.close_template, answer)
        if self._context is not None and len(prompt_ids) + len(response_ids) + len(branch.ids) > self._context:
            raise DataError(f"longer than the model's context of {self._context} tokens")
        ends = self._reader.step_ends(response_ids)
        ids = torch.tensor(prompt_ids + response_ids, device=self._model.device)
        prefix_ends = (len(prompt_ids) - 1, *(len(prompt_ids) + end for end in ends))
        logprobs = self._logprobs(ids, prefix_ends, branch).double().cpu()
        steps = torch.ones(len(ends), dtype=torch.bool)
        return {
            "step_ends": ends,
            "answer_logprobs": logprobs.tolist(),
            "gains": monotone_gains(logprobs, steps).tolist(),
            "local_gains": local_gains(logprobs, steps).tolist(),
            "steps": self._reader.step_texts(response_ids, ends),
        }

    def _prompt(self, problem: str) -> str:
        if self._tokenizer.chat_template is None:
            return problem + "\n"
        messages = [{"role": "user", "content": problem}]
        return self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)

    def _logprobs(self, ids: torch.Tensor, prefix_ends: tuple[int, ...], branch: Any) -> torch.Tensor:
        import torch

        from openrlhf_swap.scoring.per_prefix import score_per_prefix
        from openrlhf_swap.scoring.shared_prefix import ScoreRequest, score_shared_prefix

        if self._obstacle or self._config.scoring == "per_prefix":
            return score_per_prefix(self._model, ids, [end + 1 for end in prefix_ends], branch)
        sequences = ids.unsqueeze(0)
        request = ScoreRequest(0, prefix_ends, branch)
        (scores,) = score_shared_prefix(
            self._model, self._model.config, sequences, torch.ones_like(sequences), [request]
        )
        return scores


def score_file(scorer: Scorer, source: Path, target: Path) -> Counter[str]:
    """Score every row of `source` that `target` does not hold yet; returns how often each thing happened."""
    from tqdm import tqdm

    with open(source, encoding="utf-8") as file:
        lines = list(file)  # not splitlines(), which also splits at separators that JSON may hold
    if not lines:
        raise DataError(f"--input is {source}, which has no rows; give one JSON object a line")
    done = _rows_done(target)
    outcomes: Counter[str] = Counter()
    with open(target, "a", encoding="utf-8") as file:
        for number in tqdm(range(len(lines)), desc="scoring", unit="response"):
            if number < done:
                outcomes["already done"] += 1
                continue
            try:
                row = _read_row(lines[number])
                scores = scorer.score(*(str(row[name]) for name in FIELDS))
            except DataError as error:
                outcomes[f"skipped: {error}"] += 1
                continue
            file.write(json.dumps({**row, "row": number, **scores}, ensure_ascii=False) + "\n")
            file.flush()
            outcomes["scored"] += 1
    return outcomes


def _read_row(line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError:
        raise DataError("not a JSON object") from None
    if not isinstance(row, dict):
        raise DataError("not a JSON object")
    missing = [name for name in FIELDS if row.get(name) in (None, "")]
    if missing:
        raise DataError(f"no {' and no '.join(missing)}")
    return row


def _rows_done(target: Path) -> int:
    """How many rows of the input lie behind the last complete line of the output; a torn last line is cut off."""
    if not target.exists():
        return 0
    content = target.read_bytes()
    complete = content[: content.rfind(b"\n") + 1]
    if len(complete) < len(content):
        target.write_bytes(complete)
    lines = complete.splitlines()
    return json.loads(lines[-1])["row"] + 1 if lines else 0


def load_scorer(model_name: str, dtype: str, config: SwapConfig) -> Scorer:
    """Load model and tokenizer onto the GPU if there is one.

    Raises:
        ConfigError: when the model cannot be read.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(model_name)
        model = AutoModelForCausalLM.from_pretrained(
            model_name, dtype=getattr(torch, dtype), attn_implementation="sdpa"
        )
    except Exception as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(f"--model is {model_name}, which cannot be read: {reason}") from error
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return Scorer(model.to(device).eval(), tokenizer, config)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status: 0, or 2 after a one-line error."""
    defaults = SwapConfig()
    parser = argparse.ArgumentParser(
        prog="python -m openrlhf_swap.score", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="Hugging Face model id, or a folder")
    parser.add_argument("--input", type=Path, required=True, help="JSONL of problem, answer and response")
    parser.add_argument("--output", type=Path, required=True, help="JSONL to write; rows that it holds are kept")
    parser.add_argument("--step-tokens", type=int, default=defaults.step_tokens, help="M (default: %(default)s)")
    parser.add_argument("--max-steps", type=int, default=defaults.max_steps, help="K (default: %(default)s)")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="of the model (default: %(default)s)")
    parser.add_argument(
        "--close-template",
        default=defaults.close_template,
        help=r"text that ends the thought and opens the answer; \n means a newline (default: %(default)r)",
    )
    parser.add_argument(
        "--scoring",
        default=defaults.scoring,
        help="shared_prefix, or per_prefix: one forward a prefix, the slow reference (default: %(default)s)",
    )
    args = parser.parse_args(argv)
    try:
        config = SwapConfig(
            step_tokens=args.step_tokens,
            max_steps=args.max_steps,
            close_template=args.close_template.replace("\\n", "\n"),
            scoring=args.scoring,
        )
        if not args.input.is_file():
            raise DataError(f"--input is {args.input}, which is not a file; give one JSON object a line")
        scorer = load_scorer(args.model, args.dtype, config)
        args.output.parent.mkdir(parents=True, exist_ok=True)
        outcomes = score_file(scorer, args.input, args.output)
    except SwapError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for outcome, count in sorted(outcomes.items()):
        print(f"{count:6} {outcome}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

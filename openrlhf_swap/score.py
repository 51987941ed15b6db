r"""Score where reasoning makes progress: log p(answer | prefix) after every step of saved responses. Needs no Ray.

    python -m openrlhf_swap.score --model MODEL --input responses.jsonl --output scores.jsonl

Reads one JSON object per line with `problem`, `answer` and `response`. The problem is rendered with the model's chat
template; the response is tokenised once. Writes one JSON line per response: the input's fields plus `row` (its line in
the input), `step_ends`, `answer_logprobs` (l_0..l_K), `gains` (Delta), `local_gains` (g) and `steps` (texts). With
`--grader` each response is also graded, its row being the metadata: `correct`, `score`, `status` and `why`.

A row without these fields, with an empty answer, or longer than the model's context is skipped, counted and reported.
Run again with the same arguments, it resumes where it stopped.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from openrlhf_swap.command import Parser, check_model_exists, check_writable, flags_called, run_command
from openrlhf_swap.config import RunConfig, SwapConfig
from openrlhf_swap.data.references import answer_is_text
from openrlhf_swap.errors import ConfigError, DataError, reader_errors
from openrlhf_swap.files import Row, appending, read_rows
from openrlhf_swap.rewards import Grader
from openrlhf_swap.rewards.grader import Task
from openrlhf_swap.rewards.verifiers import FLAG

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from openrlhf_swap.scoring.scorer import Scorer

FIELDS = ("problem", "answer", "response")
DTYPES = ("float32", "bfloat16", "float16", "float64")


def main(argv: list[str]) -> None:
    """Score the rows of a file, and print how many had each outcome.

    Raises:
        ConfigError: for an invalid setting, or a model that cannot be read.
        DataError: for an input without rows.
    """
    args = _parser().parse_args(argv)
    end, close = (text.replace("\\n", "\n") for text in (args.end_of_thought, args.close_template))
    config = SwapConfig(
        step_tokens=args.step_tokens,
        max_steps=args.max_steps,
        newline_patience=args.newline_patience,
        end_of_thought=end,
        close_template=close,
    )
    run = RunConfig(scoring=args.scoring)
    if args.grader:
        check_grader_name(args.grader)
    if not args.input.is_file():
        raise DataError(f"--input is {args.input}, which is not a file; give one JSON object a line")
    check_model_exists("--model", args.model)
    check_writable("--output", args.output.parent)
    model, tokenizer = load_model(args.model, args.dtype)

    from openrlhf_swap.scoring.scorer import Scorer

    with flags_called({"--swap.end_of_thought": "--end-of-thought"}):
        scorer = Scorer(model, tokenizer, config, run.scoring)
    print(*scorer.messages, sep="\n", file=sys.stderr)
    grader = Grader(verifier=args.grader) if args.grader else None
    outcomes = score_file(scorer, args.input, args.output, grader)
    for outcome, count in sorted(outcomes.items()):
        print(f"{count:6} {outcome}")


def _parser() -> Parser:
    defaults = SwapConfig()
    parser = Parser("openrlhf_swap.score", __doc__)
    parser.add_argument("--model", required=True, help="Hugging Face model id, or a folder")
    parser.add_argument("--input", type=Path, required=True, help="JSONL of problem, answer and response")
    parser.add_argument("--output", type=Path, required=True, help="JSONL to write; rows it already holds are kept")
    parser.add_argument("--step-tokens", type=int, default=defaults.step_tokens, help="M (default: %(default)s)")
    parser.add_argument("--max-steps", type=int, default=defaults.max_steps, help="K (default: %(default)s)")
    parser.add_argument(
        "--newline-patience",
        type=float,
        default=defaults.newline_patience,
        help="cut a step after this many times M tokens if no newline comes (default: %(default)s)",
    )
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="dtype of the model (default: %(default)s)")
    parser.add_argument(
        "--end-of-thought",
        default=defaults.end_of_thought,
        help="text that closes the thought; auto: from the model's chat template (default: %(default)s)",
    )
    parser.add_argument(
        "--close-template",
        default=defaults.close_template,
        help=r"text that ends the thought and opens the answer; \n is a newline (default: %(default)s)",
    )
    parser.add_argument(
        "--scoring",
        default=RunConfig().scoring,
        help="shared_prefix, or per_prefix: one forward per prefix, the slow reference (default: %(default)s)",
    )
    parser.add_argument("--grader", help="also grade each response: as in training, --swap.grader (default: do not)")
    return parser


def check_grader_name(name: str) -> None:
    """Refuse a grader that does not exist, or whose tasks have no answer text; raises ConfigError."""
    with flags_called({FLAG: "--grader"}):
        if not answer_is_text(name):
            raise ConfigError(f"--grader is {name}, whose tasks have no answer text to score: use evaluation.run")


def load_model(name: str, dtype: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load model and tokenizer, on the GPU if there is one.

    Raises:
        ConfigError: when they cannot be read.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with reader_errors(f"--model is {name}, which cannot be read: {{reason}}", ConfigError):
        tokenizer = AutoTokenizer.from_pretrained(name)
        model = AutoModelForCausalLM.from_pretrained(name, dtype=getattr(torch, dtype))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return model.eval().to(device), tokenizer


def score_file(scorer: Scorer, source: Path, target: Path, grader: Grader | None = None) -> Counter[str]:
    """Score every row of `source` that `target` does not hold yet; returns how many had each outcome.

    A grader grades the responses, too.

    Raises:
        DataError: when `source` is empty.
    """
    with open(source, encoding="utf-8") as file:
        lines = list(file)  # not splitlines(), which also splits at separators that JSON may contain
    if not lines:
        raise DataError(f"--input is {source}, which has no rows; give one JSON object a line")
    done = min(max((row["row"] + 1 for row in read_rows(target)), default=0), len(lines))
    outcomes: Counter[str] = Counter({"already done": done} if done else {})
    with appending(target) as append:
        for number in tqdm(range(done, len(lines)), desc="scoring", unit="response", initial=done, total=len(lines)):
            try:
                row = _parsed(lines[number])
                scores = scorer.score(*(str(row[name]) for name in FIELDS))
            except DataError as error:
                outcomes[f"skipped: {error}"] += 1
                continue
            append({**row, "row": number, **scores, **(_graded(grader, row, scorer.end_of_thought) if grader else {})})
            outcomes["scored"] += 1
    return outcomes


def _graded(grader: Grader, row: Row, end_of_thought: str) -> Row:
    metadata = {name: value for name, value in row.items() if name not in FIELDS}
    task = Task(str(row["response"]), str(row["answer"]), str(row["problem"]), metadata)
    (grade,) = grader.grade_many([task], end_of_thought)
    return {"correct": grade.correct, "score": grade.score, "status": grade.status, "why": grade.why}


def _parsed(line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError:
        row = None
    if not isinstance(row, dict):
        raise DataError("not a JSON object")
    missing = [name for name in FIELDS if row.get(name) in (None, "")]
    if missing:
        raise DataError(f"no {' and no '.join(missing)}")
    return row


if __name__ == "__main__":
    sys.exit(run_command(main))

r"""Accuracy when the model is forced to answer after a budget of tokens.

    openrlhf-swap eval forced outputs/eval/base --budgets 500 1000 2000 4000

Takes the samples of an evaluation. A response longer than the budget is cut there, its thought is
closed, and the model writes an answer; a shorter response counts as is. Writes
`<benchmark>.forced.jsonl` (accuracy for each budget) next to the samples; the area under the curve
joins the evaluation's table.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from openrlhf_swap.command import Parser
from openrlhf_swap.config import SwapConfig
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.evaluation import samples
from openrlhf_swap.evaluation.generate import read_tokenizer
from openrlhf_swap.files import Row, write_rows
from openrlhf_swap.flags.configuration import parse_with_settings
from openrlhf_swap.generate import generate, open_engine
from openrlhf_swap.rewards import Grader
from openrlhf_swap.rewards.verifiers import MATH
from openrlhf_swap.rollouts.families import prompt_ids, resolve_thought
from openrlhf_swap.runs.model_code import check_model_files

ANSWER_TOKENS = 64  # of an answer after a cut


def main(argv: list[str]) -> None:
    """Write the accuracies of every benchmark."""
    parser = Parser("openrlhf-swap eval forced", __doc__)
    parser.add_argument("folder", type=Path, help="folder of an evaluation")
    parser.add_argument(
        "--budgets", type=int, nargs="+", required=True, help="tokens after which a response is cut"
    )
    parser.add_argument(
        "--max-model-len", type=int, help="limit for prompt and response (default: the longest one)"
    )
    args = parse_with_settings(parser, ("close_template", "trust_remote_code"), argv)
    if (least := min(args.budgets)) < 0:
        raise ConfigError(f"--budgets has {least}; use 0 or more tokens")
    names = samples.graded_benchmarks(args.folder)
    settings = samples.read_settings(args.folder)
    model = settings["model"]
    check_model_files(f"the model of {args.folder}", model, args.trust_remote_code)
    tokenizer = read_tokenizer(model, args.trust_remote_code, settings)
    given = SwapConfig(
        end_of_thought=settings["end_of_thought"], close_template=args.close_template
    )
    marks, messages = resolve_thought(given, tokenizer)
    print(messages[0])

    options: dict[str, Any] = {
        "max_model_len": args.max_model_len,
        "trust_remote_code": args.trust_remote_code,
    }
    written = max(args.budgets) + len(_ids(tokenizer, marks.close_template)) + ANSWER_TOKENS
    problems = [
        problem for name in names for problem in samples.read_problems(args.folder, name).values()
    ]
    prompts = (
        prompt_ids(tokenizer, samples.asked(problem, settings["suffix"])) for problem in problems
    )
    engine = open_engine(model, longest=max(map(len, prompts)) + written, **options)
    forcing = Forcing(engine, tokenizer, marks, settings["suffix"])
    for name in names:
        accuracies = forcing.accuracies(args.folder, name, args.budgets)
        rows = ({"budget": budget, "accuracy": accuracy} for budget, accuracy in accuracies.items())
        write_rows(samples.rows_path("forced", args.folder, name), rows)
        for budget, accuracy in accuracies.items():
            print(
                f"{name}: {100 * accuracy:.1f}% correct when forced to answer after {budget} tokens"
            )


@dataclass(frozen=True)
class Forcing:
    """An engine that forces answers; `suffix` is the evaluation's."""

    engine: Any
    tokenizer: Any
    marks: SwapConfig
    suffix: str

    def accuracies(self, folder: Path, benchmark: str, budgets: Sequence[int]) -> dict[int, float]:
        """The accuracy of a benchmark's samples at each budget, in tokens of the response."""
        problems = samples.read_problems(folder, benchmark)
        rows = list(samples.graded_samples(folder, benchmark))
        grader = Grader(verifier=next(iter(problems.values())).get("grader", MATH))
        accuracies = {}
        for budget in budgets:
            longer = [(row, problems[row["id"]]) for row, _ in rows if row["tokens"] > budget]
            texts = self._answers(longer, budget)
            pairs = [
                (text, samples.reference_of(problem))
                for (_, problem), text in zip(longer, texts, strict=True)
            ]
            forced = [
                grade.correct for grade in grader.grade_many(pairs, self.marks.end_of_thought)
            ]
            accuracies[budget] = fmean(
                forced + [grade["correct"] for row, grade in rows if row["tokens"] <= budget]
            )
        grader.close()
        return accuracies

    def _answers(self, longer: Sequence[tuple[Row, Row]], budget: int) -> list[str]:
        """The responses of (sample, problem) pairs whose thought ends at the budget."""
        beginnings = [self._beginning(row, problem, budget) for row, problem in longer]
        texts = [text for text, _ in beginnings]
        greedy = {"temperature": 0, "max_tokens": ANSWER_TOKENS}
        for number, (response,) in generate(self.engine, ((ids, greedy) for _, ids in beginnings)):
            texts[number] += response.text
        return texts

    def _beginning(self, row: Row, problem: Row, budget: int) -> tuple[str, Sequence[int]]:
        """The kept beginning of a response, and the token ids that the model continues."""
        prompt = prompt_ids(self.tokenizer, samples.asked(problem, self.suffix))
        ids = _ids(self.tokenizer, row["text"])[:budget]
        text = str(self.tokenizer.decode(ids))
        # Once the thought has ended, only the answer is left to write.
        close = "" if self.marks.end_of_thought in text else self.marks.close_template
        return text + close, [*prompt, *ids, *_ids(self.tokenizer, close)]


def _ids(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids

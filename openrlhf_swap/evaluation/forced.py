r"""Accuracy when the model is forced to answer after a budget of tokens.

    openrlhf-swap eval forced outputs/eval/base --budgets 500 1000 2000 4000

Takes the samples of an evaluation. A response longer than the budget is cut there, its thought is
closed, and the model writes an answer; a shorter response counts as is. Writes
`<benchmark>.forced.jsonl` (accuracy for each budget) next to the samples; the area under the curve
joins the evaluation's table.
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from openrlhf_swap.command import Parser
from openrlhf_swap.config import SwapConfig
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.evaluation import samples
from openrlhf_swap.evaluation.generate import read_tokenizer
from openrlhf_swap.evaluation.samples import SampleFiles
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
    parser.add_argument(
        "folder",
        type=Path,
        help="folder of an evaluation",
    )
    parser.add_argument(
        "--budgets",
        type=int,
        nargs="+",
        required=True,
        help="tokens after which a response is cut",
    )
    parser.add_argument(
        "--max-model-len",
        type=int,
        help="limit for prompt and response (default: the longest one)",
    )
    args = parse_with_settings(
        parser,
        ("close_template", "trust_remote_code"),
        argv,
    )
    least = min(args.budgets)
    if least < 0:
        raise ConfigError(f"--budgets has {least}; use 0 or more tokens")
    benchmarks = samples.graded_benchmarks(args.folder)
    settings = samples.read_settings(args.folder)
    model = settings["model"]
    check_model_files(f"the model of {args.folder}", model, args.trust_remote_code)
    tokenizer = read_tokenizer(model, args.trust_remote_code, settings)
    given = SwapConfig(
        end_of_thought=settings["end_of_thought"],
        close_template=args.close_template,
    )
    marks, messages = resolve_thought(given, tokenizer)
    print(messages[0])

    forcing = Forcing(tokenizer, marks, settings["suffix"])
    longest = max(map(forcing.longest_prompt, benchmarks))
    close_tokens = len(_ids(tokenizer, marks.close_template))
    engine = open_engine(
        model,
        longest=longest + max(args.budgets) + close_tokens + ANSWER_TOKENS,
        max_model_len=args.max_model_len,
        trust_remote_code=args.trust_remote_code,
    )
    for files in benchmarks:
        rows = forcing.accuracies(engine, files, args.budgets)
        write_rows(files.path("forced"), rows)
        for row in rows:
            correct = f"{100 * row['accuracy']:.1f}% correct"
            print(
                f"{files.benchmark}: {correct} when forced to answer after {row['budget']} tokens"
            )


@dataclass(frozen=True)
class Forcing:
    """How answers are forced; `suffix` is the evaluation's."""

    tokenizer: Any
    marks: SwapConfig
    suffix: str

    def prompt(self, problem: Row) -> list[int]:
        return prompt_ids(self.tokenizer, samples.asked(problem, self.suffix))

    def longest_prompt(self, files: SampleFiles) -> int:
        """The tokens of a benchmark's longest prompt."""
        return max(len(self.prompt(problem)) for problem in files.problems().values())

    def accuracies(
        self,
        engine: Any,
        files: SampleFiles,
        budgets: Sequence[int],
    ) -> list[Row]:
        """The accuracy of a benchmark's samples at each budget, in tokens of the response."""
        problems = files.problems()
        graded = list(files.graded())
        verifier = next(iter(problems.values())).get("grader", MATH)
        rows = []
        with closing(Grader(verifier=verifier)) as grader:
            for budget in budgets:
                longer = [row for row, _ in graded if row["tokens"] > budget]
                correct = [grade["correct"] for row, grade in graded if row["tokens"] <= budget]
                asked = [problems[row["id"]] for row in longer]
                texts = self.answers(engine, longer, asked, budget)
                pairs = list(zip(texts, map(samples.reference_of, asked), strict=True))
                grades = grader.grade_many(pairs, self.marks.end_of_thought)
                correct += [grade.correct for grade in grades]
                rows.append({"budget": budget, "accuracy": fmean(correct)})
        return rows

    def answers(
        self,
        engine: Any,
        rows: Sequence[Row],
        problems: Sequence[Row],
        budget: int,
    ) -> list[str]:
        """The samples' responses, with a thought that ends at the budget."""
        texts, prompts = [], []
        for row, problem in zip(rows, problems, strict=True):
            kept = _ids(self.tokenizer, row["text"])[:budget]
            text = str(self.tokenizer.decode(kept))
            # Once the thought has ended, only the answer is left to write.
            has_ended = self.marks.end_of_thought in text
            close = "" if has_ended else self.marks.close_template
            texts.append(text + close)
            prompts.append([*self.prompt(problem), *kept, *_ids(self.tokenizer, close)])
        greedy = {"temperature": 0, "max_tokens": ANSWER_TOKENS}
        for number, (response,) in generate(engine, ((ids, greedy) for ids in prompts)):
            texts[number] += response.text
        return texts


def _ids(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids

r"""Accuracy when the model is forced to answer after a budget of tokens.

    openrlhf-swap eval forced outputs/eval/base --budgets 500 1000 2000 4000

Takes the samples of an evaluation. A response longer than the budget is cut there, its thought is closed, and the
model writes an answer; a shorter response counts as is. With `--by vllm` a response whose thought is longer than the
budget is sampled again, with its own seed and the budget given to vLLM, which closes the thought by itself; the answer
may then be as long as in the evaluation. Writes `<benchmark>.forced.jsonl` (accuracy for each budget) next to the
samples; the area under the curve joins the evaluation's table.
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
from openrlhf_swap.files import Row, read_rows, write_rows
from openrlhf_swap.flags.configuration import parse_with_settings
from openrlhf_swap.generate import generate, open_engine
from openrlhf_swap.rewards import Grader
from openrlhf_swap.rewards.verifiers import MATH
from openrlhf_swap.rollouts.families import prompt_ids, resolve_thought
from openrlhf_swap.runs.model_code import check_model_files

CUT, VLLM = "cut", "vllm"
ANSWER_TOKENS = 64  # of an answer after a cut


def main(argv: list[str]) -> None:
    """Write the accuracies of every benchmark."""
    parser = Parser("openrlhf-swap eval forced", __doc__)
    parser.add_argument("folder", type=Path, help="folder of an evaluation")
    parser.add_argument("--budgets", type=int, nargs="+", required=True, help="tokens after which a response is cut")
    parser.add_argument("--by", choices=[CUT, VLLM], default=CUT, help="what ends a thought, see above (default: cut)")
    parser.add_argument("--max-model-len", type=int, help="limit for prompt and response (default: the longest one)")
    args = parse_with_settings(parser, ("close_template", "trust_remote_code"), argv)
    if (least := min(args.budgets)) < 0:
        raise ConfigError(f"--budgets has {least}; use 0 or more tokens")
    names = samples.graded_benchmarks(args.folder)
    settings = samples.read_settings(args.folder)
    model = settings["model"]
    check_model_files(f"the model of {args.folder}", model, args.trust_remote_code)
    tokenizer = read_tokenizer(model, args.trust_remote_code, settings)
    given = SwapConfig(end_of_thought=settings["end_of_thought"], close_template=args.close_template)
    marks, messages = resolve_thought(given, tokenizer)
    print(messages[0])

    options: dict[str, Any] = {"max_model_len": args.max_model_len, "trust_remote_code": args.trust_remote_code}
    written = settings["max_tokens"]
    if args.by == VLLM:
        thought = {"reasoning_start_str": marks.start_of_thought, "reasoning_end_str": marks.end_of_thought}
        options["reasoning_config"] = thought
    else:
        written = max(args.budgets) + len(_ids(tokenizer, marks.close_template)) + ANSWER_TOKENS
    problems = [problem for name in names for problem in samples.read_problems(args.folder, name).values()]
    prompts = (prompt_ids(tokenizer, samples.asked(problem, settings["suffix"])) for problem in problems)
    engine = open_engine(model, longest=max(map(len, prompts)) + written, **options)
    forcing = Forcing(engine, tokenizer, marks, settings, args.by)
    for name in names:
        accuracies = forcing.accuracies(args.folder, name, args.budgets)
        path = samples.rows_path("forced", args.folder, name)
        others = [row for row in read_rows(path) if row.get("by", CUT) != args.by]
        write_rows(path, [*others, *({"budget": b, "accuracy": a, "by": args.by} for b, a in accuracies.items())])
        for budget, accuracy in accuracies.items():
            print(f"{name}: {100 * accuracy:.1f}% correct when forced to answer after {budget} tokens")


@dataclass(frozen=True)
class Forcing:
    """An engine that forces answers; `by` is what ends a thought, `settings` are the evaluation's."""

    engine: Any
    tokenizer: Any
    marks: SwapConfig
    settings: Row
    by: str

    def accuracies(self, folder: Path, benchmark: str, budgets: Sequence[int]) -> dict[int, float]:
        """The accuracy of a benchmark's samples at each budget: tokens of the response, or of the thought for vLLM."""
        length = "tokens" if self.by == CUT else "thinking_tokens"
        problems = samples.read_problems(folder, benchmark)
        rows = list(samples.graded_samples(folder, benchmark))
        grader = Grader(verifier=next(iter(problems.values())).get("grader", MATH))
        accuracies = {}
        for budget in budgets:
            longer = [(row, problems[row["id"]]) for row, _ in rows if row[length] > budget]
            texts = self._answers(longer, benchmark, budget)
            pairs = [(text, samples.reference_of(problem)) for (_, problem), text in zip(longer, texts, strict=True)]
            forced = [grade.correct for grade in grader.grade_many(pairs, self.marks.end_of_thought)]
            accuracies[budget] = fmean(forced + [grade["correct"] for row, grade in rows if row[length] <= budget])
        grader.close()
        return accuracies

    def _answers(self, longer: Sequence[tuple[Row, Row]], benchmark: str, budget: int) -> list[str]:
        """The responses of (sample, problem) pairs whose thought ends at the budget."""
        requests = [self._request(row, problem, benchmark, budget) for row, problem in longer]
        texts = [text for text, _, _ in requests]
        for number, (response,) in generate(self.engine, ((ids, sampled) for _, ids, sampled in requests)):
            texts[number] += response.text
        return texts

    def _request(self, row: Row, problem: Row, benchmark: str, budget: int) -> tuple[str, Sequence[int], Row]:
        """The kept beginning of a response, the token ids that the model continues, and how."""
        prompt = prompt_ids(self.tokenizer, samples.asked(problem, self.settings["suffix"]))
        if self.by == VLLM:
            again = samples.sampling(self.settings, benchmark, row["id"], row["sample"])
            return "", prompt, {**again, "thinking_token_budget": budget}
        ids = _ids(self.tokenizer, row["text"])[:budget]
        text = str(self.tokenizer.decode(ids))
        # Once the thought has ended, only the answer is left to write.
        close = "" if self.marks.end_of_thought in text else self.marks.close_template
        greedy = {"temperature": 0, "max_tokens": ANSWER_TOKENS}
        return text + close, [*prompt, *ids, *_ids(self.tokenizer, close)], greedy


def _ids(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids

r"""Accuracy when the model is forced to answer after a budget of tokens.

    openrlhf-swap eval forced outputs/eval/base --budgets 500 1000 2000 4000

Takes the samples of an evaluation. A response longer than the budget is cut there, its thought is closed, and the
model writes an answer; a shorter response counts as is. With `--by vllm` a response whose thought is longer than the
budget is sampled again, with its own seed and the budget given to vLLM, which closes the thought by itself; the answer
may then be as long as in the evaluation. Writes `<benchmark>.forced.jsonl` (accuracy for each budget) next to the
samples; the area under the curve joins the evaluation's table.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from openrlhf_swap.command import Parser, run_command
from openrlhf_swap.config import AUTO, SwapConfig
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.evaluation.samples import (
    asked,
    forced_path,
    graded_benchmarks,
    graded_samples,
    no_samples,
    read_problems,
    read_settings,
    reference_of,
    seed_of,
)
from openrlhf_swap.files import Row, read_rows, write_rows
from openrlhf_swap.rewards import Grader
from openrlhf_swap.rewards.verifiers import MATH
from openrlhf_swap.rollouts.families import prompt_ids, resolve_thought
from openrlhf_swap.runs.model_code import add_trust_flag, refuse_model_code

CUT, VLLM = "cut", "vllm"
ANSWER_TOKENS = 64  # of an answer after a cut
Answers = Callable[[Any, Sequence[tuple[Row, Row]], int, SwapConfig, Row], list[str]]


def main(argv: list[str]) -> None:
    """Write the accuracies of every benchmark.

    Raises:
        ConfigError: for a negative budget, or a model with code of its own, unless that is allowed.
        DataError: for a folder without graded samples.
    """
    parser = Parser("openrlhf-swap eval forced", __doc__)
    parser.add_argument("folder", type=Path, help="folder of an evaluation")
    parser.add_argument("--budgets", type=int, nargs="+", required=True, help="tokens after which a response is cut")
    parser.add_argument(
        "--close-template", default=AUTO, help="text that ends the thought; \\n is a newline (auto: the model's)"
    )
    parser.add_argument(
        "--by",
        choices=[CUT, VLLM],
        default=CUT,
        help="what ends a thought at its budget: a cut in the sample, or vLLM, which samples it again (default: cut)",
    )
    parser.add_argument(
        "--max-model-len",
        type=int,
        help="limit for prompt and response (default: the longest prompt with what follows it, at most the model's)",
    )
    add_trust_flag(parser)
    args = parser.parse_args(argv)
    if (least := min(args.budgets)) < 0:
        raise ConfigError(f"--budgets has {least}; use 0 or more tokens")
    names = graded_benchmarks(args.folder)
    if not names:
        raise no_samples(f"{args.folder} holds no graded samples")
    settings = read_settings(args.folder)
    refuse_model_code(f"the model of {args.folder}", settings["model"], args.trust_remote_code)
    close = args.close_template.replace("\\n", "\n")
    marks = SwapConfig(end_of_thought=settings["end_of_thought"], close_template=close)
    llm, marks = _engine(names, settings, marks, args)
    for name in names:
        accuracies = force(args.folder, name, args.budgets, llm, marks, settings, args.by)
        rows = [
            {"budget": budget, "accuracy": accuracy, "by": args.by}
            for budget, accuracy in zip(args.budgets, accuracies, strict=True)
        ]
        path = forced_path(args.folder, name)
        others = [row for row in read_rows(path) if row.get("by", CUT) != args.by]
        write_rows(path, [*others, *rows])
        for row in rows:
            print(f"{name}: {100 * row['accuracy']:.1f}% correct when forced to answer after {row['budget']} tokens")


def _engine(
    names: Sequence[str], settings: Row, marks: SwapConfig, args: argparse.Namespace
) -> tuple[Any, SwapConfig]:
    """A vLLM engine for an evaluation's model, and the marks of its thoughts."""
    from transformers import AutoTokenizer

    from openrlhf_swap.integration.generation.engine import open_engine

    tokenizer = AutoTokenizer.from_pretrained(settings["model"], trust_remote_code=args.trust_remote_code)
    marks, messages = resolve_thought(marks, tokenizer)
    print(messages[0])
    options: dict[str, Any] = {"trust_remote_code": args.trust_remote_code}
    if args.by == VLLM:
        thought = {"reasoning_start_str": marks.start_of_thought, "reasoning_end_str": marks.end_of_thought}
        options["reasoning_config"] = thought
        written = settings["max_tokens"]
    else:
        close = tokenizer(marks.close_template, add_special_tokens=False)["input_ids"]
        written = max(args.budgets) + len(close) + ANSWER_TOKENS
    if args.max_model_len:
        options["max_model_len"] = args.max_model_len
    else:
        problems = [problem for name in names for problem in read_problems(args.folder, name).values()]
        prompts = (prompt_ids(tokenizer, asked(problem, settings["suffix"])) for problem in problems)
        options["longest"] = max(map(len, prompts)) + written
    return open_engine(settings["model"], **options), marks


def force(
    folder: Path,
    benchmark: str,
    budgets: Sequence[int],
    llm: Any,
    marks: SwapConfig,
    settings: Row,
    by: str = CUT,
) -> list[float]:
    """Accuracy of a benchmark's samples at each token budget.

    Args:
        folder: of the evaluation.
        benchmark: its name there.
        budgets: in tokens; of the response, or of the thought if vLLM ends it.
        llm: a vLLM engine.
        marks: holds the end of the thought and the text that opens the answer.
        settings: of the evaluation, as `run.json` holds them.
        by: what ends a thought at its budget.

    Raises:
        DataError: if there is no graded sample.
    """
    counted = "tokens" if by == CUT else "thinking_tokens"
    answers: Answers = _answers if by == CUT else _sampled_within
    problems = read_problems(folder, benchmark)
    rows = list(graded_samples(folder, benchmark))
    if not rows:
        raise no_samples(f"{folder} holds no graded samples of {benchmark}")
    grader = Grader(verifier=next(iter(problems.values())).get("grader", MATH))
    accuracies = []
    for budget in budgets:
        cut = [(row, problems[row["id"]]) for row, _ in rows if row[counted] > budget]
        responses = answers(llm, cut, budget, marks, {**settings, "benchmark": benchmark}) if cut else []
        pairs = [(response, reference_of(problem)) for response, (_, problem) in zip(responses, cut, strict=True)]
        forced = [grade.correct for grade in grader.grade_many(pairs, marks.end_of_thought)]
        accuracies.append(fmean(forced + [grade["correct"] for row, grade in rows if row[counted] <= budget]))
    grader.close()
    return accuracies


def _sampled_within(
    llm: Any, cut: Sequence[tuple[Row, Row]], budget: int, marks: SwapConfig, settings: Row
) -> list[str]:
    """The responses of (sample, problem) pairs, sampled again; vLLM ends thoughts after `budget` tokens."""
    from vllm import SamplingParams

    tokenizer, names = llm.get_tokenizer(), ("temperature", "top_p", "max_tokens")
    fixed = {**{name: settings[name] for name in names}, "skip_special_tokens": False, "thinking_token_budget": budget}
    seeds = [seed_of(settings["benchmark"], row["id"], row["sample"], settings["seed"]) for row, _ in cut]
    ids = [prompt_ids(tokenizer, asked(problem, settings["suffix"])) for _, problem in cut]
    prompts = [{"prompt_token_ids": prompt} for prompt in ids]
    outputs = llm.generate(prompts, [SamplingParams(seed=seed, **fixed) for seed in seeds])
    return [output.outputs[0].text for output in outputs]


def _answers(llm: Any, cut: Sequence[tuple[Row, Row]], budget: int, marks: SwapConfig, settings: Row) -> list[str]:
    """The responses of (sample, problem) pairs when the thought ends after `budget` tokens."""
    from vllm import SamplingParams

    tokenizer = llm.get_tokenizer()
    close = marks.close_template
    close_ids = tokenizer(close, add_special_tokens=False)["input_ids"]
    prompts, starts = [], []
    for row, problem in cut:
        ids = tokenizer(row["text"], add_special_tokens=False)["input_ids"][:budget]
        text = tokenizer.decode(ids)
        # Once the thought has ended, only the answer is left to write.
        is_open = marks.end_of_thought not in text
        starts.append(text + close * is_open)
        ids = prompt_ids(tokenizer, asked(problem, settings["suffix"])) + ids + close_ids * is_open
        prompts.append({"prompt_token_ids": ids})
    parameters = SamplingParams(temperature=0, max_tokens=ANSWER_TOKENS, skip_special_tokens=False)
    outputs = llm.generate(prompts, parameters)
    return [start + output.outputs[0].text for start, output in zip(starts, outputs, strict=True)]


if __name__ == "__main__":
    sys.exit(run_command(main))

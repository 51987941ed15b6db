r"""Measure how often the reference policy solves each training problem.

AdaptThink compares the policy with it.

    openrlhf-swap reference --model MODEL --dataset prompts.jsonl --input-key problem \
        --label-key answer --output reference.jsonl

Samples responses to every prompt from the policy before training, grades them, and appends one line
per prompt: `key` (of the rendered prompt), `accuracy`, `tokens`. The same command resumes where it
stopped; OUTPUT.settings.json records the model and the flags that the rows depend on, and others
are refused.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from tqdm import tqdm

from openrlhf_swap.command import Parser, check_writable, flags_called, run_command
from openrlhf_swap.config import SwapConfig
from openrlhf_swap.data.references import read_references, try_grader
from openrlhf_swap.files import Row, appending, read_rows
from openrlhf_swap.flags.configuration import (
    TEMPLATE_ARGUMENTS,
    add_template_arguments,
    parse_with_settings,
)
from openrlhf_swap.flags.stock import nested
from openrlhf_swap.generate import add_gpu_share
from openrlhf_swap.process.locks import locked_file
from openrlhf_swap.rewards import Grader
from openrlhf_swap.rewards.graded_text import text_to_grade
from openrlhf_swap.rewards.references import Reference
from openrlhf_swap.rewards.verifiers import find_verifier
from openrlhf_swap.runs.model_code import check_model_files
from openrlhf_swap.runs.provenance import grader_identity, identity, record_or_compare

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Flags of the training that have another name here: its checks name those.
TRAINING_FLAGS = {
    "--actor.model_name_or_path": "--model",
    "--data.prompt_dataset": "--dataset",
    "--data.input_key": "--input-key",
    "--data.label_key": "--label-key",
    "--data.max_len": "--max-model-len",
}


def main(argv: list[str]) -> None:
    args = parse_with_settings(_parser(), ("end_of_thought", "grader", "trust_remote_code"), argv)
    check_model_files("--model", args.model, args.trust_remote_code)
    check_writable("--output", args.output.parent)
    find_verifier(args.grader)
    with locked_file("--output", args.output):
        _continue_file(args)


def _continue_file(args: argparse.Namespace) -> None:
    """Measure the problems that the output lacks."""
    from openrlhf_swap.integration.startup.model import TriedModel
    from openrlhf_swap.rollouts.families import resolve_thought, set_template_arguments
    from openrlhf_swap.rollouts.rollout import prompt_key

    with flags_called(TRAINING_FLAGS):
        context = args.max_model_len or 0
        tokenizer = TriedModel.read(args.model, context, args.trust_remote_code).tokenizer
        set_template_arguments(tokenizer, args.chat_template_kwargs)
        config, messages = resolve_thought(
            SwapConfig(end_of_thought=args.end_of_thought), tokenizer
        )
        references = _references(args, tokenizer)
        try_grader(args.grader, list(references.values()))
    record_or_compare(args.output, _settings(args))
    done = {row["key"] for row in read_rows(args.output)}
    left = {}
    for prompt, reference in references.items():
        if prompt_key(prompt) not in done:
            left[prompt] = reference
    if not left:
        print(f"{args.output} is complete")
        return
    print(messages[0])
    _measure(args, config, tokenizer, left)


def _settings(args: argparse.Namespace) -> Row:
    """What the rows depend on, by flag."""
    return {
        "--model": identity(args.model),
        "--temperature": args.temperature,
        "--top-p": args.top_p,
        "--max-tokens": args.max_tokens,
        "--samples": args.samples,
        "--max-model-len": args.max_model_len,
        TEMPLATE_ARGUMENTS: args.chat_template_kwargs,
        "--swap.end_of_thought": args.end_of_thought,
        "--swap.grader": grader_identity(args.grader),
    }


def _measure(
    args: argparse.Namespace,
    config: SwapConfig,
    tokenizer: PreTrainedTokenizerBase,
    references: dict[str, Reference],
) -> None:
    """Sample and grade responses to each rendered prompt, and append its row."""
    from openrlhf_swap.generate import generate, open_engine
    from openrlhf_swap.objectives.peers.formats import is_right
    from openrlhf_swap.rollouts.rollout import prompt_key

    prompts = list(references)
    end = config.end_of_thought
    # As ids, like in training: vLLM would put a second beginning-of-text token before a rendered
    # prompt.
    ids = tokenizer(prompts, add_special_tokens=False)["input_ids"]
    longest = max(map(len, ids)) + args.max_tokens
    share = args.gpu_memory_utilization
    trusted = args.trust_remote_code
    engine = open_engine(args.model, longest, args.max_model_len, share, trust_remote_code=trusted)
    grader = Grader(verifier=args.grader)
    sampling = {"temperature": args.temperature, "top_p": args.top_p, "max_tokens": args.max_tokens}
    requests = [(row, {**sampling, "n": args.samples}) for row in ids]
    with appending(args.output) as append, tqdm(total=len(prompts), unit="problem") as bar:
        for number, responses in generate(engine, requests):
            prompt = prompts[number]
            texts = [response.text for response in responses]
            pairs = [(text_to_grade(prompt, text, end), references[prompt]) for text in texts]
            grades = grader.grade_many(pairs, end)
            right = []
            for grade, text in zip(grades, texts, strict=True):
                right.append(is_right(grade.correct, prompt, text, config))
            tokens = fmean(len(response.token_ids) for response in responses)
            append({"key": prompt_key(prompt), "accuracy": fmean(right), "tokens": tokens})
            bar.update()
    grader.close()


def _parser() -> Parser:
    parser = Parser("openrlhf-swap reference", __doc__)
    add = parser.add_argument
    add("--model", required=True, help="the reference policy: folder or hub id")
    add("--dataset", required=True, help="the prompts of the training: file, folder or hub id")
    add("--output", type=Path, required=True, help="JSONL to write, or to continue")
    add("--input-key", default="problem", help="column of the problems")
    add("--label-key", default="answer", help="column of the reference answers")
    add_template_arguments(parser)
    add("--split", default="train", help="split of the data set")
    add("--samples", type=int, default=16, help="responses per problem")
    add("--temperature", type=float, default=0.6)
    add("--top-p", type=float, default=0.95)
    text = "longest response, as in training (default: %(default)s)"
    add("--max-tokens", type=int, default=12000, help=text)
    text = "limit for prompt and response (default: the longest one)"
    add("--max-model-len", type=int, help=text)
    add_gpu_share(parser)
    return parser


def _references(
    args: argparse.Namespace, tokenizer: PreTrainedTokenizerBase
) -> dict[str, Reference]:
    """The reference answer to each training prompt, by rendered prompt, without empty prompts."""
    from openrlhf_swap.integration.startup.data import load_prompts, render_prompts

    training = nested(
        {
            "data.prompt_dataset": args.dataset,
            "data.prompt_split": args.split,
            "data.input_key": args.input_key,
            "data.label_key": args.label_key,
            "data.input_template": None,
            "data.max_samples": sys.maxsize,
            "data.apply_chat_template": True,
            "train.seed": 0,
            "eval.dataset": None,
        }
    )
    rows = load_prompts(training)
    prompts = render_prompts(rows, training, tokenizer)
    source = f"--dataset is {args.dataset}"
    references = read_references(rows, args.input_key, args.label_key, args.grader, source)
    by_prompt = dict(zip(prompts, references, strict=True))
    by_prompt.pop("", None)
    return by_prompt


if __name__ == "__main__":
    sys.exit(run_command(main))

r"""How often the reference policy solves each training problem: what AdaptThink compares with.

    python -m openrlhf_swap.reference --model MODEL --dataset prompts.jsonl --input-key problem --label-key answer \
        --output reference.jsonl

Samples every prompt with the policy before training, grades, and appends one line a prompt: `key` (of the prompt as
the chat template renders it), `accuracy`, `tokens`. Started again, it goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace

from openrlhf_swap.errors import DataError, SwapError

PROMPTS_AT_A_TIME = 64


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status: 0, or 2 after a one-line error."""
    parser = argparse.ArgumentParser(
        prog="python -m openrlhf_swap.reference",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", required=True, help="the reference policy: folder or hub id")
    parser.add_argument("--dataset", required=True, help="the prompts of the training: file, folder or hub id")
    parser.add_argument("--output", type=Path, required=True, help="JSONL to write, or to go on with")
    parser.add_argument("--input-key", default="problem", help="column of the problems")
    parser.add_argument("--label-key", default="answer", help="column of the known answers")
    parser.add_argument("--split", default="train", help="split of the data set")
    parser.add_argument("--samples", type=int, default=16, help="responses a problem")
    parser.add_argument("--temperature", type=float, default=0.6)
    parser.add_argument("--top-p", type=float, default=0.95)
    parser.add_argument("--max-tokens", type=int, default=12000, help="longest response, as in training (12000)")
    parser.add_argument("--max-model-len", type=int, default=None, help="longest prompt and response; the model's")
    args = parser.parse_args(argv)
    try:
        measure(args)
        return 0
    except SwapError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def measure(args: argparse.Namespace) -> None:
    """Sample and grade what `args.output` does not hold yet."""
    from tqdm import tqdm

    from openrlhf_swap.checks import check_model, load_rows, render_prompts
    from openrlhf_swap.generation import open_engine
    from openrlhf_swap.objectives.adaptthink import is_right, prompt_key
    from openrlhf_swap.rewards import Grader

    tokenizer = check_model(args.model, args.max_model_len or 0)
    data = SimpleNamespace(
        data=SimpleNamespace(
            prompt_dataset=args.dataset,
            prompt_probs=None,
            prompt_split=args.split,
            max_samples=sys.maxsize,
            input_key=args.input_key,
            label_key=args.label_key,
            input_template=None,
            apply_chat_template=True,
        ),
        train=SimpleNamespace(seed=0),
    )
    rows = list(load_rows(data))
    for flag, key in (("--input-key", args.input_key), ("--label-key", args.label_key)):
        if rows and key not in rows[0]:
            raise DataError(f"{flag} is {key}, but {args.dataset} has no such column; it has: {', '.join(rows[0])}")
    prompts = render_prompts(rows, data, tokenizer)
    done = set()
    if args.output.exists():
        done = {json.loads(line)["key"] for line in complete_lines(args.output)}
    left = {prompt_key(p): (p, str(row[args.label_key])) for p, row in zip(prompts, rows, strict=True) if p}
    left = [(key, *values) for key, values in left.items() if key not in done]
    if not left:
        print(f"{args.output} is complete")
        return

    from vllm import SamplingParams

    sampling = SamplingParams(
        n=args.samples,
        temperature=args.temperature,
        top_p=args.top_p,
        max_tokens=args.max_tokens,
        skip_special_tokens=False,
    )
    engine = open_engine(args.model, **({"max_model_len": args.max_model_len} if args.max_model_len else {}))
    grader = Grader()
    args.output.parent.mkdir(parents=True, exist_ok=True)
    with open(args.output, "a", encoding="utf-8") as file, tqdm(total=len(left), unit="problem") as bar:
        for start in range(0, len(left), PROMPTS_AT_A_TIME):
            part = left[start : start + PROMPTS_AT_A_TIME]
            # As ids, as in the training: vLLM would put a second beginning-of-text token before a rendered prompt.
            ids = tokenizer([prompt for _, prompt, _ in part], add_special_tokens=False)["input_ids"]
            outputs = engine.generate([{"prompt_token_ids": row} for row in ids], sampling, use_tqdm=False)
            for (key, _, answer), output in zip(part, outputs, strict=True):
                texts = [response.text for response in output.outputs]
                grades = grader.grade_many([(text, answer) for text in texts])
                right = [is_right(grade.correct, text) for grade, text in zip(grades, texts, strict=True)]
                line = {
                    "key": key,
                    "accuracy": fmean(right),
                    "tokens": fmean(len(response.token_ids) for response in output.outputs),
                }
                file.write(json.dumps(line) + "\n")
            file.flush()
            bar.update(len(part))
    grader.close()


def complete_lines(path: Path) -> list[str]:
    """The lines of a file that end; an unfinished last one, left by a stop, is cut off the file."""
    text = path.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        path.write_text(whole, encoding="utf-8")
    return whole.splitlines()


if __name__ == "__main__":
    sys.exit(main())

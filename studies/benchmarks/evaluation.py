"""What `eval run` adds to generation: its sampler against a bare `generate` of the same engine.

    python -m studies.benchmarks.evaluation [--model FOLDER]

Both run the same prompts, settings and seeds in turn, each first equally often; the engine's prefix
cache is reset before each. Prints the ratio of tokens per second.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from openrlhf_swap.evaluation.generate import EvaluationEngine, SampleRequest
from openrlhf_swap.evaluation.samples import sampling
from openrlhf_swap.files import appending, read_rows
from openrlhf_swap.quickstart import POLICY
from openrlhf_swap.quickstart.addition import problems
from openrlhf_swap.rollouts.families import prompt_ids


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default=str(POLICY), help="folder or hub id")
    parser.add_argument(
        "--problems", type=int, default=200, help="distinct prompts (default: %(default)s)"
    )
    parser.add_argument(
        "--samples", type=int, default=4, help="responses to each (default: %(default)s)"
    )
    parser.add_argument(
        "--tokens", type=int, default=320, help="most tokens of a response (default: %(default)s)"
    )
    parser.add_argument(
        "--repeats",
        type=int,
        default=4,
        help="runs of each side, an even number (default: %(default)s)",
    )
    args = parser.parse_args()

    from vllm import SamplingParams

    sampler = EvaluationEngine(args.model, max_model_len=args.tokens + 100)
    llm = sampler.engine
    settings = {
        "temperature": 1.0,
        "top_p": 1.0,
        "max_tokens": args.tokens,
        "seed": 0,
        "end_of_thought": "</think>",
    }
    texts = [
        problem.question for problem, _ in zip(problems(0), range(args.problems), strict=False)
    ]
    requests = [
        SampleRequest("b", str(number), sample, text)
        for number, text in enumerate(texts)
        for sample in range(args.samples)
    ]

    def ours() -> int:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "b.jsonl"
            with appending(file) as append:
                for _, row in sampler.sample(requests, settings):
                    append(row)
            tokens = sum(row["tokens"] for row in read_rows(file))
        return tokens

    def bare() -> int:
        prompts = [
            {"prompt_token_ids": prompt_ids(llm.get_tokenizer(), request.text)}
            for request in requests
        ]
        ways = [
            sampling(settings, request.benchmark, request.id, request.sample)
            for request in requests
        ]
        parameters = [SamplingParams(**way, skip_special_tokens=False) for way in ways]
        outputs = llm.generate(prompts, parameters, use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs)

    def speed(side: Callable[[], int]) -> float:
        llm.reset_prefix_cache()
        start = time.perf_counter()
        return side() / (time.perf_counter() - start)

    ours()  # warms up
    speeds: dict[Callable[[], int], list[float]] = {ours: [], bare: []}
    for repeat in range(args.repeats):
        for side in (ours, bare) if repeat % 2 else (bare, ours):
            speeds[side].append(speed(side))
    for side, rates in speeds.items():
        print(f"{side.__name__:5} tokens per second: {' '.join(f'{rate:.0f}' for rate in rates)}")
    ratio = median(speeds[ours]) / median(speeds[bare])
    print(
        f"ratio {ratio:.2f}: tokens per second of evaluation, to those of bare vLLM (medians of "
        f"{args.repeats})"
    )


if __name__ == "__main__":
    main()

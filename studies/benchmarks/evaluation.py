"""What `eval run` adds to generation: its sampler against a bare `generate` of the same engine.

    python -m studies.benchmarks.evaluation [--model FOLDER]

Both run the same prompts, settings and seeds in turn, each first equally often; the engine's prefix
cache is reset before each. Prints the ratio of tokens per second.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from statistics import median

from openrlhf_swap.evaluation.generate import EvaluationEngine, SampleRequest
from openrlhf_swap.evaluation.samples import sampling
from openrlhf_swap.files import appending, read_rows
from openrlhf_swap.quickstart import POLICY
from openrlhf_swap.quickstart.addition import problems
from openrlhf_swap.rollouts.families import prompt_ids


class Sides:
    """The same requests, sampled by the evaluation and by bare vLLM."""

    def __init__(self, model: str, requests: Sequence[SampleRequest], tokens: int) -> None:
        self._sampler = EvaluationEngine(model, max_model_len=tokens + 100)
        self._requests = requests
        self._settings = {
            "temperature": 1.0,
            "top_p": 1.0,
            "max_tokens": tokens,
            "seed": 0,
            "end_of_thought": "</think>",
        }

    def ours(self) -> int:
        """Sample as the evaluation does, into a file; returns the tokens."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "b.jsonl"
            with appending(file) as append:
                for _, row in self._sampler.sample(self._requests, self._settings):
                    append(row)
            return sum(row["tokens"] for row in read_rows(file))

    def bare(self) -> int:
        """Let vLLM sample all at once; returns the tokens."""
        from vllm import SamplingParams

        engine = self._sampler.engine
        prompts = []
        parameters = []
        for request in self._requests:
            ids = prompt_ids(engine.get_tokenizer(), request.text)
            way = sampling(self._settings, request.benchmark, request.id, request.sample)
            prompts.append({"prompt_token_ids": ids})
            parameters.append(SamplingParams(**way, skip_special_tokens=False))
        outputs = engine.generate(prompts, parameters, use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs)

    def speed(self, side: Callable[[], int]) -> float:
        """Tokens a second of one of both, with an empty cache."""
        self._sampler.engine.reset_prefix_cache()
        start = time.perf_counter()
        return side() / (time.perf_counter() - start)


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
    repeats_help = "runs of each side, an even number (default: %(default)s)"
    parser.add_argument("--repeats", type=int, default=4, help=repeats_help)
    args = parser.parse_args()

    requests = []
    for number, problem in enumerate(islice(problems(0), args.problems)):
        for sample in range(args.samples):
            requests.append(SampleRequest("b", str(number), sample, problem.question))
    sides = Sides(args.model, requests, args.tokens)
    sides.ours()  # warms up
    ours = []
    bare = []
    for repeat in range(args.repeats):
        if repeat % 2:
            ours.append(sides.speed(sides.ours))
            bare.append(sides.speed(sides.bare))
        else:
            bare.append(sides.speed(sides.bare))
            ours.append(sides.speed(sides.ours))
    for name, speeds in (("ours", ours), ("bare", bare)):
        print(f"{name:5} tokens per second: {' '.join(f'{speed:.0f}' for speed in speeds)}")
    print(
        f"ratio {median(ours) / median(bare):.2f}: tokens per second of evaluation, to those of "
        f"bare vLLM (medians of {args.repeats})"
    )


if __name__ == "__main__":
    main()

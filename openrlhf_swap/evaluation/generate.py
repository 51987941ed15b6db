"""Sample responses with vLLM and write each as it finishes.

There is one engine in this process, or several that Ray places.
"""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from openrlhf_swap.errors import ConfigError, RunError, reader_errors
from openrlhf_swap.evaluation.samples import BUDGET, RENDERING, SETTINGS, SampleFiles, sampling
from openrlhf_swap.files import Row, appending
from openrlhf_swap.generate import close_engine, generate, open_engine
from openrlhf_swap.packages import is_cpu_build
from openrlhf_swap.rewards.graded_text import closes_thought
from openrlhf_swap.rollouts.families import prompt_ids, set_template_arguments
from openrlhf_swap.runs.diagnostics import is_looping

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase
    from vllm import LLM, CompletionOutput

    from openrlhf_swap.integration.budget import ThoughtBudget
    from openrlhf_swap.rollouts.reader import ResponseReader

MARK = "[evaluation]"
LOG = "evaluate.log"
ENGINE_FLAGS = "--engines, --tensor-parallel-size"
START_SECONDS = 3600  # that engines may take to start
SAMPLE_SECONDS = 4 * 3600  # that some sample may take: 32,768 tokens, of which a second brings 2.3


@dataclass(frozen=True)
class SampleRequest:
    """One sample to generate; `text` is the problem as it is asked."""

    benchmark: str
    id: str
    sample: int
    text: str


def read_tokenizer(model: str, trust_remote_code: bool, settings: Row) -> PreTrainedTokenizerBase:
    """The tokenizer of `--model`, which renders as the settings say.

    Raises ConfigError if it cannot be read.
    """
    from transformers import AutoTokenizer

    with reader_errors(f"--model is {model}, which cannot be read: {{reason}}", ConfigError):
        tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=trust_remote_code)
    set_template_arguments(tokenizer, *map(settings.get, RENDERING))
    return tokenizer


class EvaluationEngine:
    """A vLLM engine that samples responses, in this process or in a Ray actor's."""

    def __init__(self, model: str, **options: Any) -> None:
        """Start the engine for a hub id or folder; returns when it is ready.

        The options are those of `open_engine`.
        """
        self.engine = open_engine(model, **options)

    def sample(self, requests: Sequence[SampleRequest], settings: Row) -> Iterator[tuple[str, Row]]:
        """Yield the benchmark and the row of each sample as it finishes.

        `settings` are the evaluation's `SETTINGS`, with a `BUDGET` of the thought and its
        `close_template` where there is one. A problem that does not fit the model's context gets
        an empty response that counts as cut off.
        """
        # They import torch, which the checks before the engine do not need.
        from openrlhf_swap.integration.budget import ThoughtBudget
        from openrlhf_swap.rollouts.reader import ResponseReader

        tokenizer = self.engine.get_tokenizer()
        set_template_arguments(tokenizer, *map(settings.get, RENDERING))
        reader = ResponseReader(tokenizer, settings["end_of_thought"])
        budget = None
        if settings.get(BUDGET) is not None:
            budget = ThoughtBudget(settings[BUDGET], settings["close_template"], reader)
        prompts = {}
        for request in requests:
            if request.text not in prompts:
                prompts[request.text] = prompt_ids(tokenizer, request.text)
        asked = []
        for request in requests:
            arguments = sampling(settings, request.benchmark, request.id, request.sample)
            asked.append((prompts[request.text], arguments))
        for number, sampled in generate_within(self.engine, asked, budget):
            request = requests[number]
            row = _sample_row(request, prompts[request.text], sampled.response, reader)
            if sampled.was_closed:
                row["closed_by_budget"] = True
            yield request.benchmark, row

    def close(self) -> None:
        """Free what the engine holds, so that another can be opened."""
        close_engine(self.engine)


@dataclass(frozen=True)
class Sampled:
    """A response, and whether a budget closed its thought."""

    response: CompletionOutput
    was_closed: bool = False


def generate_within(
    engine: LLM, asked: Sequence[tuple[list[int], Row]], budget: ThoughtBudget | None
) -> Iterator[tuple[int, Sampled]]:
    """Generate one response to each request; thoughts stay within a budget, if there is one.

    A request has the tokens of a prompt, and the arguments of vLLM's SamplingParams. Yields the
    number of each request as it finishes; those whose budget is spent go on after all others.
    """
    if budget is None:
        for number, (response,) in generate(engine, asked):
            yield number, Sampled(response)
        return
    first = []
    for prompt, arguments in asked:
        limit = budget.first_limit(prompt, arguments["max_tokens"])
        first.append((prompt, {**arguments, "max_tokens": limit}))
    waiting = []
    second = []
    for number, (response,) in generate(engine, first):
        prompt, arguments = asked[number]
        rest = budget.rest(prompt, response, arguments["max_tokens"], arguments.get("seed"))
        if rest is None:
            yield number, Sampled(response)
            continue
        waiting.append((number, rest))
        changes = {"max_tokens": rest.max_tokens, "seed": rest.seed}
        second.append((rest.ids, {**arguments, **changes}))
    for place, (response,) in generate(engine, second):
        number, rest = waiting[place]
        yield number, Sampled(rest.joined(response), was_closed=bool(rest.close))


def _sample_row(
    request: SampleRequest,
    prompt: list[int],
    response: CompletionOutput,
    reader: ResponseReader,
) -> Row:
    """The line of a sample.

    `thinking_tokens` counts through the end of the thought, or all tokens if it is open. The
    response to a prompt that closes the thought has none, and is `closed_by_prompt`.
    """
    ids = list(response.token_ids)
    thought = reader.thought_length(ids)
    row: Row = {
        "id": request.id,
        "sample": request.sample,
        "text": response.text,
        "tokens": len(ids),
        "thinking_tokens": len(ids) if thought is None else thought + reader.end_tokens,
        "truncated": response.finish_reason == "length",
        "looping": is_looping(ids),
    }
    if closes_thought(reader.text(prompt), reader.end_of_thought):
        row["thinking_tokens"] = 0
        row["closed_by_prompt"] = True
    return row


def sample(args: Namespace, requests: Sequence[SampleRequest], total: int) -> None:
    """Generate with a progress bar, and append each sample to its file as it finishes.

    The bar starts when the engines are ready, and ends at `total` samples, of which earlier starts
    have made those that are not in `requests`.
    """
    tokenizer = read_tokenizer(args.model, args.trust_remote_code, vars(args))
    texts = {request.text for request in requests}
    longest_prompt = max((len(prompt_ids(tokenizer, text)) for text in texts), default=0)
    options = {
        "tensor_parallel_size": args.tensor_parallel_size,
        "trust_remote_code": args.trust_remote_code,
        "max_model_len": args.max_model_len,
        "gpu_memory_utilization": args.gpu_memory_utilization,
        "longest": longest_prompt + args.max_tokens,
    }
    settings = {name: getattr(args, name) for name in SETTINGS}
    if args.thought_budget is not None:
        settings |= {BUDGET: args.thought_budget, "close_template": args.close_template}
    with ExitStack() as stack:
        if args.engines == 1:
            engine = EvaluationEngine(args.model, **options)
            stack.callback(engine.close)
            rows = engine.sample(requests, settings)
        else:
            rows = sample_with_ray(args, requests, settings, options)
        append = {}
        for name in {request.benchmark for request in requests}:
            file = appending(SampleFiles(args.output, name).path("samples"))
            append[name] = stack.enter_context(file)
        done = total - len(requests)
        bar = tqdm(rows, f"{MARK} sampling", total, initial=done, unit="sample", mininterval=1)
        for name, row in bar:
            append[name](row)


def sample_with_ray(
    args: Namespace,
    requests: Sequence[SampleRequest],
    settings: Row,
    options: dict[str, Any],
) -> Iterator[tuple[str, Row]]:
    """Split the requests among engines, and yield their rows as they finish.

    Raises ConfigError when there are too few GPUs or CPUs, RunError for engines that do not start.
    """
    # It imports torch, which the checks before the engines do not need.
    from openrlhf_swap.integration.startup.ray import check_address, wait_for_places

    gpus = 0 if is_cpu_build() else args.tensor_parallel_size
    if "RAY_ADDRESS" in os.environ:
        check_address(os.environ["RAY_ADDRESS"])
    else:
        check_enough_gpus(args.engines, gpus)
    import ray

    ray.init(ignore_reinit_error=True, include_dashboard=False)
    place = {"GPU": gpus, "CPU": 1} if gpus else {"CPU": 1}
    wait_for_places(args.engines, place, ENGINE_FLAGS)
    actor = ray.remote(num_gpus=gpus, num_cpus=1)(EvaluationEngine)
    engines = [actor.remote(args.model, **options) for _ in range(args.engines)]
    starts = [engine.__ray_ready__.remote() for engine in engines]
    started, _ = ray.wait(starts, num_returns=len(starts), timeout=START_SECONDS)
    if len(started) < len(starts):
        raise RunError(
            f"{len(started)} of {len(starts)} engines have started within {START_SECONDS} s; look "
            f"at the end of {args.output / LOG}, and start again"
        )
    ray.get(starts)
    streams = []
    for number, engine in enumerate(engines):
        part = requests[number :: args.engines]
        streams.append(engine.sample.options(num_returns="streaming").remote(part, settings))
    return _rows_of(streams)


def _rows_of(streams: list[Any]) -> Iterator[tuple[str, Row]]:
    """The rows of Ray's generators as they come.

    Raises an engine's error at once, and RunError when no engine has finished a sample for hours.
    """
    import ray

    while streams:
        ready, _ = ray.wait(streams, timeout=SAMPLE_SECONDS)
        if not ready:
            raise RunError(
                f"no sample was finished within {SAMPLE_SECONDS} s: an engine is stuck; the same "
                "command goes on with the samples that are missing"
            )
        (stream,) = ready
        try:
            row = ray.get(next(stream))
        except StopIteration:
            streams.remove(stream)
        else:
            yield row
    ray.shutdown()


def check_enough_gpus(engines: int, size: int) -> None:
    """Raise ConfigError unless this machine has the GPUs for so many engines of `size` GPUs.

    With too few, Ray would wait silently.
    """
    import torch

    there = torch.cuda.device_count()
    if there < engines * size:
        raise ConfigError(
            f"--engines {engines} x --tensor-parallel-size {size} takes {engines * size} GPUs, "
            f"but {there} are here; use fewer, see nvidia-smi, or set RAY_ADDRESS to a cluster"
        )

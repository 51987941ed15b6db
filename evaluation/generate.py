"""Sample responses with vLLM and write each as it finishes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openrlhf_swap.errors import ConfigError, reader_errors
from openrlhf_swap.evaluation.samples import seed_of
from openrlhf_swap.files import Row, appending
from openrlhf_swap.rollouts.families import prompt_ids
from openrlhf_swap.rollouts.reader import ResponseReader

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

QUEUE = 1024  # requests in the engine at a time: enough to keep it busy, few enough to start quickly


@dataclass(frozen=True)
class SamplingSettings:
    """Sampling parameters."""

    temperature: float
    top_p: float
    max_tokens: int
    seed: int


@dataclass(frozen=True)
class SampleRequest:
    """One sample to generate; `text` is the problem as it is asked."""

    benchmark: str
    id: str
    sample: int
    text: str


def read_tokenizer(model: str, trust_remote_code: bool) -> PreTrainedTokenizerBase:
    """The tokenizer of `--model`; raises ConfigError if it cannot be read."""
    from transformers import AutoTokenizer

    with reader_errors(f"--model is {model}, which cannot be read: {{reason}}", ConfigError):
        return AutoTokenizer.from_pretrained(model, trust_remote_code=trust_remote_code)


def longest_sequence(
    tokenizer: PreTrainedTokenizerBase, requests: Sequence[SampleRequest], settings: SamplingSettings
) -> int:
    """Tokens of the longest prompt and of the longest response to it."""
    texts = {request.text for request in requests}
    return max(len(prompt_ids(tokenizer, text)) for text in texts) + settings.max_tokens


def check_gpus(engines: int, size: int) -> None:
    """Count the GPUs of this machine, for which Ray would wait silently.

    Raises:
        ConfigError: when there are too few for so many engines of `size` GPUs.
    """
    import torch

    if (there := torch.cuda.device_count()) < engines * size:
        raise ConfigError(
            f"--engines {engines} x --tensor-parallel-size {size} takes {engines * size} GPUs, but {there} are here; "
            "use fewer, see nvidia-smi, or set RAY_ADDRESS to a cluster"
        )


class Sampler:
    """A vLLM engine, in this process or in a Ray actor's."""

    def __init__(self, model: str, **options: Any) -> None:
        """Start the engine for a hub id or folder, with vLLM's options; returns when it is ready."""
        from openrlhf_swap.integration.generation.engine import open_engine

        self._llm = open_engine(model, **options)

    def generate(
        self,
        requests: Sequence[SampleRequest],
        settings: SamplingSettings,
        end_of_thought: str,
        files: dict[str, Path],
    ) -> Iterator[int]:
        """Sample all requests, append each to its benchmark's file in `files`, and yield the samples' token counts.

        A problem that does not fit the model's context gets an empty response that counts as cut off.
        `end_of_thought` closes a thought.
        """
        with ExitStack() as stack:
            append = {name: stack.enter_context(appending(path)) for name, path in files.items()}
            for request, row in _sampled(self._llm, requests, settings, end_of_thought):
                append[request.benchmark](row)
                yield row["tokens"]

    def generate_all(self, *arguments: Any) -> None:
        """Run `generate` to completion."""
        for _ in self.generate(*arguments):
            pass


def _sampled(
    llm: Any, requests: Sequence[SampleRequest], settings: SamplingSettings, end_of_thought: str
) -> Iterator[tuple[SampleRequest, Row]]:
    """Each request with its row of the samples file, as it finishes."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    engine, tokenizer = llm.llm_engine, llm.get_tokenizer()
    reader = ResponseReader(tokenizer, end_of_thought)
    # Only complete responses are read; otherwise vLLM would build an output for every token.
    fixed = {"skip_special_tokens": False, "output_kind": RequestOutputKind.FINAL_ONLY}
    left = iter(enumerate(requests))
    while True:
        while engine.get_num_unfinished_requests() < QUEUE and (entry := next(left, None)) is not None:
            number, request = entry
            ids = prompt_ids(tokenizer, request.text)
            if len(ids) < engine.model_config.max_model_len:
                seed = seed_of(request.benchmark, request.id, request.sample, settings.seed)
                parameters = SamplingParams(**{**asdict(settings), "seed": seed}, **fixed)
                engine.add_request(str(number), {"prompt_token_ids": ids}, parameters)
            else:
                yield request, _row(request, "", [], "length", reader)
        if not engine.has_unfinished_requests():
            return
        for output in engine.step():
            request, response = requests[int(output.request_id)], output.outputs[0]
            yield request, _row(request, response.text, list(response.token_ids), response.finish_reason, reader)


def _row(request: SampleRequest, text: str, ids: list[int], finish_reason: str, reader: ResponseReader) -> Row:
    """A row of the samples file; `thinking_tokens` counts through the end of the thought, or all if it is open."""
    before = reader.thought_length(ids)
    thinking = len(ids) if before is None else before + reader.end_tokens
    counts = {"tokens": len(ids), "thinking_tokens": thinking, "truncated": finish_reason == "length"}
    return {"id": request.id, "sample": request.sample, "text": text, **counts}

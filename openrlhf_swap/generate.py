"""Responses of a model by vLLM, for the commands that only generate, on GPUs or on a CPU."""

from __future__ import annotations

import argparse
import atexit
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from openrlhf_swap.packages import is_cpu_build

if TYPE_CHECKING:
    from vllm import LLM, CompletionOutput

# Responses that the engine works on at a time: enough to keep it busy, few enough to start quickly.
QUEUE = 1024


def add_gpu_share(parser: argparse.ArgumentParser) -> None:
    """Add the flag by which an engine leaves room on its GPU."""
    parser.add_argument(
        "--gpu-memory-utilization",
        type=_share,
        help="share of a GPU's memory that an engine takes, such as 0.2 beside a training "
        "(default: vLLM's)",
    )


def _share(word: str) -> float:
    """A share of a whole, above 0 and at most 1; raises ArgumentTypeError, as argparse wants."""
    try:
        share = float(word)
    except ValueError:
        share = 0.0
    if 0 < share <= 1:
        return share
    raise argparse.ArgumentTypeError(f"{word!r} is no share; use more than 0 and at most 1")


def open_engine(
    model: str,
    longest: int | None = None,
    max_model_len: int | None = None,
    gpu_memory_utilization: float | None = None,
    **options: Any,
) -> LLM:
    """A vLLM engine in this process.

    Its KV cache outlives the object: call `close_engine` before another engine is opened.

    Args:
        model: a hub id or folder.
        longest: tokens of the longest prompt and response together.
        max_model_len: the engine's context in tokens; by default `longest`, or less if the model's
            own context is shorter.
        gpu_memory_utilization: the share of a GPU's memory that the engine takes; vLLM's own for
            None, and little on a CPU.
        options: for `vllm.LLM`; they override ours.
    """
    # Imports torch, before vLLM is imported.
    from openrlhf_swap.integration.patches import CPU_COMMAND, CPU_ENGINE, install
    from openrlhf_swap.integration.runtime.cpu import WHOLE_PROMPTS

    _use_own_temporary_folder()
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # otherwise fifty lines a start
    defaults: dict[str, Any] = {"dtype": "bfloat16"}
    if is_cpu_build():
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
        install(CPU_COMMAND)
        install(CPU_ENGINE)
        defaults |= {"enforce_eager": True, "gpu_memory_utilization": 0.2, **WHOLE_PROMPTS}

    from vllm import LLM, EngineArgs

    options = {**defaults, **options}
    if gpu_memory_utilization is not None:
        options["gpu_memory_utilization"] = gpu_memory_utilization
    if max_model_len is None and longest is not None:
        # vLLM knows a model's context: rope scaling and the tokenizer's limit change what its
        # configuration says.
        config = EngineArgs(model, **options).create_model_config()
        max_model_len = min(longest, config.max_model_len)
    return LLM(model, max_model_len=max_model_len, **options)


@cache
def _use_own_temporary_folder() -> None:
    """Give vLLM a temporary folder that goes with this process: it leaves sockets and files."""
    folder = os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix="vllm_")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)


def close_engine(engine: LLM) -> None:
    """Free what an engine of `open_engine` holds; it cannot generate afterwards."""
    engine.llm_engine.engine_core.shutdown()


def generate(
    engine: LLM, requests: Iterable[tuple[Sequence[int], Mapping[str, Any]]]
) -> Iterator[tuple[int, list[CompletionOutput]]]:
    """Generate responses, and yield each request's number, from 0, with its finished responses.

    A request has the token ids of a prompt, and the arguments of vLLM's SamplingParams. Responses
    to a prompt that is too long for the engine are empty and count as cut off.
    """
    from vllm import CompletionOutput, SamplingParams
    from vllm.sampling_params import RequestOutputKind

    core = engine.llm_engine
    # Only complete responses are read; otherwise vLLM would build an output for every token.
    fixed = {"skip_special_tokens": False, "output_kind": RequestOutputKind.FINAL_ONLY}
    waiting = enumerate(requests)
    while True:
        while core.get_num_unfinished_requests() < QUEUE:
            entry = next(waiting, None)
            if entry is None:
                break
            number, (prompt, sampling) = entry
            if len(prompt) < core.model_config.max_model_len:
                tokens = {"prompt_token_ids": prompt}
                core.add_request(str(number), tokens, SamplingParams(**sampling, **fixed))
            else:
                empty = CompletionOutput(0, "", [], None, None, finish_reason="length")
                yield number, [empty] * sampling.get("n", 1)
        if not core.has_unfinished_requests():
            return
        for output in core.step():
            yield int(output.request_id), output.outputs

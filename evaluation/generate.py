"""Sample responses with vLLM and write each as it finishes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluation.samples import seed_of
from openrlhf_swap.answers import END_OF_THOUGHT

# Requests that wait in the engine at a time: enough to keep it busy, few enough to start at once.
QUEUE = 1024


@dataclass(frozen=True)
class Sampling:
    """How to sample."""

    temperature: float
    top_p: float
    max_tokens: int
    seed: int


@dataclass(frozen=True)
class Task:
    """One sample to generate."""

    benchmark: str
    id: str
    sample: int
    problem: str


def generate(
    model: str,
    tasks: Sequence[Task],
    sampling: Sampling,
    suffix: str,
    files: dict[str, Path],
    on_sample: Callable[[int], None] | None,
    **engine_options: Any,
) -> None:
    """Sample every task and append it to its benchmark's file.

    A problem that does not fit the model's context gets an empty response that counts as cut off.

    Args:
        model: folder or hub id.
        tasks: what to sample.
        sampling: how.
        suffix: text after each problem.
        files: where to, by benchmark.
        on_sample: called with the tokens of each finished sample, if given.
        engine_options: of `vllm.LLM`.
    """
    from openrlhf_swap.generation import open_engine

    llm = open_engine(model, **engine_options)
    from vllm import SamplingParams

    tokenizer = llm.get_tokenizer()
    close = tokenizer(END_OF_THOUGHT, add_special_tokens=False)["input_ids"]
    engine = llm.llm_engine
    longest = engine.model_config.max_model_len
    left = iter(enumerate(tasks))
    open_files = {name: open(path, "a", encoding="utf-8") for name, path in files.items()}  # noqa: SIM115

    def write(task: Task, row: dict[str, Any]) -> None:
        open_files[task.benchmark].write(json.dumps(row, ensure_ascii=False) + "\n")
        open_files[task.benchmark].flush()
        if on_sample is not None:
            on_sample(row["tokens"])

    try:
        while True:
            while engine.get_num_unfinished_requests() < QUEUE and (entry := next(left, None)) is not None:
                number, task = entry
                ids = prompt_ids(tokenizer, task.problem + suffix)
                if len(ids) >= longest:
                    write(task, _row(task, "", [], "length", close))
                    continue
                parameters = SamplingParams(
                    temperature=sampling.temperature,
                    top_p=sampling.top_p,
                    max_tokens=sampling.max_tokens,
                    seed=seed_of(task.benchmark, task.id, task.sample, sampling.seed),
                    skip_special_tokens=False,
                )
                engine.add_request(str(number), {"prompt_token_ids": ids}, parameters)
            if not engine.has_unfinished_requests():
                return
            for output in engine.step():
                if output.finished:
                    task, response = tasks[int(output.request_id)], output.outputs[0]
                    write(task, _row(task, response.text, list(response.token_ids), response.finish_reason, close))
    finally:
        for file in open_files.values():
            file.close()


def prompt_ids(tokenizer: Any, text: str) -> list[int]:
    """Tokens of a problem as the chat template renders it; of the text and a newline where there is none."""
    if tokenizer.chat_template is None:
        return tokenizer(text + "\n")["input_ids"]
    messages = [{"role": "user", "content": text}]
    rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return tokenizer(rendered, add_special_tokens=False)["input_ids"]


def _row(task: Task, text: str, ids: list[int], finish_reason: str, close: Sequence[int]) -> dict[str, Any]:
    """A line of the samples file; `thinking_tokens` counts those up to the end of the thought."""
    if len(close) == 1:
        thinking = ids.index(close[0]) + 1 if close[0] in ids else len(ids)
    else:
        before = text.partition(END_OF_THOUGHT)[0]
        thinking = round(len(ids) * len(before) / max(1, len(text)))
    return {
        "id": task.id,
        "sample": task.sample,
        "text": text,
        "tokens": len(ids),
        "thinking_tokens": thinking,
        "truncated": finish_reason == "length",
    }

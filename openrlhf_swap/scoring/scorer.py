"""Score responses one at a time: saved ones, or those of your own trainer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from openrlhf_swap.algorithm.advantages import local_gains, monotone_gains
from openrlhf_swap.algorithm.batch import StepTrace
from openrlhf_swap.config import SwapConfig
from openrlhf_swap.errors import DataError
from openrlhf_swap.packages.kernels import leave_out_cudnn, speed_up_products
from openrlhf_swap.rollouts.families import prompt_ids, resolve_thought
from openrlhf_swap.rollouts.reader import StepReader
from openrlhf_swap.scoring.answer import ScoreRequest, answer_branch
from openrlhf_swap.scoring.backends import find_backend
from openrlhf_swap.scoring.states import StateRequest, read_states


class Scorer:
    """A model and its tokenizer, ready to score responses; the model may be in training.

    Attributes:
        backend: how prefixes are scored.
        messages: lines that name the backend, its cost, and the marks of the thought.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        config: SwapConfig | None = None,
        scoring: str = "shared_prefix",
    ) -> None:
        """Take a causal language model, SWAP's settings (its defaults if None), and `scoring` of RunConfig.

        From then on torch's SDPA leaves out cuDNN in this process, and products in bfloat16 on a CPU that has no
        instructions for them are computed in float32.

        Raises:
            ConfigError: for a tokenizer that loses white space, or does not know the end of the thought.
        """
        leave_out_cudnn()
        speed_up_products()
        self._model = model
        self._tokenizer = tokenizer
        config, messages = resolve_thought(config or SwapConfig(), tokenizer)
        self._close_template = config.close_template
        self.end_of_thought = config.end_of_thought
        self._reader = StepReader(tokenizer, config.end_of_thought, *config.segmentation)
        self._context = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        self.backend = find_backend(model.config, type(model), scoring, model.device)
        self.messages = (*messages, str(self.backend))

    def trace(self, prompt: Sequence[int], response: Sequence[int], answer: str, correct: bool) -> StepTrace:
        """Score a response for `swap_advantages`; an incorrect one is not scored, because its steps earn nothing.

        `prompt` and `response` are token ids, the end token included. Raises as `score`.
        """
        ends, logprobs = self._score_steps(prompt, response, answer) if correct else ([], [])
        return StepTrace(len(response), correct, logprobs, ends)

    def score(self, problem: str, answer: str, response: str) -> dict[str, Any]:
        """Score the steps of a response.

        Returns:
            `step_ends` (K), `answer_logprobs` (l_0..l_K, nats per answer token), `gains` (Delta_1..Delta_K),
            `local_gains` (g_1..g_K) and `steps` (K texts), as plain lists.

        Raises:
            DataError: for an empty answer, or when prompt, response and answer exceed the model's context.
        """
        prompt, response_ids = self._ids(problem, response)
        ends, logprobs = self._score_steps(prompt, response_ids, answer)
        values, steps = torch.tensor(logprobs, dtype=torch.float64), torch.ones(len(ends), dtype=torch.bool)
        return {
            "step_ends": ends,
            "answer_logprobs": logprobs,
            "gains": monotone_gains(values, steps).tolist(),
            "local_gains": local_gains(values, steps).tolist(),
            "steps": self._reader.step_texts(response_ids, ends),
        }

    def states(self, problem: str, response: str) -> StepTrace:
        """`state_trace` of a text, which counts as correct."""
        return self.state_trace(*self._ids(problem, response), correct=True)

    def state_trace(self, prompt: Sequence[int], response: Sequence[int], correct: bool) -> StepTrace:
        """Read the model's states at the ends of a response's steps, for `length_critic_advantages`.

        `prompt` and `response` are token ids, the end token included.

        Raises:
            DataError: when prompt and response exceed the model's context.
        """
        self._check_length(len(prompt) + len(response))
        ends = self._reader.step_ends(response)
        row = torch.tensor([[*prompt, *response]], device=self._model.device)
        request = StateRequest(0, (len(prompt) - 1, *(len(prompt) + end for end in ends)))
        with _evaluating(self._model):
            (states,) = read_states(self._model, row, torch.ones_like(row), [request])
        return StepTrace(len(response), correct, (), ends, states)

    def _score_steps(
        self, prompt: Sequence[int], response: Sequence[int], answer: str
    ) -> tuple[list[int], list[float]]:
        branch = answer_branch(self._tokenizer, self._close_template, answer)
        self._check_length(len(prompt) + len(response) + len(branch.ids))
        ends = self._reader.step_ends(response)
        row = torch.tensor([[*prompt, *response]], device=self._model.device)
        request = ScoreRequest(0, (len(prompt) - 1, *(len(prompt) + end for end in ends)), branch)
        with _evaluating(self._model):
            (scores,) = self.backend.score(self._model, self._model.config, row, torch.ones_like(row), [request])
        return ends, scores.double().tolist()

    def _ids(self, problem: str, response: str) -> tuple[list[int], list[int]]:
        ids: list[int] = self._tokenizer(response, add_special_tokens=False)["input_ids"]
        return prompt_ids(self._tokenizer, problem), ids

    def _check_length(self, tokens: int) -> None:
        if self._context is not None and tokens > self._context:
            raise DataError(f"longer than the model's context of {self._context} tokens")


@contextmanager
def _evaluating(model: PreTrainedModel) -> Iterator[None]:
    """Meanwhile the model has neither dropout nor activation checkpointing."""
    training = model.training
    model.train(False)
    try:
        yield
    finally:
        model.train(training)

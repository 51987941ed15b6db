"""Score responses one at a time: saved ones, or those of your own trainer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from openrlhf_swap.algorithm.batch import StepTrace
from openrlhf_swap.algorithm.gains import local_gains, monotone_gains
from openrlhf_swap.config import SwapConfig
from openrlhf_swap.errors import DataError
from openrlhf_swap.rollouts.families import resolve_thought
from openrlhf_swap.rollouts.reader import StepReader
from openrlhf_swap.rollouts.tokenizer import prompt_ids
from openrlhf_swap.scoring.answer import AnswerBranch, answer_branch
from openrlhf_swap.scoring.backends import SHARED_PREFIX, find_backend, score_alone
from openrlhf_swap.scoring.shared_prefix import ScoreRequest, score_shared_prefix


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

        Raises:
            ConfigError: for an end of the thought that the tokenizer does not know.
        """
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

        Args:
            prompt: token ids.
            response: token ids, the end token included.
            answer: the reference answer.
            correct: as graded.

        Raises:
            DataError: for an empty answer, or when prompt, response and answer exceed the model's context.
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
        response_ids = self._tokenizer(response, add_special_tokens=False)["input_ids"]
        ends, logprobs = self._score_steps(prompt_ids(self._tokenizer, problem), response_ids, answer)
        values, steps = torch.tensor(logprobs, dtype=torch.float64), torch.ones(len(ends), dtype=torch.bool)
        return {
            "step_ends": ends,
            "answer_logprobs": logprobs,
            "gains": monotone_gains(values, steps).tolist(),
            "local_gains": local_gains(values, steps).tolist(),
            "steps": self._reader.step_texts(response_ids, ends),
        }

    def _score_steps(
        self, prompt: Sequence[int], response: Sequence[int], answer: str
    ) -> tuple[list[int], list[float]]:
        """e_1..e_K and l_0..l_K."""
        branch = answer_branch(self._tokenizer, self._close_template, answer)
        if self._context is not None and len(prompt) + len(response) + len(branch.ids) > self._context:
            raise DataError(f"longer than the model's context of {self._context} tokens")
        ends = self._reader.step_ends(response)
        ids = torch.tensor([*prompt, *response], device=self._model.device)
        prefix_ends = (len(prompt) - 1, *(len(prompt) + end for end in ends))
        training = self._model.training
        self._model.train(False)  # without dropout and activation checkpointing
        try:
            return ends, self._answer_logprobs(ids, prefix_ends, branch).double().tolist()
        finally:
            self._model.train(training)

    def _answer_logprobs(self, ids: Tensor, prefix_ends: tuple[int, ...], branch: AnswerBranch) -> Tensor:
        """(K+1,) l_0..l_K of a (T,) row without padding."""
        row, request = ids.unsqueeze(0), ScoreRequest(0, prefix_ends, branch)
        batch = (self._model, self._model.config, row, torch.ones_like(row))
        if self.backend.name == SHARED_PREFIX:
            return score_shared_prefix(*batch, [request])[0]
        return score_alone(self.backend.name, *batch, request)

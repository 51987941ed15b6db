"""A model that scores saved responses one at a time, outside a training."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from openrlhf_swap.algorithm.gains import local_gains, monotone_gains
from openrlhf_swap.config import SwapConfig
from openrlhf_swap.errors import DataError
from openrlhf_swap.rollouts.families import settle_thought
from openrlhf_swap.rollouts.reader import StepReader
from openrlhf_swap.rollouts.tokenizer import prompt_ids
from openrlhf_swap.scoring.answer import AnswerBranch, answer_branch
from openrlhf_swap.scoring.shared_prefix import ScoreRequest, score_shared_prefix
from openrlhf_swap.scoring.ways import SHARED_PREFIX, find_way, score_alone


class Scorer:
    """A model and its tokenizer, ready to score responses."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        config: SwapConfig,
        scoring: str = "shared_prefix",
    ) -> None:
        """Takes a causal language model in eval mode, and `scoring` of RunConfig.

        Prints the marks of the thought, the way and what it costs.

        Raises:
            ConfigError: for an end of the thought that the tokenizer does not know.
        """
        self._model = model
        self._tokenizer = tokenizer
        config, told = settle_thought(config, tokenizer)
        self._close_template = config.close_template
        self._reader = StepReader(tokenizer, config.end_of_thought, *config.segmentation)
        self._context = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        self._way = find_way(model.config, type(model), scoring, model.device)
        print(*told, self._way, sep="\n", file=sys.stderr)

    def score(self, problem: str, answer: str, response: str) -> dict[str, Any]:
        """The steps of a response and what they gained.

        Returns:
            `step_ends` (K), `answer_logprobs` (l_0..l_K, nats per answer token), `gains` (Delta_1..Delta_K),
            `local_gains` (g_1..g_K) and `steps` (K texts), as plain lists.

        Raises:
            DataError: for an empty answer, or when all is longer than the model's context.
        """
        prompt = prompt_ids(self._tokenizer, problem)
        response_ids = self._tokenizer(response, add_special_tokens=False)["input_ids"]
        branch = answer_branch(self._tokenizer, self._close_template, answer)
        if self._context is not None and len(prompt) + len(response_ids) + len(branch.ids) > self._context:
            raise DataError(f"longer than the model's context of {self._context} tokens")
        ends = self._reader.step_ends(response_ids)
        ids = torch.tensor(prompt + response_ids, device=self._model.device)
        prefix_ends = (len(prompt) - 1, *(len(prompt) + end for end in ends))
        logprobs = self._answer_logprobs(ids, prefix_ends, branch).double().cpu()
        steps = torch.ones(len(ends), dtype=torch.bool)
        return {
            "step_ends": ends,
            "answer_logprobs": logprobs.tolist(),
            "gains": monotone_gains(logprobs, steps).tolist(),
            "local_gains": local_gains(logprobs, steps).tolist(),
            "steps": self._reader.step_texts(response_ids, ends),
        }

    def _answer_logprobs(self, ids: Tensor, prefix_ends: tuple[int, ...], branch: AnswerBranch) -> Tensor:
        """(K+1,) l_0..l_K of a (T,) row without padding."""
        row, request = ids.unsqueeze(0), ScoreRequest(0, prefix_ends, branch)
        batch = (self._model, self._model.config, row, torch.ones_like(row))
        if self._way.name == SHARED_PREFIX:
            return score_shared_prefix(*batch, [request])[0]
        return score_alone(self._way.name, *batch, request)

"""Score responses one at a time: saved ones, or those of your own trainer."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import accumulate, chain
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from openrlhf_swap.algorithm.advantages import local_gains, monotone_gains
from openrlhf_swap.algorithm.batch import StepTrace
from openrlhf_swap.config import SwapConfig
from openrlhf_swap.errors import DataError
from openrlhf_swap.packages.kernels import leave_out_cudnn, speed_up_products
from openrlhf_swap.rollouts.families import prompt_ids, resolve_thought
from openrlhf_swap.rollouts.rollout import Rollout, StepReader
from openrlhf_swap.scoring.answer import ScoreRequest, answer_branch
from openrlhf_swap.scoring.backends import find_backend
from openrlhf_swap.scoring.states import StateRequest, read_states

Response = (
    str | Sequence[Mapping[str, str]]
)  # its text, or `action` and the environment's `observation` of each turn


class Scorer:
    """A model and its tokenizer, ready to score responses; the model may be in training.

    `backend` says how prefixes are scored; `messages` are lines that name it, its cost, and the
    marks of the thought.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        config: SwapConfig | None = None,
        scoring: str = "shared_prefix",
    ) -> None:
        """Take a causal language model, SWAP's settings (its defaults if None), and `scoring` of
        RunConfig.

        From then on torch's SDPA leaves out cuDNN in this process, and products in bfloat16 on a
        CPU that has no instructions for them are computed in float32. Raises ConfigError for a
        tokenizer that loses white space, or does not know the end of the thought.
        """
        leave_out_cudnn()
        speed_up_products()
        self._model = model
        self._tokenizer = tokenizer
        config, messages = resolve_thought(config or SwapConfig(), tokenizer)
        self._close_template = config.close_template
        self._splits_observations = config.observation_gain == "none"
        self.end_of_thought = config.end_of_thought
        self._reader = StepReader(tokenizer, config.end_of_thought, *config.segmentation)
        self._context = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        self.backend = find_backend(model.config, type(model), scoring, model.device)
        self.messages = (*messages, str(self.backend))

    def trace(
        self,
        prompt: Sequence[int],
        response: Sequence[int],
        answer: str,
        correct: bool,
        observations: Sequence[tuple[int, Sequence[int]]] = (),
    ) -> StepTrace:
        """Score a response for `swap_advantages`; an incorrect one is not scored, because its steps
        earn nothing.

        `prompt` and `response` are token ids, the end token included; `observations`, as in
        `Rollout`, stand between the turns of the response. Raises as `score`.
        """
        rollout = Rollout("", answer, response, prompt, float(correct), observations=observations)
        ends, logprobs = self._score_steps(rollout) if correct else ([], [])
        return StepTrace(len(response), correct, logprobs, ends)

    def score(
        self, problem: str, answer: str, response: Response, rendered: bool = False
    ) -> dict[str, Any]:
        """Score the steps of a response.

        Args: problem: the problem. answer: the reference answer. response: its text, or for each of
            its turns `action` and the environment's `observation`; none follows
                the last.
            rendered: whether the problem is a prompt as the chat template renders it.

        Returns: `step_ends` (K), `answer_logprobs` (l_0..l_K, nats per answer token), `gains`
            (Delta_1..Delta_K), `local_gains` (g_1..g_K) and `steps` (K texts), as plain lists.

        Raises: DataError: for an empty answer, or when prompt, response and answer exceed the
            model's context.
        """
        rollout = self._rollout(problem, answer, response, rendered)
        ends, logprobs = self._score_steps(rollout)
        values, steps = (
            torch.tensor(logprobs, dtype=torch.float64),
            torch.ones(len(ends), dtype=torch.bool),
        )
        return {
            "step_ends": ends,
            "answer_logprobs": logprobs,
            "gains": monotone_gains(values, steps).tolist(),
            "local_gains": local_gains(values, steps).tolist(),
            "steps": self._reader.step_texts(rollout.response_ids, ends),
        }

    def states(self, problem: str, response: Response, rendered: bool = False) -> StepTrace:
        """`state_trace` of a text or of turns, which count as correct."""
        return self._read_states(self._rollout(problem, "", response, rendered))

    def state_trace(
        self, prompt: Sequence[int], response: Sequence[int], correct: bool
    ) -> StepTrace:
        """Read the model's states at the ends of a response's steps, for
        `length_critic_advantages`.

        `prompt` and `response` are token ids, the end token included. Raises DataError when they
        exceed the model's context.
        """
        return self._read_states(Rollout("", "", response, prompt, float(correct)))

    def _read_states(self, rollout: Rollout) -> StepTrace:
        rollout, row = self._cut(rollout)
        with _evaluating(self._model):
            (states,) = read_states(
                self._model, row, torch.ones_like(row), [StateRequest(0, rollout.prefix_ends)]
            )
        return StepTrace(len(rollout.response_ids), rollout.correct, (), rollout.step_ends, states)

    def _score_steps(self, rollout: Rollout) -> tuple[Sequence[int], list[float]]:
        branch = answer_branch(self._tokenizer, self._close_template, rollout.answer)
        rollout, row = self._cut(rollout, len(branch.ids))
        places = rollout.split_prefix_ends if self._splits_observations else rollout.prefix_ends
        request = ScoreRequest(0, places, branch)
        with _evaluating(self._model):
            (scores,) = self.backend.score(
                self._model, self._model.config, row, torch.ones_like(row), [request]
            )
        logprobs: list[float] = scores.double().tolist()
        return rollout.step_ends, rollout.without_observations(
            logprobs
        ) if self._splits_observations else logprobs

    def _rollout(self, problem: str, answer: str, response: Response, rendered: bool) -> Rollout:
        ids = self._reader.ids
        turns = [{"action": response}] if isinstance(response, str) else response
        actions = [ids(turn["action"]) for turn in turns]
        prompt = ids(problem) if rendered else prompt_ids(self._tokenizer, problem)
        places = zip(accumulate(map(len, actions)), turns[:-1], strict=False)
        observations = [(place, ids(turn["observation"])) for place, turn in places]
        return Rollout(
            problem, answer, [*chain(*actions)], prompt, reward=1.0, observations=observations
        )

    def _cut(self, rollout: Rollout, branch_tokens: int = 0) -> tuple[Rollout, torch.Tensor]:
        """The rollout in steps, and its row, which must fit the context with a branch of so many
        tokens.
        """
        ids = rollout.row_ids
        if self._context is not None and len(ids) + branch_tokens > self._context:
            raise DataError(f"longer than the model's context of {self._context} tokens")
        ends = self._reader.step_ends(rollout.response_ids, rollout.turn_starts)
        return replace(rollout, step_ends=ends), torch.tensor([ids], device=self._model.device)


@contextmanager
def _evaluating(model: PreTrainedModel) -> Iterator[None]:
    """Turn dropout and activation checkpointing off inside the block."""
    training = model.training
    model.train(False)
    try:
        yield
    finally:
        model.train(training)

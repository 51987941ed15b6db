"""Score responses one at a time: saved ones, or those of your own trainer."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from openrlhf_swap.algorithm.advantages import local_gains, monotone_gains
from openrlhf_swap.algorithm.batch import StepTrace
from openrlhf_swap.algorithm.plain import plain_flag, plain_int, plain_ints
from openrlhf_swap.algorithm.signals import ANSWER_LOGPROBS, ENTROPY, NEED, numbers_of
from openrlhf_swap.config import SwapConfig
from openrlhf_swap.errors import DataError, check_loaded, check_text
from openrlhf_swap.packages.kernels import leave_out_cudnn, speed_up_products
from openrlhf_swap.rewards.references import given_answer
from openrlhf_swap.rollouts.families import prompt_ids, resolve_thought
from openrlhf_swap.rollouts.reader import StepReader
from openrlhf_swap.rollouts.rollout import Rollout
from openrlhf_swap.scoring.answer import Readings, ScoreRequest, answer_branch
from openrlhf_swap.scoring.entropies import read_entropies
from openrlhf_swap.scoring.signals import WantedSignals, by_request

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

# The text of a response, or `action` and the environment's `observation` of each turn.
Response = str | Sequence[Mapping[str, str]]


class Scorer:
    """A model and its tokenizer, ready to score responses; the model may be in training.

    `backend` says how prefixes are scored; `messages` are lines that name it, its cost, and the
    marks of the thought.
    """

    def __init__(
        self,
        model: "PreTrainedModel",
        tokenizer: "PreTrainedTokenizerBase",
        config: SwapConfig | None = None,
        scoring: str = "shared_prefix",
        entropy_temperature: float | None = None,
    ) -> None:
        """Choose how the model's prefixes are scored.

        From then on torch's SDPA leaves out cuDNN in this process, and products in bfloat16 on a
        CPU that has no instructions for them are computed in float32.

        Args:
            model: a causal language model of transformers.
            tokenizer: its tokenizer.
            config: SWAP's settings; the defaults without it.
            scoring: `shared_prefix`, one forward for all prefixes, or `per_prefix`, one for each.
            entropy_temperature: the temperature of the rollouts; with it the mean token entropy of
                each step is read as well, also of incorrect responses, in a forward of its own.

        Raises:
            ConfigError: for a name in the place of the model or the tokenizer, for a tokenizer that
                loses white space or does not know the end of the thought, and for `step_reward`
                need with a model from which steps cannot be hidden.
        """
        # Both import what of transformers takes seconds, which whoever has a model has imported.
        from openrlhf_swap.scoring.backends import find_backend
        from openrlhf_swap.scoring.need import check_can_hide_steps

        check_loaded(model, tokenizer)
        leave_out_cudnn()
        speed_up_products()
        self._model = model
        self._tokenizer = tokenizer
        config, messages = resolve_thought(config or SwapConfig(), tokenizer)
        self._temperature = entropy_temperature
        names = [ANSWER_LOGPROBS.name]
        if config.step_reward == "need":
            names.append(NEED.name)
        if entropy_temperature is not None:
            names.append(ENTROPY.name)
        branch = partial(answer_branch, tokenizer, config.close_template)
        self._wanted = WantedSignals(tuple(names), branch, config.need_window, config.need_every)
        self.end_of_thought = config.end_of_thought
        self._reader = StepReader(tokenizer, config.end_of_thought, *config.segmentation)
        text = model.config.get_text_config()
        self._context = getattr(text, "max_position_embeddings", None)
        self.backend = find_backend(model, scoring)
        if NEED.name in names:
            check_can_hide_steps(model, self.backend.obstacle_to_branches)
        self.messages = (*messages, str(self.backend))

    def trace(
        self,
        prompt: Sequence[int],
        response: Sequence[int],
        answer: str,
        correct: bool,
        observations: Sequence[tuple[int, Sequence[int]]] = (),
    ) -> StepTrace:
        """Score a response for `swap_advantages`.

        Args:
            prompt: token ids in a list, or in a tensor or array with one dimension.
            response: those of the response, with its end token and without padding.
            answer: the reference answer.
            correct: whether the response is correct. The answer is scored only then, because the
                steps of an incorrect response have no reward.
            observations: `(place, token ids)` of what an environment wrote before
                `response[place]`, for each turn but the first.

        Returns:
            The response's steps, with l_0..l_K in nats per answer token.

        Raises:
            DataError: for padding, an empty answer, or when prompt, response and answer exceed the
                model's context.
            ValueError: for anything but token ids.
        """
        response_ids = plain_ints("response", response)
        self._refuse_padding(response_ids)
        turns = []
        for number, (place, observation) in enumerate(observations):
            where = f"observations[{number}]"
            start = plain_int(f"{where}[0]", place)
            turns.append((start, plain_ints(f"{where}[1]", observation)))
        rollout = Rollout(
            "",
            given_answer(answer),
            response_ids,
            plain_ints("prompt", prompt),
            reward=float(plain_flag("correct", correct)),
            observations=turns,
        )
        return self._read(rollout).trace()

    def score(
        self, problem: str, answer: str, response: Response, rendered: bool = False
    ) -> dict[str, Any]:
        """Score the steps of a response.

        Args:
            problem: the problem.
            answer: the reference answer.
            response: its text, or for each of its turns `action` and the environment's
                `observation`; none follows the last.
            rendered: whether the problem is a prompt as the chat template renders it.

        Returns:
            `step_ends` (K), `answer_logprobs` (l_0..l_K, nats per answer token), `gains`
            (Delta_1..Delta_K), `local_gains` (g_1..g_K) and `steps` (K texts), as plain lists; with
            `step_reward` need also `need` (n_1..n_K, nats per token, None for a step that was not
            hidden), and with an `entropy_temperature` also `entropy` (H_1..H_K, nats).

        Raises:
            DataError: for an empty answer, or when prompt, response and answer exceed the model's
                context.
        """
        rollout = self._read(self._rollout(problem, answer, response, rendered))
        scores = torch.tensor(rollout.answer_logprobs, dtype=torch.float64)
        steps = len(rollout.step_ends)
        every_step = torch.ones(steps, dtype=torch.bool)
        more = {}
        for name in self._wanted.names[1:]:
            more[name] = numbers_of(rollout.signals[name]) if steps else []
        return {
            "step_ends": rollout.step_ends,
            "answer_logprobs": rollout.answer_logprobs,
            "gains": monotone_gains(scores, every_step).tolist(),
            "local_gains": local_gains(scores, every_step).tolist(),
            **more,
            "steps": self._reader.step_texts(rollout.response_ids, rollout.step_ends),
        }

    def _refuse_padding(self, response: list[int]) -> None:
        """Raise DataError for a response that ends with padding, which would count as its tokens.

        Where the end token also pads, that is a second one.
        """
        padding = self._tokenizer.pad_token_id
        refused = 2 if padding == self._tokenizer.eos_token_id else 1
        if response[-refused:] == [padding] * refused:
            raise DataError(
                f"response ends with padding (token {padding}); give the tokens up to its end"
            )

    def _read(self, rollout: Rollout) -> Rollout:
        """The rollout with its steps and its signals."""
        ends = self._reader.step_ends(rollout.response_ids, rollout.turn_starts)
        rollout = replace(rollout, step_ends=ends)
        request = self._wanted.request(0, rollout)
        if request is None:
            return rollout
        return rollout.with_signals(**self._signals(request, rollout.row_ids))

    def _signals(self, request: ScoreRequest, ids: list[int]) -> dict[str, torch.Tensor]:
        """The signals of one request, of a response whose row has these token ids.

        Raises DataError for a row that exceeds the context with the branch behind it.
        """
        tokens = len(ids)
        if request.branch is not None:
            tokens += len(request.branch.ids)
        if self._context is not None and tokens > self._context:
            raise DataError(f"longer than the model's context of {self._context} tokens")
        model = self._model
        row = torch.tensor([ids], device=model.device)
        given = (row, torch.ones_like(row), [request])
        found: Readings = {}
        with _evaluating(model):
            if ENTROPY.name in request.wanted and self._temperature is not None:
                found[ENTROPY.name] = read_entropies(model, *given, self._temperature)
            if ANSWER_LOGPROBS.name in request.wanted:
                found |= self.backend.read(model, *given)
        return by_request([request], found)[0]

    def _rollout(self, problem: str, answer: str, response: Response, rendered: bool) -> Rollout:
        """Make a rollout of a caller's texts; it counts as correct."""
        check_text("problem", problem)
        tokenize = self._reader.ids
        turns = [{"action": response}] if isinstance(response, str) else response
        response_ids: list[int] = []
        observations = []
        for number, turn in enumerate(turns):
            if not isinstance(turn, Mapping):
                raise DataError(
                    f"response[{number}] is {turn!r}, which is no turn; give the response's text, "
                    "or `action` and `observation` of each turn; token ids go to `trace`"
                )
            check_text(f"the action of turn {number}", turn.get("action"))
            if number > 0:
                observed = tokenize(turns[number - 1]["observation"])
                observations.append((len(response_ids), observed))
            response_ids += tokenize(turn["action"])
        prompt = tokenize(problem) if rendered else prompt_ids(self._tokenizer, problem)
        return Rollout(
            problem,
            given_answer(answer),
            response_ids,
            prompt,
            reward=1.0,
            observations=observations,
        )


@contextmanager
def _evaluating(model: "PreTrainedModel") -> Iterator[None]:
    """Turn dropout and activation checkpointing off inside the block."""
    training = model.training
    model.train(False)
    try:
        yield
    finally:
        model.train(training)

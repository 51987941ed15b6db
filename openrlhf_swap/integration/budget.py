"""A budget for the thought alone: it is closed when its tokens are spent, and the answer follows.

Two requests do what vLLM's `thinking_token_budget` does in one. vLLM knows a thought by its marks
only, and does not tell which tokens it forced. The rollouts and `eval run` use the same budget.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from openrlhf_swap.rewards.graded_text import NO_MARK, closes_thought
from openrlhf_swap.rewards.statements import answer_start
from openrlhf_swap.rollouts.families import ANSWER
from openrlhf_swap.rollouts.reader import ResponseReader

if TYPE_CHECKING:
    from vllm import CompletionOutput


class ThoughtBudget:
    """The most tokens that a thought may have, and what closes a thought that has used them up."""

    def __init__(self, tokens: int, close_template: str, reader: ResponseReader) -> None:
        """Close thoughts with the close template, up to R1's heading of an answer.

        A model with marks then answers in its own way. One without marks goes on inside of the
        box, because only an answer ends its reasoning.
        """
        self.tokens = tokens
        self._close = reader.ids(close_template.removesuffix(ANSWER))
        self._reader = reader

    @property
    def least_limit(self) -> int:
        """The fewest tokens of a response in which a closed thought leaves room for an answer."""
        return self.tokens + len(self._close) + 1

    def first_limit(self, prompt: Sequence[int], limit: int) -> int:
        """The most tokens of a response's first request, where `limit` is that of the response.

        It is the budget, unless the prompt closes the thought, or there is no room for an answer.
        """
        is_closed = closes_thought(self._reader.text(prompt), self._reader.end_of_thought)
        return limit if is_closed or limit < self.least_limit else self.tokens

    def rest(
        self, prompt: Sequence[int], beginning: CompletionOutput, limit: int, seed: int | None
    ) -> Rest | None:
        """What follows the output of a response's first request; None where the response is whole.

        `limit` and `seed` are those of the response. A thought that goes on is closed first.
        """
        is_cut = beginning.finish_reason == "length" and len(beginning.token_ids) == self.tokens
        if not is_cut or self.first_limit(prompt, limit) == limit:
            return None
        close = self._close if self._is_thinking(beginning.token_ids) else []
        ids = [*prompt, *beginning.token_ids, *close]
        return Rest(
            beginning=beginning,
            close=close,
            close_text=self._reader.text(close),
            ids=ids,
            max_tokens=limit - self.tokens - len(close),
            seed=seed_after(len(ids), seed),
        )

    def _is_thinking(self, beginning: Sequence[int]) -> bool:
        """Whether a beginning's thought goes on; without marks, until an answer is stated."""
        if self._reader.end_of_thought == NO_MARK:
            return answer_start(self._reader.text(beginning)) is None
        return not self._reader.is_closed(beginning)


@dataclass(frozen=True)
class Rest:
    """The second request of a response.

    Attributes:
        beginning: the output of the first request.
        close: the tokens that close the thought behind it; none where the thought is over.
        close_text: their text.
        ids: the tokens of prompt, beginning and close, which the request continues.
        max_tokens: the most tokens that it generates.
        seed: its seed, if the response has one.
    """

    beginning: CompletionOutput
    close: Sequence[int]
    close_text: str
    ids: list[int]
    max_tokens: int
    seed: int | None

    def joined(self, output: CompletionOutput) -> CompletionOutput:
        """One output of both requests; the log-probabilities of what closed the thought are 0."""
        from vllm.logprobs import Logprob  # slow, so not at module level

        logprobs: Any = output.logprobs
        if logprobs is not None:
            forced = [{token: Logprob(0.0)} for token in self.close]
            logprobs = [*(self.beginning.logprobs or ()), *forced, *logprobs]
        return replace(
            output,
            token_ids=[*self.beginning.token_ids, *self.close, *output.token_ids],
            text=self.beginning.text + self.close_text + output.text,
            logprobs=logprobs,
        )


def budget_of(args: SimpleNamespace, tokenizer: Any) -> ThoughtBudget | None:
    """The budget of a run's thoughts; None where they have none."""
    tokens = args.rollout.thought_budget
    if tokens is None:
        return None
    reader = ResponseReader(tokenizer, args.swap.end_of_thought)
    return ThoughtBudget(tokens, args.swap.close_template, reader)


class BudgetedEngine:
    """Stands for the engine during one response, and keeps each turn's thought within the budget.

    `closing` has the places, among all tokens that were generated, of those that closed a thought.
    Without a budget all requests pass unchanged.
    """

    def __init__(self, engine: Any, budget: ThoughtBudget | None) -> None:
        self._engine = engine
        self._budget = budget
        self._generated = 0
        self.closing: list[int] = []

    async def generate(
        self, prompt_token_ids: list[int], sampling_params: Any, **options: Any
    ) -> Any:
        """Generate a turn; where the budget ends the first request, a second one goes on."""
        budget = self._budget
        if budget is None:
            return await self._engine.generate(prompt_token_ids, sampling_params, **options)
        limit = sampling_params.max_tokens
        first = sampling_params.clone()
        first.max_tokens = budget.first_limit(prompt_token_ids, limit)
        output = await self._engine.generate(prompt_token_ids, first, **options)
        rest = budget.rest(prompt_token_ids, output.outputs[0], limit, sampling_params.seed)
        if rest is not None:
            place = self._generated + budget.tokens
            self.closing += range(place, place + len(rest.close))
            second = sampling_params.clone()
            second.max_tokens = rest.max_tokens
            second.seed = rest.seed
            output = await self._engine.generate(rest.ids, second, **options)
            output.outputs = [rest.joined(output.outputs[0])]
        self._generated += len(output.outputs[0].token_ids)
        return output

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


def seed_after(tokens: int, seed: int | None) -> int | None:
    """The seed of a request that goes on after so many tokens of a row; None for no seed.

    With the seed of the first request it would draw the same numbers again.
    """
    return None if seed is None else zlib.crc32(f"{seed}:{tokens}".encode())

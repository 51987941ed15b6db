"""An agent's contexts without the thoughts of earlier turns (`--agent.keep_thoughts last`).

OpenRLHF's executor hands the engine the whole conversation in each turn. `ForgetfulEngine` leaves
earlier thoughts out of it, as chat templates do in serving. The policy is trained on the contexts
that it read: they follow one another in the response's row, each with the turn that it led to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch

from openrlhf_swap.errors import DataError
from openrlhf_swap.integration.budget import seed_after
from openrlhf_swap.rollouts.reader import ResponseReader, tokens_for_each
from openrlhf_swap.rollouts.rollout import Rollout


class OldThoughts:
    """Leaves the thought of a turn out of what the turns after it read."""

    def __init__(self, start_of_thought: str, reader: ResponseReader) -> None:
        """Take the text that opens a thought, "" for none; the reader knows what closes it."""
        self._start = start_of_thought
        self._reader = reader

    def left_out(self, context: Sequence[int], turn: Sequence[int]) -> list[int]:
        """The tokens of a context and of the turn that it led to, without the turn's thought.

        The mark that opens the thought goes, too, also where it ends the context, and so do the
        newlines behind the thought, as in Qwen3's template. A turn that closes no thought stays
        whole.
        """
        text = self._reader.text(turn)
        _, end_of_thought, behind = text.partition(self._reader.end_of_thought)
        if not end_of_thought:
            return [*context, *turn]
        rest = behind.lstrip("\n")
        thought_tokens = self._tokens_before(turn, len(text) - len(rest))
        before = self._reader.text(context).rstrip()
        kept_tokens = len(context)
        if self._start and before.endswith(self._start):
            kept_tokens = self._tokens_before(context, len(before) - len(self._start))
        return [*context[:kept_tokens], *turn[thought_tokens:]]

    def _tokens_before(self, ids: Sequence[int], place: int) -> int:
        """The number of tokens before a place in their text."""
        return tokens_for_each(ids, [place], self._reader)[0]


def old_thoughts_of(args: SimpleNamespace, tokenizer: Any) -> OldThoughts | None:
    """What leaves old thoughts out in a run; None where all thoughts are kept."""
    if args.agent.keep_thoughts == "all":
        return None
    reader = ResponseReader(tokenizer, args.swap.end_of_thought)
    return OldThoughts(args.swap.start_of_thought, reader)


class ForgetfulEngine:
    """Stands for the engine during one response, and leaves old thoughts out of what it reads.

    Without `old_thoughts` all requests pass unchanged.
    """

    def __init__(self, engine: Any, old_thoughts: OldThoughts | None) -> None:
        self._engine = engine
        self._old_thoughts = old_thoughts
        self._conversation: list[int] = []  # so far, with all thoughts
        self._context: list[int] = []  # what the next turn reads of it
        self._contexts: list[list[int]] = []  # what each turn has read

    async def generate(
        self, prompt_token_ids: list[int], sampling_params: Any, **options: Any
    ) -> Any:
        """Generate a turn behind the conversation so far, without its old thoughts.

        Raises DataError for a conversation that does not go on from the one before.
        """
        old_thoughts = self._old_thoughts
        if old_thoughts is None:
            return await self._engine.generate(prompt_token_ids, sampling_params, **options)
        known = len(self._conversation)
        if prompt_token_ids[:known] != self._conversation:
            raise DataError(
                "--agent.keep_thoughts is last, but the agent's executor changes what was said "
                "before: leave it out, or let the executor append to the conversation alone"
            )
        context = [*self._context, *prompt_token_ids[known:]]
        self._contexts.append(context)
        own = sampling_params.clone()
        own.seed = seed_after(len(prompt_token_ids), sampling_params.seed)
        output = await self._engine.generate(context, own, **options)
        turn = output.outputs[0].token_ids
        self._conversation = [*prompt_token_ids, *turn]
        self._context = old_thoughts.left_out(context, turn)
        return output

    def as_read(self, rollout: Rollout) -> Rollout:
        """The rollout of the whole conversation, with the contexts that its turns have read.

        Raises DataError where the executor has not returned each generated turn as one.
        """
        if self._old_thoughts is None:
            return rollout
        turns = len(rollout.turns)
        if turns != len(self._contexts):
            raise DataError(
                f"--agent.keep_thoughts is last, but the agent's executor generated "
                f"{len(self._contexts)} times and returned {turns} action_ranges: leave it out, "
                "or let the executor return one for each time"
            )
        contexts = zip(rollout.turn_starts, self._contexts[1:], strict=True)
        read = replace(rollout, observations=list(contexts), starts_over=True)
        logprobs = rollout.record["rollout_log_probs"]
        if logprobs is None:
            return read
        # The response's tokens stand elsewhere in the row of the contexts; all others have 0.
        of_response = torch.tensor(logprobs)[rollout.positions]
        of_row = torch.zeros(len(read.row_ids))
        of_row[read.positions] = of_response
        return replace(read, record={**rollout.record, "rollout_log_probs": of_row.tolist()})

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

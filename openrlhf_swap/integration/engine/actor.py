"""vLLM's Ray actor: it generates, has responses graded, and takes new weights."""

import asyncio
import os
import traceback
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from openrlhf.trainer.ray.vllm_engine import RolloutRayActor
from openrlhf.utils.agent import SingleTurnAgentExecutor
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.exceptions import EngineDeadError

from openrlhf_swap.errors import DataError, first_line
from openrlhf_swap.integration.budget import BudgetedEngine, ThoughtBudget, seed_after
from openrlhf_swap.integration.contexts import ForgetfulEngine, OldThoughts
from openrlhf_swap.integration.engine.responses import REWARD_FLAG, EngineRequest, read_response
from openrlhf_swap.integration.engine.rewards import tell_more
from openrlhf_swap.integration.patches import ENGINE_STARTS, installed, undecorated
from openrlhf_swap.rollouts.rollout import Rollout

AGENT_FLAG = "--train.agent_func_path"
HEALTH_SECONDS = 1.0  # between two looks at an engine
_StockRolloutActor: Any = undecorated(RolloutRayActor)


def run_here(function: Callable[[], Any]) -> Any:
    """Stand for vLLM's call in a process of its own, which only a process that forks needs."""
    return function()


@dataclass
class PromptTokenizer:
    """A tokenizer that gives one prompt the (1, T) ids of a response that is continued."""

    tokenizer: Any
    prompt: str
    ids: torch.Tensor

    def __call__(self, text: str, **options: Any) -> Any:
        if text == self.prompt:
            return {"input_ids": self.ids}
        return self.tokenizer(text=text, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)


class SwapRolloutActor(_StockRolloutActor):
    """OpenRLHF's engine, which returns rollouts.

    With a seed, a response depends only on the seed, its prompt, its number and the weights, not on
    what was drawn before.
    """

    async def __init__(self, *args: Any, **kwargs: Any) -> None:  # type: ignore[misc]  # Ray awaits it
        print("[swap] vLLM: an engine starts; its process imports", flush=True)
        with installed(ENGINE_STARTS):
            await super().__init__(*args, **kwargs)
        self._watch = asyncio.create_task(self.exit_with_engine())

    def prepare(
        self,
        tokenizer: Any,
        max_length: int,
        budget: ThoughtBudget | None,
        old_thoughts: OldThoughts | None,
        **reward_settings: str,
    ) -> None:
        """Take over what all requests share."""
        self._tokenizer = tokenizer
        self._max_length = max_length
        self._budget = budget
        self._old_thoughts = old_thoughts
        tell_more(self.executor, reward_settings)

    async def respond(self, *requests: EngineRequest) -> list[list[Rollout]]:
        """Generate and grade the responses to each request."""
        return list(await asyncio.gather(*map(self._respond, requests)))

    async def _respond(self, request: EngineRequest) -> list[Rollout]:
        tokenizer = self._tokenizer
        key = request.prompt
        prefix = request.prefix
        if prefix is not None:
            ids = prefix.row_ids
            tokenizer = PromptTokenizer(tokenizer, request.prompt, torch.tensor([ids]))
            key += f":{ids}"
        draws = [self._draw(request, tokenizer, f"{n}:{key}") for n in range(request.count)]
        return list(await asyncio.gather(*draws))

    async def _draw(self, request: EngineRequest, tokenizer: Any, key: str) -> Rollout:
        sampling = request.sampling.clone()
        # Otherwise vLLM hands over all tokens so far at each token, and OpenRLHF throws all but the
        # last away.
        sampling.output_kind = RequestOutputKind.FINAL_ONLY
        # A continuation begins behind the thought, or grades how the thought goes on.
        engine = BudgetedEngine(self, None if request.prefix else self._budget)
        forgetful = ForgetfulEngine(engine, self._old_thoughts)
        if request.seed is not None:
            sampling.seed = zlib.crc32(f"{request.seed}:{key}".encode())
        try:
            response = await self.executor.execute(
                prompt=request.prompt,
                label=request.label,
                sampling_params=sampling,
                max_length=self._max_length,
                hf_tokenizer=tokenizer,
                llm_engine=forgetful,
            )
        except Exception as error:
            if not self._is_agent or isinstance(error, EngineDeadError):
                raise
            traceback.print_exc()
            raise DataError(
                f"the agent of {AGENT_FLAG} failed with {type(error).__name__}: "
                f"{first_line(error)}; the traceback is in train.log"
            ) from None
        start = None if request.prefix is None else request.prefix.start
        flag = AGENT_FLAG if self._is_agent else REWARD_FLAG
        rollout = replace(read_response(response, start, flag), closing=engine.closing)
        return forgetful.as_read(rollout)

    async def generate(
        self, prompt_token_ids: list[int], sampling_params: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Overrides RolloutRayActor: each turn of a seeded agent draws from its own generator.

        OpenRLHF would give each turn the generator of the first one.
        """
        if self._is_agent:  # `_draw` made this copy
            sampling_params.seed = seed_after(len(prompt_token_ids), sampling_params.seed)
        return await super().generate(prompt_token_ids, sampling_params, *args, **kwargs)

    @property
    def _is_agent(self) -> bool:
        return not isinstance(self.executor, SingleTurnAgentExecutor)

    async def transfer_weights(self, method: str, *info: Any) -> None:
        """Call a method of the weights' receiver in the engine's workers."""
        await self.llm.collective_rpc(method, args=info)

    async def check_health(self) -> None:
        """Raise EngineDeadError if vLLM's engine has ended."""
        await self.llm.check_health()

    async def exit_with_engine(self) -> None:
        """End this process after its engine: Ray then fails every call.

        vLLM 0.29.0 by itself only fails open requests.
        """
        while True:
            await asyncio.sleep(HEALTH_SECONDS)
            try:
                await self.llm.check_health()
            except EngineDeadError:
                await asyncio.sleep(HEALTH_SECONDS)  # in which the open requests fail
                os._exit(1)

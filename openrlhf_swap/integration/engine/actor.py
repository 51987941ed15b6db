"""vLLM's Ray actor: it generates, has responses graded, and takes new weights."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import traceback
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from openrlhf.trainer.ray.vllm_engine import RolloutRayActor
from openrlhf.utils.agent import SingleTurnAgentExecutor
from transformers import AutoConfig
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.exceptions import EngineDeadError

from openrlhf_swap.errors import DataError, first_line, reader_errors
from openrlhf_swap.integration.engine.responses import (
    FAILED,
    REWARD_FLAG,
    TURN_REWARDS,
    EngineRequest,
    read_response,
)
from openrlhf_swap.integration.patches import ENGINE_STARTS, installed, undecorated
from openrlhf_swap.packages.versions import replace
from openrlhf_swap.rollouts.rollout import Rollout

AGENT_FLAG = "--train.agent_func_path"
HEALTH_SECONDS = 1.0  # between two looks at an engine
_StockRolloutActor: Any = undecorated(RolloutRayActor)


@dataclass
class EngineFactory:
    """Stands for the actor's class where OpenRLHF makes engines: adds arguments without a flag."""

    actor_class: Any
    more: dict[str, Any]

    def options(self, **options: Any) -> EngineFactory:
        return EngineFactory(self.actor_class.options(**options), self.more)

    def remote(self, **arguments: Any) -> Any:
        return self.actor_class.remote(**{**arguments, **self.more})


def expert_kernels(model: str) -> dict[str, str]:
    """Return the arguments that keep experts' weights in the order in which they are sent.

    On GPUs after Hopper, vLLM 0.29 would reorder them.
    """
    # vLLM's module cannot be the first of its package that a process imports.
    from vllm.transformers_utils.model_arch_config_convertor import (
        MODEL_ARCH_CONFIG_CONVERTORS,
        ModelArchConfigConvertorBase,
    )

    # The model's own code was allowed before, or there is none.
    config = AutoConfig.from_pretrained(model, trust_remote_code=True)
    convertor = MODEL_ARCH_CONFIG_CONVERTORS.get(config.model_type, ModelArchConfigConvertorBase)
    experts = convertor(config, config.get_text_config()).get_num_experts()
    is_quantized = getattr(config, "quantization_config", None)  # it has kernels of its own
    if not experts or is_quantized:
        return {}
    return {"moe_backend": "triton"}


def run_here(function: Callable[[], Any]) -> Any:
    """Stand for vLLM's call in a process of its own, which only a process that forks needs."""
    return function()


class PromptTokenizer:
    """A tokenizer that gives one prompt the ids of a response that is continued."""

    def __init__(
        self,
        tokenizer: Any,
        prompt: str,
        ids: list[int],
    ) -> None:
        self._tokenizer = tokenizer
        self._prompt = prompt
        self._ids = torch.tensor([ids])

    def __call__(self, text: str, **options: Any) -> Any:
        if text == self._prompt:
            return {"input_ids": self._ids}
        return self._tokenizer(text=text, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


def explain_failures(function: Callable[..., Any]) -> Callable[..., dict[str, Any]]:
    """Wrap a reward function: OpenRLHF drops its errors, so they travel in `extra_logs`.

    `read_response` raises them.
    """

    def graded(*arguments: Any) -> dict[str, Any]:
        try:
            with reader_errors("{reason}"):
                result = function(*arguments)
                float(result["rewards"])
                return dict(result)
        except DataError as error:
            reason = f"{type(error.__cause__).__name__}: {error}"
        return {"rewards": None, "extra_logs": {FAILED: reason}}

    return graded


def with_turn_rewards(environment: type) -> type:
    """An agent's environment that also notes what it paid for each turn.

    OpenRLHF returns the sum alone, so the rewards travel in `extra_logs`.
    """

    class Noting(environment):
        def __init__(self, *arguments: Any, **more: Any) -> None:
            super().__init__(*arguments, **more)
            self._swap_turn_rewards: list[float] = []

        async def step(self, *arguments: Any, **more: Any) -> dict[str, Any]:
            result = await super().step(*arguments, **more)
            self._swap_turn_rewards.append(float(result["rewards"]))
            noted = {TURN_REWARDS: [*self._swap_turn_rewards]}
            logs = {**(result.get("extra_logs") or {}), **noted}
            return {**result, "extra_logs": logs}

    return Noting


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

    async def check_health(self) -> None:
        await self.llm.check_health()

    async def transfer_weights(self, method: str, *info: Any) -> None:
        await self.llm.collective_rpc(method, args=info)

    def prepare(self, tokenizer: Any, max_length: int, **reward_settings: str) -> None:
        """Take over what all requests share.

        A reward function gets those of the `reward_settings` that it has parameters for, such as
        `end_of_thought`.
        """
        self._tokenizer = tokenizer
        self._max_length = max_length
        environment = getattr(self.executor, "agent_instance_cls", None)
        if environment is not None:
            noting = with_turn_rewards(environment)
            replace(self.executor, "agent_instance_cls", noting, "openrlhf")
        function = getattr(self.executor, "reward_func", None)
        if function is None:  # an agent's environment gives the rewards
            return
        parameters = inspect.signature(function).parameters
        taken = {name: value for name, value in reward_settings.items() if name in parameters}
        wrapped = explain_failures(functools.partial(function, **taken))
        replace(self.executor, "reward_func", wrapped, "openrlhf")

    async def generate(
        self, prompt_token_ids: list[int], sampling_params: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Overrides RolloutRayActor: each turn of a seeded agent draws from its own generator.

        OpenRLHF would give each turn the generator of the first one.
        """
        if self._is_agent and sampling_params.seed is not None:  # `_draw` made this copy
            key = f"{sampling_params.seed}:{len(prompt_token_ids)}"
            sampling_params.seed = zlib.crc32(key.encode())
        return await super().generate(prompt_token_ids, sampling_params, *args, **kwargs)

    @property
    def _is_agent(self) -> bool:
        return not isinstance(self.executor, SingleTurnAgentExecutor)

    async def respond(self, *requests: EngineRequest) -> list[list[Rollout]]:
        """Generate and grade the responses to each request."""
        return list(await asyncio.gather(*map(self._respond, requests)))

    async def _respond(self, request: EngineRequest) -> list[Rollout]:
        tokenizer = self._tokenizer
        key = request.prompt
        prefix = request.prefix
        if prefix is not None:
            ids = [*prefix.prompt_ids, *prefix.response_ids]
            tokenizer = PromptTokenizer(tokenizer, request.prompt, ids)
            key += f":{ids}"
        draws = [self._draw(request, tokenizer, f"{n}:{key}") for n in range(request.count)]
        return list(await asyncio.gather(*draws))

    async def _draw(
        self,
        request: EngineRequest,
        tokenizer: Any,
        key: str,
    ) -> Rollout:
        sampling = request.sampling.clone()
        # Otherwise vLLM hands over all tokens so far at each token, and OpenRLHF throws all but the
        # last away.
        sampling.output_kind = RequestOutputKind.FINAL_ONLY
        if request.seed is not None:
            sampling.seed = zlib.crc32(f"{request.seed}:{key}".encode())
        try:
            response = await self.executor.execute(
                prompt=request.prompt,
                label=request.label,
                sampling_params=sampling,
                max_length=self._max_length,
                hf_tokenizer=tokenizer,
                llm_engine=self,
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
        return read_response(response, start, AGENT_FLAG if self._is_agent else REWARD_FLAG)

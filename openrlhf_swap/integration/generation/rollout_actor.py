"""vLLM's Ray actor, with reproducible rollouts."""

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
from openrlhf_swap.integration.generation.sampling import FAILED, ContinuationRequest, read_response
from openrlhf_swap.integration.patches import ENGINE_STARTS, installed, undecorated
from openrlhf_swap.packages.versions import replace
from openrlhf_swap.rollouts.rollout import Rollout

HEALTH_SECONDS = 1.0  # between two looks at an engine
_StockRolloutActor: Any = undecorated(RolloutRayActor)


@dataclass
class EngineFactory:
    """Replaces the rollout actor's class where OpenRLHF makes engines, to pass vLLM arguments that
    have no flag.
    """

    actor_class: Any
    more: dict[str, Any]

    def options(self, **options: Any) -> EngineFactory:
        return EngineFactory(self.actor_class.options(**options), self.more)

    def remote(self, **arguments: Any) -> Any:
        return self.actor_class.remote(**{**arguments, **self.more})


def expert_kernels(model: str) -> dict[str, str]:
    """Arguments that keep experts' weights as they are sent: on GPUs after Hopper, vLLM 0.29
    reorders them.
    """
    # vLLM's module cannot be the first of its package that a process imports.
    from vllm.transformers_utils.model_arch_config_convertor import (
        MODEL_ARCH_CONFIG_CONVERTORS,
        ModelArchConfigConvertorBase,
    )

    config = AutoConfig.from_pretrained(
        model, trust_remote_code=True
    )  # its code was allowed before
    convertor = MODEL_ARCH_CONFIG_CONVERTORS.get(config.model_type, ModelArchConfigConvertorBase)
    experts = convertor(config, config.get_text_config()).get_num_experts()
    if not experts or getattr(config, "quantization_config", None):  # which has kernels of its own
        return {}
    return {"moe_backend": "triton"}


def run_here(function: Callable[[], Any]) -> Any:
    """Stands for vLLM's call in a process of its own, which only a process that forks needs."""
    return function()


class TextsOnce:
    """A tokenizer for one prompt, which OpenRLHF asks for each sample's text; `ids` are the
    prompt's, if known.
    """

    def __init__(self, tokenizer: Any, prompt: str, ids: list[int] | None) -> None:
        self._tokenizer, self._known = (
            tokenizer,
            {} if ids is None else {prompt: torch.tensor([ids])},
        )

    def __call__(self, text: str, **options: Any) -> dict[str, torch.Tensor]:
        if text not in self._known:
            self._known[text] = self._tokenizer(text=text, **options)["input_ids"]
        return {"input_ids": self._known[text]}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


def explain_failures(function: Callable[..., Any]) -> Callable[..., dict[str, Any]]:
    """A reward function whose errors, which OpenRLHF drops, travel in `extra_logs`; `read_response`
    raises them.
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


class SwapRolloutActor(_StockRolloutActor):
    """With a seed, samples depend only on the seed, prompt, number and weights, not on what was
    drawn before.
    """

    _seed: str | None = None
    _weight_updates = 0

    async def __init__(self, *args: Any, **kwargs: Any) -> None:  # type: ignore[misc]  # Ray awaits it
        print("[swap] vLLM: an engine starts; its process imports", flush=True)
        with installed(ENGINE_STARTS):
            await super().__init__(*args, **kwargs)
        self._watch = asyncio.create_task(self.exit_with_engine())

    async def exit_with_engine(self) -> None:
        """End this process after its engine: Ray then fails every call, while vLLM 0.29.0 only
        fails open requests.
        """
        while True:
            await asyncio.sleep(HEALTH_SECONDS)
            try:
                await self.llm.check_health()
            except EngineDeadError:
                await asyncio.sleep(HEALTH_SECONDS)  # in which the open requests fail
                os._exit(1)

    async def transfer_weights(self, method: str, *info: Any) -> None:
        await self.llm.collective_rpc(method, args=info)
        self._weight_updates += method == "finish_weight_update"

    def weight_updates(self) -> int:
        return self._weight_updates

    def seed_samples(self, seed: str) -> None:
        self._seed = seed

    async def check_health(self) -> None:
        await self.llm.check_health()

    def configure_reward(self, **settings: str) -> None:
        """Give a reward function the settings that it has parameters for, such as `end_of_thought`."""
        function = getattr(self.executor, "reward_func", None)
        if function is not None:  # as it is for an agent, whose environment gives the rewards
            taken = inspect.signature(function).parameters
            wanted = {name: value for name, value in settings.items() if name in taken}
            replace(
                self.executor,
                "reward_func",
                explain_failures(functools.partial(function, **wanted)),
                "openrlhf",
            )

    async def generate(
        self, prompt_token_ids: list[int], sampling_params: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Overrides OpenRLHF's: each turn of a seeded agent draws from a generator of its own."""
        if (
            self._is_agent and sampling_params.seed is not None
        ):  # a clone: OpenRLHF gives each turn the first one's
            sampling_params.seed = zlib.crc32(
                f"{sampling_params.seed}:{len(prompt_token_ids)}".encode()
            )
        return await super().generate(prompt_token_ids, sampling_params, *args, **kwargs)

    @property
    def _is_agent(self) -> bool:
        return not isinstance(self.executor, SingleTurnAgentExecutor)

    async def generate_responses(
        self,
        prompt: str,
        label: str,
        sampling_params: Any,
        max_length: int,
        hf_tokenizer: Any,
        num_samples: int = 1,
        images: None = None,
        prefix: Rollout | None = None,
    ) -> list[Rollout]:
        """Overrides OpenRLHF's: returns rollouts; of a `prefix`, if given, which is not generated
        again.
        """
        stock, key, ids, start = super().generate_responses, prompt, None, None
        if prefix is not None:
            ids, start = [*prefix.prompt_ids, *prefix.response_ids], prefix.start
            key = f"{prompt}:{ids}"
        tokenizer = TextsOnce(hf_tokenizer, prompt, ids)

        async def draw(number: int) -> Rollout:
            sampling = sampling_params.clone()
            # Otherwise vLLM hands over all tokens so far at each token, and OpenRLHF throws all but
            # the last away.
            sampling.output_kind = RequestOutputKind.FINAL_ONLY
            if self._seed is not None:
                sampling.seed = zlib.crc32(f"{self._seed}:{number}:{key}".encode())
            try:
                (response,) = await stock(
                    prompt, label, sampling, max_length, tokenizer, num_samples=1
                )
            except Exception as error:
                if not self._is_agent or isinstance(error, EngineDeadError):
                    raise
                traceback.print_exc()
                raise DataError(
                    f"the agent of --train.agent_func_path failed with {type(error).__name__}: {first_line(error)}; "
                    "the traceback is in train.log"
                ) from None
            flag = "--train.agent_func_path" if self._is_agent else "--reward.remote_url"
            return read_response(response, start, flag)

        return list(await asyncio.gather(*map(draw, range(num_samples))))

    async def continue_rollouts(
        self,
        requests: list[ContinuationRequest],
        sampling_params: Any,
        max_length: int,
        hf_tokenizer: Any,
    ) -> list[list[Rollout]]:
        async def respond(request: ContinuationRequest) -> list[Rollout]:
            prefix, wanted, limited = request.prefix, request.wanted, sampling_params.clone()
            limited.max_tokens = wanted.max_new_tokens
            common = (prefix.prompt, prefix.record["label"], limited, max_length, hf_tokenizer)
            return await self.generate_responses(*common, wanted.count, prefix=prefix)

        return list(await asyncio.gather(*map(respond, requests)))

"""vLLM's Ray actor, with rollouts that can be drawn again."""

from __future__ import annotations

import asyncio
import functools
import inspect
import zlib
from dataclasses import dataclass
from typing import Any

import torch
from openrlhf.trainer.ray.vllm_engine import RolloutRayActor

from openrlhf_swap.integration.generation.rollout_worker import SwapWorker
from openrlhf_swap.integration.patches import undecorated
from openrlhf_swap.packages.replace import replace

_StockRolloutActor: Any = undecorated(RolloutRayActor)


class EngineFactory:
    """Stands for the rollout actor's class where OpenRLHF makes engines, which has no flags for some of vLLM's."""

    def __init__(self, actor_class: Any, more: dict[str, int]) -> None:
        """Takes a Ray actor class, and arguments of vLLM's engines."""
        self._actor_class = actor_class
        self._more = more

    def options(self, **options: Any) -> EngineFactory:
        """As Ray's."""
        return EngineFactory(self._actor_class.options(**options), self._more)

    def remote(self, **arguments: Any) -> Any:
        """As Ray's; starts an engine."""
        return self._actor_class.remote(**arguments, **self._more)


class PretokenizedPrompt:
    """Stands for a tokenizer where OpenRLHF reads a prompt, of which the tokens are known."""

    def __init__(self, tokenizer: Any, ids: list[int]) -> None:
        """Takes the tokenizer and the tokens of any prompt."""
        self._ids = torch.tensor([ids])
        self.decode = tokenizer.decode

    def __call__(self, **_: Any) -> dict[str, torch.Tensor]:
        """The tokens, as a tokenizer gives those of a text."""
        return {"input_ids": self._ids}


@dataclass(frozen=True)
class TokenRequest:
    """`count` generations of at most `max_tokens` behind `ids`, which begin with the prompt as they were given it."""

    prompt: str
    ids: list[int]
    max_tokens: int
    count: int


class SwapRolloutActor(_StockRolloutActor):
    """OpenRLHF's rollout actor; with a seed, each sample depends on it, the prompt, its number and the weights only.

    vLLM's own generator goes on from sample to sample, so what a resumed run draws would depend on how many samples
    the killed one had drawn.
    """

    worker: type = SwapWorker
    _seed: str | None = None
    _weight_updates = 0

    async def update_weight(self, *args: Any, empty_cache: bool = False, **kwargs: Any) -> None:
        """As OpenRLHF's, which sets `empty_cache` with the last parameter of an update."""
        await super().update_weight(*args, empty_cache=empty_cache, **kwargs)
        self._weight_updates += empty_cache

    def weight_updates(self) -> int:
        """How often the weights were replaced."""
        return self._weight_updates

    async def __init__(self, *args: Any, **kwargs: Any) -> None:  # type: ignore[misc]  # Ray awaits it
        kwargs["worker_extension_cls"] = f"{self.worker.__module__}.{self.worker.__qualname__}"
        await super().__init__(*args, **kwargs)

    def seed_samples(self, seed: str) -> None:
        """Draw the samples to come with this seed. It costs a generator for each of them."""
        self._seed = seed

    async def check_health(self) -> None:
        """Raise vLLM's EngineDeadError when the engine has ended."""
        await self.llm.check_health()

    async def cache_tokens(self) -> int:
        """How many tokens the engine's cache holds."""
        cache = self.llm.vllm_config.cache_config
        return int((cache.num_gpu_blocks or 0) * cache.block_size)

    def set_end_of_thought(self, mark: str) -> None:
        """Tell what closes a thought to a reward function that asks for it: one with a parameter `end_of_thought`."""
        function = self.executor.reward_func
        if function is not None and "end_of_thought" in inspect.signature(function).parameters:
            replace(self.executor, "reward_func", functools.partial(function, end_of_thought=mark), "openrlhf")

    async def continue_responses(
        self, requests: list[TokenRequest], label: str, sampling_params: Any, max_length: int, hf_tokenizer: Any
    ) -> list[list[dict[str, Any]]]:
        """Continuations of each request, all in flight at once.

        As OpenRLHF's responses, graded as such to the prompt, but `observation_tokens` are the new ones alone.
        """

        async def go_on(request: TokenRequest) -> list[dict[str, Any]]:
            limited = sampling_params.clone()
            limited.max_tokens = request.max_tokens
            given, key = PretokenizedPrompt(hf_tokenizer, request.ids), f"{request.prompt}:{request.ids}"
            common = (request.prompt, label, limited, max_length, given)
            responses = await self.generate_responses(*common, num_samples=request.count, key=key)
            before = len(request.ids)
            return [{**r, "observation_tokens": r["observation_tokens"][before:]} for r in responses]

        return list(await asyncio.gather(*map(go_on, requests)))

    async def generate_responses(
        self,
        prompt: str,
        label: str,
        sampling_params: Any,
        *args: Any,
        num_samples: int = 1,
        key: str | None = None,
        **kwargs: Any,
    ) -> list[dict[str, Any]]:
        """As OpenRLHF's: `num_samples` responses to one prompt. Seeds depend on `key`, by default the prompt."""
        if self._seed is None:
            return await super().generate_responses(
                prompt, label, sampling_params, *args, num_samples=num_samples, **kwargs
            )

        async def draw(number: int) -> dict[str, Any]:
            seeded = sampling_params.clone()
            seeded.seed = zlib.crc32(f"{self._seed}:{number}:{key or prompt}".encode())
            (response,) = await super(SwapRolloutActor, self).generate_responses(
                prompt, label, seeded, *args, num_samples=1, **kwargs
            )
            return response

        return list(await asyncio.gather(*(draw(number) for number in range(num_samples))))

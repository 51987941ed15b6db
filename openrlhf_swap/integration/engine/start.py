"""The start of vLLM's engines by OpenRLHF's own function."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import ray
from openrlhf.trainer.ray import create_vllm_engines

from openrlhf_swap.integration.engine import actor
from openrlhf_swap.integration.patches import ENGINES_ARE_MADE, installed
from openrlhf_swap.integration.weights.way import share_gpus

ROLLOUT_ACTOR = "openrlhf.trainer.ray.vllm_engine.RolloutRayActor"


@dataclass
class EngineFactory:
    """Stands for the actor's class where OpenRLHF makes engines: adds arguments without a flag."""

    actor_class: Any
    more: dict[str, Any]

    def options(self, **options: Any) -> EngineFactory:
        """As the class, with options of Ray."""
        return EngineFactory(self.actor_class.options(**options), self.more)

    def remote(self, **arguments: Any) -> Any:
        """Start an actor with these arguments and the added ones."""
        return self.actor_class.remote(**(arguments | self.more))


def start_engines(args: SimpleNamespace, more: dict[str, Any], shared: Any) -> list[Any]:
    """Start vLLM's engines, with `more` arguments, on GPUs of their own or the policy's.

    OpenRLHF would let engines that are to sleep do so at once, and wait for them.
    """
    factory = EngineFactory(
        ray.remote(actor.SwapRolloutActor), more | {"enable_sleep_mode": args.vllm.enable_sleep}
    )
    corrects = args.algo.advantage.is_correction_level != "off"
    with installed(ENGINES_ARE_MADE, {ROLLOUT_ACTOR: factory}):
        return create_vllm_engines(
            args.vllm.num_engines,
            args.vllm.tensor_parallel_size,
            args.actor.model_name_or_path,
            args.train.seed,
            args.train.full_determinism_enable,
            args.vllm.enable_prefix_caching,
            args.vllm.enforce_eager,
            args.data.max_len,
            shared if share_gpus(args) else None,
            args.vllm.gpu_memory_utilization,
            vllm_enable_sleep=False,
            logprobs_mode="processed_logprobs" if corrects else None,
            agent_func_path=args.train.agent_func_path,
            remote_rm_url=args.reward.remote_url,
        )

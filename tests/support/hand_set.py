"""A rollout actor whose weights a test sets by hand, from a file."""

from safetensors.torch import load_file

from openrlhf_swap.integration.generation.rollout_actor import CpuRolloutActor
from openrlhf_swap.integration.generation.rollout_worker import CpuWorker


class HandSetWorker(CpuWorker):
    """The extension of vLLM's worker."""

    def set_weights(self, path):
        with self._receiving(is_last=True):
            self.model_runner.model.load_weights(weights=list(load_file(path).items()))


class HandSetActor(CpuRolloutActor):
    """An engine."""

    worker = HandSetWorker

    async def set_weights(self, path):
        await self.llm.collective_rpc("set_weights", args=(path,))

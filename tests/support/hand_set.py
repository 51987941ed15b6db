"""A rollout actor whose weights a test sets by hand, from a file."""

import asyncio

from safetensors.torch import load_file

from openrlhf_swap.integration.engine.actor import SwapRolloutActor
from openrlhf_swap.integration.runtime.weights import BytesSender


class HandSetActor(SwapRolloutActor):
    """An engine."""

    async def set_weights(self, path):
        loop, engine = asyncio.get_running_loop(), self

        class Client:
            """Of this engine alone."""

            def __getattr__(self, method):
                def call(*info):
                    return asyncio.run_coroutine_threadsafe(
                        engine.transfer_weights(method, *info), loop
                    ).result()

                return call

        await asyncio.to_thread(
            BytesSender(client=Client(), source=load_file(path).items()).send_weights
        )

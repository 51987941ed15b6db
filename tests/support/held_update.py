"""A training on a CPU in which the policy sends its weights and the engine does not receive them.

    HELD_UPDATE=FILE python -m support.held_update ...   # flags as of `openrlhf_swap train`

FILE appears when the engine is told of the first weights. `tests/` must be on PYTHONPATH.
"""

import asyncio
import os
import sys
from pathlib import Path
from unittest import mock

from openrlhf_swap.integration.engine import actor


class HeldRolloutActor(actor.SwapRolloutActor):
    """Stands in for an engine that hangs while it takes weights."""

    async def transfer_weights(self, method, *info):
        if method == "update_weights":
            Path(os.environ["HELD_UPDATE"]).touch()
            await asyncio.sleep(600)
        await super().transfer_weights(method, *info)


def main(argv):
    from openrlhf_swap import train
    from openrlhf_swap.command import run_command

    with mock.patch.object(actor, "SwapRolloutActor", HeldRolloutActor):
        return run_command(train.main, argv)


if __name__ == "__main__":
    # Workers import the class by the name of its module, which must not be `__main__`.
    from support.held_update import main

    sys.exit(main(sys.argv[1:]))

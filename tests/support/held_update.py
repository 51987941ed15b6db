"""A training on a CPU whose weights stay on their way: the policy sends, and the engine does not
receive.

    HELD_UPDATE=FILE python -m support.held_update ...   as python -m openrlhf_swap.train, with
    tests/ on PYTHONPATH

FILE appears when the engine was told of the weights that it does not take: the first.
"""

import asyncio
import os
import sys
from pathlib import Path
from unittest import mock

from openrlhf_swap.integration.engine import actor


class HeldRolloutActor(actor.SwapRolloutActor):
    """The rollout actor."""

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
    from support.held_update import main  # the classes have to have a name that workers can import

    sys.exit(main(sys.argv[1:]))

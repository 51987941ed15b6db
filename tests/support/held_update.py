"""A training on a CPU whose weights stay on their way: the policy sends, and the engine does not receive.

    HELD_UPDATE=FILE python -m support.held_update ...   as python -m openrlhf_swap.train, with tests/ on PYTHONPATH

FILE appears when the engine was told of the weight that it does not take: the first, or with HELD_FROM=OTHER the first
when OTHER exists.
"""

import os
import sys
import time
from pathlib import Path
from unittest import mock

from openrlhf_swap.integration.generation import rollout_actor


class HeldWorker(rollout_actor.CpuWorker):
    """The extension of vLLM's worker."""

    def update_weight(self, *args, **kwargs):
        if not Path(os.environ.get("HELD_FROM", "/")).exists():
            return super().update_weight(*args, **kwargs)
        Path(os.environ["HELD_UPDATE"]).touch()
        time.sleep(600)


class HeldRolloutActor(rollout_actor.CpuRolloutActor):
    """The rollout actor."""

    worker = HeldWorker


def main(argv):
    from openrlhf_swap import train
    from openrlhf_swap.command import run_command

    with mock.patch.object(rollout_actor, "CpuRolloutActor", HeldRolloutActor):
        return run_command(train.main, argv)


if __name__ == "__main__":
    from support.held_update import main  # the classes have to have a name that workers can import

    sys.exit(main(sys.argv[1:]))

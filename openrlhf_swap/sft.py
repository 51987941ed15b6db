"""OpenRLHF's supervised trainer, also on a machine without CUDA.

    deepspeed --module openrlhf_swap.sft --model.model_name_or_path ... --data.dataset ...

Takes the flags of `openrlhf.cli.train_sft` unchanged.
"""

from __future__ import annotations

import runpy
import sys

from openrlhf_swap.command import run_command
from openrlhf_swap.flags.device import is_cpu_build


def main(_: list[str]) -> None:
    """Train; OpenRLHF reads the command line itself."""
    # The package prepares the process before OpenRLHF is imported.
    from openrlhf_swap.integration import patches
    from openrlhf_swap.integration.policy.strategy import SwapStrategy
    from openrlhf_swap.integration.runtime.cpu_build import build_communication_op

    if is_cpu_build():
        build_communication_op()
    with patches.rebound({"openrlhf.utils.deepspeed.DeepspeedStrategy": SwapStrategy}):
        runpy.run_module("openrlhf.cli.train_sft", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    sys.exit(run_command(main))

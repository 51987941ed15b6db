"""Every touch of OpenRLHF, Ray, vLLM and DeepSpeed.

Importing this package prepares the process: for a missing flash-attn, and for a CPU build of torch.
Ray workers and vLLM's engine import our classes by name, so the preparation reaches every process
before OpenRLHF is imported there.
"""

import gc as _gc

# Imported objects stay alive: looking among them for garbage takes an eighth of a process's start.
_gc.disable()
try:
    from openrlhf_swap.integration.runtime.attention import prepare as _prepare_attention
    from openrlhf_swap.integration.runtime.cpu import prepare_for_cpu as _prepare_for_cpu

    _prepare_attention()
    _prepare_for_cpu()
finally:
    _gc.enable()

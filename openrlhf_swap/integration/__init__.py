"""Every touch of OpenRLHF, Ray, vLLM and DeepSpeed.

Importing this package prepares the process for a CPU build of torch: Ray workers and vLLM's engine import our
classes by name, so the preparation reaches every process before OpenRLHF is imported there.
"""

from openrlhf_swap.integration.cpu import install as _install_cpu

_install_cpu()

"""The attention of cuDNN, one of those that torch's SDPA chooses from on GPUs."""

from __future__ import annotations

import torch


def leave_out_cudnn() -> None:
    """Keep this process's SDPA from cuDNN.

    On an H100 torch prefers it, and it builds a plan for each new shape, which every length of a response is. vLLM
    switches it off when it is imported: so processes with and without vLLM compute with the same kernels.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)

"""As much of DeepSpeed's engine as an Actor needs."""

from torch import nn


class Engine(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

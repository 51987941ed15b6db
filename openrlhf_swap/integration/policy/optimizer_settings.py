"""The optimizer's settings in a resumed run: those of its flags, not the checkpoint's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SETTINGS = ("initial_lr", "betas", "eps", "weight_decay")


@contextmanager
def kept(engine: Any) -> Iterator[None]:
    """Keep a DeepSpeed engine's settings while it loads a checkpoint, which restores the former run's.

    Learning rate and schedule, Adam's other numbers and the limit of the gradient's norm stay as the flags have them.
    What is loaded are the moments and the place in the schedule.
    """
    optimizer, scheduler = engine.optimizer, engine.lr_scheduler
    given = [{name: group[name] for name in SETTINGS if name in group} for group in optimizer.param_groups]
    base_lrs, clip_grad = list(scheduler.base_lrs), optimizer.clip_grad
    yield
    optimizer.clip_grad, scheduler.base_lrs = clip_grad, base_lrs
    factors = [function(scheduler.last_epoch) for function in scheduler.lr_lambdas]
    for group, settings, lr, factor in zip(optimizer.param_groups, given, base_lrs, factors, strict=True):
        group.update(settings, lr=lr * factor)

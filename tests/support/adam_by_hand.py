"""Five updates by DeepSpeed and the same ones by hand: how many weights differ.

    python -m support.adam_by_hand

A line is printed for each ZeRO stage and each place of the optimizer.
"""

import tempfile
from pathlib import Path
from types import SimpleNamespace

import torch

from openrlhf_swap.integration.policy.safe_loading import forbid_pickles
from openrlhf_swap.integration.policy.strategy import SwapStrategy
from openrlhf_swap.integration.startup.communication_op import build_communication_op
from support.paths import POLICY

OPTIONS = {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.01}
MAX_NORM = 1.0
# A resumed training goes on after this many updates, with other settings.
RESUMED = "resumed"
STOPPED = 2
LATER = {"lr": 2e-4, "betas": (0.8, 0.99), "eps": 1e-6, "weight_decay": 0.1}
LATER_NORM = 0.01


def make_model():
    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)]
    return torch.nn.Sequential(*layers).bfloat16()


def loss_of(model, number):
    generator = torch.Generator().manual_seed(number)
    batch = torch.randn(8, 64, generator=generator).bfloat16()
    return model(batch).float().pow(2).mean()


def flat(model):
    parts = [parameter.detach().float().flatten() for parameter in model.parameters()]
    return torch.cat(parts)


def by_hand(place):
    """Update float32 copies of the weights by clipped gradients and torch's unfused AdamW."""
    model = make_model()
    copies = [parameter.detach().float().clone() for parameter in model.parameters()]
    weights = {"params": copies[::2]}
    biases = {"params": copies[1::2], "weight_decay": 0.0}
    adam = torch.optim.AdamW([weights, biases], foreach=False, fused=False, **OPTIONS)
    max_norm = MAX_NORM
    for number in range(5):
        if place == RESUMED and number == STOPPED:
            max_norm = LATER_NORM
            adam.param_groups[0].update(LATER)
            adam.param_groups[1].update(LATER, weight_decay=0.0)
        loss_of(model, number).backward()
        gradients = [parameter.grad.float() for parameter in model.parameters()]
        flat_gradients = torch.cat([gradient.flatten() for gradient in gradients])
        norm = flat_gradients.norm().item()
        for copy, gradient in zip(copies, gradients, strict=True):
            copy.grad = gradient / max(1.0, (norm + 1e-6) / max_norm)
        adam.step()
        for parameter, copy in zip(model.parameters(), copies, strict=True):
            parameter.data.copy_(copy)
            parameter.grad = None
    return flat(model)


def make_engine(stage, offload, options, max_norm):
    """Prepare the model as a training does; returns the strategy and DeepSpeed's engine."""
    args = SimpleNamespace(
        ds=SimpleNamespace(
            attn_implementation="sdpa", param_dtype="bf16", adam_offload=offload, zpg=1
        ),
        train=SimpleNamespace(dynamic_batch_enable=False),
        model=SimpleNamespace(model_name_or_path=str(POLICY)),
    )
    strategy = SwapStrategy(
        zero_stage=stage, max_norm=max_norm, micro_train_batch_size=1, train_batch_size=1, args=args
    )
    settings = {
        "optim": "adam",
        "adam": {**options, "betas": list(options["betas"])},
        "lr_scheduler": "constant",
        "scheduler_steps": 9,
        "max_norm": max_norm,
    }
    engine, optimizer, _ = strategy.prepare((make_model(), settings))
    assert type(optimizer.optimizer) is torch.optim.AdamW
    return strategy, engine


def by_deepspeed(stage, place):
    """Let DeepSpeed do the updates, as the strategy of a training configures it."""
    import deepspeed

    strategy, engine = make_engine(stage, place == "offloaded", OPTIONS, MAX_NORM)
    for number in range(5):
        if place == RESUMED and number == STOPPED:
            with tempfile.TemporaryDirectory() as folder:
                strategy.save_ckpt(engine, folder, "two")
                strategy, engine = make_engine(stage, False, LATER, LATER_NORM)
                strategy.load_ckpt(engine, folder)
        engine.backward(loss_of(engine, number))
        engine.step()
    with deepspeed.zero.GatheredParameters(list(engine.module.parameters())):
        return flat(engine.module)


if __name__ == "__main__":
    import deepspeed

    forbid_pickles()  # as in a training
    build_communication_op()
    deepspeed.init_distributed("gloo")
    for stage in (1, 2, 3):
        for place in ("kept", "offloaded", RESUMED):
            differ = by_deepspeed(stage, place) != by_hand(place)
            print("differ", stage, place, differ.sum().item())
    # The compiled ops of DeepSpeed that this process has in memory.
    mapped = Path("/proc/self/maps").read_text().splitlines()
    loaded = {line.split()[-1] for line in mapped if "torch_extensions" in line}
    print("loaded", *loaded)

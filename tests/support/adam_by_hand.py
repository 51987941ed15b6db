"""Five updates by DeepSpeed as configured, and by hand: how many weights differ, by ZeRO stage and
placement.
"""

import tempfile
from pathlib import Path
from types import SimpleNamespace

import torch

from openrlhf_swap.integration.policy.safe_loading import forbid_pickles
from openrlhf_swap.integration.policy.strategy import SwapStrategy
from openrlhf_swap.integration.runtime.cpu import build_communication_op
from support.paths import POLICY

OPTIONS = {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.01}
RESUMED, STOPPED = "resumed", 2  # after so many updates, with the numbers of:
LATER, LATER_NORM = {"lr": 2e-4, "betas": (0.8, 0.99), "eps": 1e-6, "weight_decay": 0.1}, 0.01


def make_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)).bfloat16()


def loss_of(model, number):
    batch = torch.randn(8, 64, generator=torch.Generator().manual_seed(number)).bfloat16()
    return model(batch).float().pow(2).mean()


def flat(model):
    return torch.cat([parameter.detach().float().flatten() for parameter in model.parameters()])


def by_hand(place):
    """Float32 copies of the weights, clipped gradients, and torch's AdamW without any fusing."""
    model = make_model()
    copies = [parameter.detach().float().clone() for parameter in model.parameters()]
    biases = {"params": copies[1::2], "weight_decay": 0.0}  # do not decay
    groups = [{"params": copies[::2]}, biases]
    adam = torch.optim.AdamW(groups, foreach=False, fused=False, **OPTIONS)
    most = 1.0
    for number in range(5):
        if place == RESUMED and number == STOPPED:
            most = LATER_NORM
            adam.param_groups[0].update(LATER)
            adam.param_groups[1].update(LATER, weight_decay=0.0)
        loss_of(model, number).backward()
        gradients = [parameter.grad.float() for parameter in model.parameters()]
        norm = torch.cat([gradient.flatten() for gradient in gradients]).norm().item()
        for copy, gradient in zip(copies, gradients, strict=True):
            copy.grad = gradient / max(1.0, (norm + 1e-6) / most)
        adam.step()
        for parameter, copy in zip(model.parameters(), copies, strict=True):
            parameter.data.copy_(copy)
            parameter.grad = None
    return flat(model)


def make_engine(stage, offload, options, norm):
    ds = SimpleNamespace(
        attn_implementation="sdpa", param_dtype="bf16", adam_offload=offload, zpg=1
    )
    model = SimpleNamespace(model_name_or_path=str(POLICY))
    args = SimpleNamespace(ds=ds, train=SimpleNamespace(dynamic_batch_enable=False), model=model)
    strategy = SwapStrategy(
        zero_stage=stage, max_norm=norm, micro_train_batch_size=1, train_batch_size=1, args=args
    )
    cfg = {
        "optim": "adam",
        "adam": {**options, "betas": list(options["betas"])},
        "lr_scheduler": "constant",
        "scheduler_steps": 9,
        "max_norm": norm,
    }
    engine, optimizer, _ = strategy.prepare((make_model(), cfg))
    assert type(optimizer.optimizer) is torch.optim.AdamW
    return strategy, engine


def by_deepspeed(stage, place):
    import deepspeed

    strategy, engine = make_engine(stage, place == "offloaded", OPTIONS, 1.0)
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
            expected = by_hand(place)
            print("differ", stage, place, (by_deepspeed(stage, place) != expected).sum().item())
    # The compiled ops of DeepSpeed that this process has in memory.
    mapped = Path("/proc/self/maps").read_text().splitlines()
    print("loaded", *{line.split()[-1] for line in mapped if "torch_extensions" in line})

"""What a process has really replaced: everything of other packages is looked at before and after."""

import gc
import importlib
import logging
import operator
import os
import re
import resource
import signal
import sys
import types

OTHERS = ("openrlhf", "vllm", "deepspeed", "transformers", "torch", "ray", "peft", "wandb", "accelerate")
STANDARD = ("sys", "builtins", "os", "signal", "argparse", "runpy", "gc")
FLASH = {
    "flash_attn.bert_padding": ("index_first_axis", "pad_input", "rearrange", "unpad_input"),
    "flash_attn.utils.distributed": ("all_gather",),
    "flash_attn.ops.triton.cross_entropy": ("cross_entropy_loss",),
}
TOUCHED = (
    "deepspeed.ops.adam.fused_adam",
    "deepspeed.runtime.zero.stage3",
    "openrlhf.cli.train_ppo_ray",
    "openrlhf.cli.train_sft",
    "openrlhf.trainer.ppo_trainer_async",
    "openrlhf.trainer.ray.vllm_worker_wrap",
    "vllm.entrypoints.llm",
    "vllm.model_executor.layers.attention",
    "vllm.model_executor.layers.fused_moe",
    "vllm.model_executor.model_loader.reload.layerwise",
    "vllm.v1.engine.exceptions",
)
BY_THEMSELVES = {  # a counter of torch, what vLLM's own context manager sets, and a registry that is part of the state
    "torch.utils.hooks.RemovableHandle.next_id",
    "vllm.config.vllm._current_vllm_config",
    "torch._weights_only_unpickler._marked_safe_globals_set",
}


def import_originals():
    """All modules that are touched, OpenRLHF's without flash-attn and without ours."""
    os.environ["DS_ACCELERATOR"] = "cpu"  # DeepSpeed reads it when it is imported
    for name, members in FLASH.items():
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update(dict.fromkeys(members))
    for name in TOUCHED:
        importlib.import_module(name)
    del os.environ["DS_ACCELERATOR"]
    for name in FLASH:
        del sys.modules[name]


def names():
    """The attributes of every module of other packages, and of every class in them, by what has them."""
    found = {}
    for module_name, module in list(sys.modules.items()):
        if module_name.partition(".")[0] not in OTHERS and module_name not in STANDARD:
            continue
        own = found[module_name, None] = dict(vars(module))
        for name, value in own.items():
            if isinstance(value, type) and value.__module__ == module_name:
                found[module_name, name] = dict(vars(value))
    return found


def are_same(now, before):
    """Whether two dicts hold the same objects in the same order; there are too many to look at each."""
    return list(now) == list(before) and all(map(operator.is_, now.values(), before.values()))


def methods():
    """What single objects have in the place of a method of their class, and every callable that they hold."""
    found = {}
    for thing in gc.get_objects():
        if isinstance(thing, type | types.ModuleType | types.FunctionType | dict | list | tuple | set):
            continue
        kind = type(thing)
        own = getattr(thing, "__dict__", None) if kind.__module__.partition(".")[0] in OTHERS else None
        if type(own) is dict:
            found |= {(id(thing), name): (thing, value) for name, value in own.items() if callable(value)}
    return found


def cpu_kernel(name):
    """The line of torch's registry that tells which file an operator's kernel for the CPU comes from."""
    import torch

    return re.search(r"(?m)^CPU: .*", torch._C._dispatch_dump(f"aten::{name}"))[0]


def state():
    import torch
    from transformers import AttentionInterface, AttentionMaskInterface

    from openrlhf_swap.packages.kernels import PRODUCTS

    return {
        **{f'torch.library.get_kernel("aten::{name}", "CPU")': cpu_kernel(name) for name in PRODUCTS},
        "gc.get_freeze_count()": gc.get_freeze_count() > 0,
        "torch.serialization.get_safe_globals()": list(torch.serialization.get_safe_globals()),
        "torch.backends.cuda.cudnn_sdp_enabled()": torch.backends.cuda.cudnn_sdp_enabled(),
        "transformers.AttentionInterface": dict(AttentionInterface._global_mapping),
        "transformers.AttentionMaskInterface": dict(AttentionMaskInterface._global_mapping),
        "resource.RLIMIT_AS": resource.getrlimit(resource.RLIMIT_AS),
        "signal.SIGINT": signal.getsignal(signal.SIGINT),
        'logging.getLogger("math_verify").level': logging.getLogger("math_verify").level,
    }


def is_ours(value):
    if isinstance(value, types.ModuleType):  # a lazy one would import what it is asked for
        return value.__name__.startswith("openrlhf_swap")
    module = getattr(value, "__module__", None) or getattr(getattr(value, "func", None), "__module__", None)
    return str(module).startswith("openrlhf_swap")


class Watch:
    """The process as it is now, and what has changed since."""

    def __init__(self):
        self.names, self.methods = names(), methods()
        self.modules, self.variables, self.state = dict(sys.modules), dict(os.environ), state()

    def changes(self):
        absent = object()
        found = set()
        for owner, now in names().items():
            then = self.names.get(owner, {})
            for name, value in () if are_same(now, then) else now.items():
                before, path = then.get(name, absent), ".".join(filter(None, (*owner, name)))
                if value is not before and path not in BY_THEMSELVES and (before is not absent or is_ours(value)):
                    found.add(("NAME", path))
        for (key, name), (thing, value) in methods().items():
            _, before = self.methods.get((key, name), (None, absent))
            if value is not before and (hasattr(type(thing), name) or before is not absent):
                kinds = [f"{kind.__module__}.{kind.__qualname__}.{name}" for kind in type(thing).__mro__]
                found.add(("METHOD", *kinds))
        for name, module in sys.modules.items():
            before = self.modules.get(name, absent)
            if module is not before and (before is not absent or getattr(module, "__name__", name) != name):
                found.add(("MODULE", name))
        found |= {("VARIABLE", name) for name, text in os.environ.items() if self.variables.get(name) != text}
        now = state()
        found |= {("STATE", name) for name, value in self.state.items() if now[name] != value}
        return found


class Observed(Exception):
    """Raised in the place of what a process would go on with."""


_watch, RESULT = None, {}


def begin():
    """Compare with the process as it is now."""
    global _watch
    _watch = Watch()


def record(where):
    """Write down what has changed since `begin`."""
    RESULT[where] = sorted(_watch.changes())


def recording(where):
    """Stands for a function in which a process is observed."""

    def observe(*_args, **_kwargs):
        record(where)
        raise Observed

    return observe

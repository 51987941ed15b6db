"""Tensors that claim to be on a GPU, on a machine without one.

Their values live in main memory and every operation runs there, but their device is another one,
registered with torch as a backend of Python code. An operation that mixes them with ordinary
tensors raises, as it would on a GPU, and what makes the host wait for the device is counted.
"""

from collections import Counter
from contextlib import contextmanager
from functools import cache
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import (
    _DummyBackendModule,
    _setup_privateuseone_for_python_backend,
)

NAME = "claimed"
CPU = torch.device("cpu")
_KERNELS = torch.library.Library("aten", "IMPL")
# Their results depend on values, or are values: the host has to wait.
WAITS = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero"}
WAITS |= {"unique_dim", "_unique2", "bincount"}


class _Backend(_DummyBackendModule):
    """What `torch.<device>` offers."""

    def get_amp_supported_dtype(self):
        return [torch.bfloat16, torch.float16]


class MixedDevicesError(RuntimeError):
    """An operation got tensors of both devices."""


@cache
def device():
    """The claimed device; registers it once a process."""
    _setup_privateuseone_for_python_backend(NAME, _Backend())
    # `torch.tensor(..., device=...)` makes its tensor with all modes switched off.
    _KERNELS.impl("empty_strided", _empty_strided, "PrivateUse1")
    _KERNELS.impl("_copy_from", _copy_from, "PrivateUse1")
    return torch.device(NAME, 0)


def _empty_strided(*shape, dtype=None, **_):
    return ClaimedTensor(torch.empty_strided(*shape, dtype=dtype))


def _copy_from(source, target, non_blocking=False):
    unwrapped(target).copy_(unwrapped(source))
    return target


class ClaimedTensor(torch.Tensor):
    """A tensor whose values are those of `held`, which is in main memory."""

    @staticmethod
    def __new__(cls, held):
        assert not isinstance(held, cls) and held.device == CPU
        shape = {"strides": held.stride(), "storage_offset": held.storage_offset()}
        shape |= {"dtype": held.dtype, "device": device()}
        claimed = torch.Tensor._make_wrapper_subclass(cls, held.shape, **shape)
        claimed.held = held
        return claimed

    def tolist(self):
        """Torch has none for subclasses."""
        return self.cpu().tolist()

    def __repr__(self):
        return f"ClaimedTensor({self.held!r})"

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise AssertionError(f"{function} on a claimed tensor outside of `claiming`")


def tensors_in(tree):
    """The tensors in nested lists, tuples and dicts; torch's pytree is too slow for it."""
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, list | tuple):
        for each in tree:
            yield from tensors_in(each)
    elif isinstance(tree, dict):
        yield from tensors_in([*tree.values()])


def with_tensors(tree, change):
    """The same with `change` of each tensor."""
    if isinstance(tree, torch.Tensor):
        return change(tree)
    if isinstance(tree, list | tuple):
        return type(tree)([with_tensors(each, change) for each in tree])
    if isinstance(tree, dict):
        return {name: with_tensors(each, change) for name, each in tree.items()}
    return tree


def unwrapped(tree):
    return with_tensors(tree, _held)


def _held(tensor):
    return tensor.held if isinstance(tensor, ClaimedTensor) else tensor


class _Dispatch(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.waits = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = function.overloadpacket.__name__
        tensors = [*tensors_in(args), *tensors_in(kwargs)]
        claimed = [tensor for tensor in tensors if isinstance(tensor, ClaimedTensor)]
        target = kwargs["device"].type if kwargs.get("device") is not None else None
        # A number may stand on the host: its value goes along with the launch.
        others = [tensor for tensor in tensors if not isinstance(tensor, ClaimedTensor)]
        hosts = [tensor for tensor in others if tensor.dim()]
        if claimed and hosts and name not in ("_to_copy", "copy_"):
            shapes = [(tuple(tensor.shape), tensor.device.type) for tensor in tensors]
            raise MixedDevicesError(f"{function}: {shapes}")
        self._count(name, args, claimed, target)
        if target is not None:
            kwargs["device"] = CPU
        args_held = unwrapped(args)
        if name == "histc":  # a CPU has none for whole numbers
            args_held = (args_held[0].float(), *args_held[1:])
        result = function(*args_held, **unwrapped(kwargs))
        if name.endswith("_") and not name.endswith("__") and isinstance(args[0], torch.Tensor):
            return args[0]
        there = target == NAME if target is not None else bool(claimed)
        if not there or name == "_local_scalar_dense":
            return result
        return with_tensors(result, ClaimedTensor)

    def _count(self, name, args, claimed, target):
        if not claimed:
            return
        by_mask = name.startswith("index") and any(
            isinstance(index, torch.Tensor) and index.dtype == torch.bool
            for index in (args[1] if isinstance(args[1], list | tuple) else ())
        )
        onto_host = name == "copy_" and not isinstance(args[0], ClaimedTensor)
        if name in WAITS or by_mask or target == "cpu" or onto_host:
            self.waits[name] += 1


@contextmanager
def claiming():
    """Within it, the claimed device can be used; yields a Counter of what made the host wait."""
    dispatch = _Dispatch()
    with (
        mock.patch.object(torch.cuda, "current_device", device),
        mock.patch.object(torch.cuda, "synchronize", lambda *_: None),
        dispatch,
    ):
        yield dispatch.waits


def to_claimed(model):
    """Move a model to the claimed device."""
    for module in model.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                moved = ClaimedTensor(parameter.data)
                module._parameters[name] = torch.nn.Parameter(moved, parameter.requires_grad)
        for name, buffer in list(module._buffers.items()):
            if buffer is not None:
                module._buffers[name] = ClaimedTensor(buffer)
    return model

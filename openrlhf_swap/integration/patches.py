"""Puts the replacements of the inventory in force; each only where its package has the version it is written for."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from openrlhf_swap.errors import CompatibilityError
from openrlhf_swap.integration.inventory import PATCHES, Kind
from openrlhf_swap.packages import versions
from openrlhf_swap.packages.replace import replace


def check_versions() -> None:
    """Check what the replacements are written for: the versions of packages, and memory that processes can share.

    Raises:
        CompatibilityError: with the remedy.
    """
    for package in versions.VERSIONS:
        versions.check_version(package)
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        settings = (value := os.environ.get(name, "")).lower().replace(" ", "")
        if "expandable_segments:true" in settings:
            raise CompatibilityError(
                f"{name} is {value}; weights in expandable segments cannot be handed to vLLM over CUDA IPC: unset "
                "expandable_segments"
            )
        if "pinned_max_round_threshold_mb" in settings and "pinned_max_cached_size_mb" not in settings:
            raise CompatibilityError(
                f"{name} is {value}; torch then reuses pinned blocks that are too small, and vLLM's second sleep "
                "fails: unset pinned_max_round_threshold_mb"
            )


def undecorated(actor_class: Any) -> Any:
    """The plain class under a `@ray.remote` class: the decorated one cannot be subclassed."""
    return actor_class.__ray_metadata__.modified_class.__ray_actor_class__


def in_force(where: str, computed: Mapping[str, Any] | None = None) -> ExitStack:
    """Put the inventory's names for `where` in force until what is returned is closed, as a `with` block does.

    A class that takes the place of a Ray actor's becomes one, with the same options.

    Args:
        where: the processes, as the inventory calls them.
        computed: target -> replacement, where that depends on the run.

    Raises:
        CompatibilityError: when a package has another version than they are written for.
    """
    with ExitStack() as restoring:
        for target, replacement, group in PATCHES:
            if (group.kind, group.where) == (Kind.NAME, where):
                module, name = target.rsplit(".", 1)
                owner = importlib.import_module(module)
                value = (computed or {}).get(target) or _in_place_of(getattr(owner, name), replacement)
                restoring.callback(replace(owner, name, value, group.package))
        return restoring.pop_all()


def install(where: str) -> None:
    """Put the inventory's variables, modules and names for `where` in force for good; variables that are set stay.

    Raises:
        CompatibilityError: as `in_force`.
    """
    for name, value in variables(where).items():
        os.environ.setdefault(name, value)
    for target, replacement, group in PATCHES:
        if (group.kind, group.where) == (Kind.MODULE, where):
            versions.check_version(group.package or "")
            sys.modules[target] = importlib.import_module(replacement, __package__)
    in_force(where)


def variables(where: str) -> dict[str, str]:
    """The inventory's environment variables for `where`."""
    groups = (patch for patch in PATCHES if (patch.group.kind, patch.group.where) == (Kind.VARIABLE, where))
    return {target: value for target, value, _ in groups}


def _in_place_of(original: Any, replacement: str) -> Any:
    module, name = replacement.rsplit(".", 1)
    value = getattr(importlib.import_module(module, __package__), name)
    if not hasattr(original, "__ray_metadata__"):
        return value
    import ray

    options = original._default_options
    return ray.remote(**options)(value) if options else ray.remote(value)

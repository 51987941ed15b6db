"""Puts the replacements of the inventory in force; each only where its package has the version it is written for."""

from __future__ import annotations

import argparse
import importlib
import os
import runpy
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

from openrlhf_swap.config import RunConfig, SwapConfig
from openrlhf_swap.errors import CompatibilityError
from openrlhf_swap.integration.inventory import DRIVER, PATCHES, Kind
from openrlhf_swap.packages import versions
from openrlhf_swap.packages.replace import replace, replaced

CLI = "openrlhf.cli.train_ppo_ray"


def check_versions() -> None:
    """Check what the replacements are written for: the versions of packages, and memory that processes can share.

    Raises:
        CompatibilityError: with the remedy.
    """
    for package in versions.VERSIONS:
        versions.check_version(package)
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        if "expandable_segments:true" in (value := os.environ.get(name, "")).lower().replace(" ", ""):
            raise CompatibilityError(
                f"{name} is {value}; weights in expandable segments cannot be handed to vLLM over CUDA IPC: unset "
                "expandable_segments"
            )


def undecorated(actor_class: Any) -> Any:
    """The plain class under a `@ray.remote` class: the decorated one cannot be subclassed."""
    return actor_class.__ray_metadata__.modified_class.__ray_actor_class__


def parse_arguments(argv: list[str]) -> SimpleNamespace:
    """OpenRLHF's own parser on `argv`. It exists only under `__main__`, so its module is run up to the parsing.

    Raises:
        SystemExit: for an unknown flag or a bad value, after argparse has printed why (and after `--help`).
    """
    from openrlhf.utils.config import hierarchize

    parse = argparse.ArgumentParser.parse_args

    def parse_and_stop(parser: argparse.ArgumentParser) -> None:
        raise _Parsed(parse(parser))

    with _as_command_line(argv), replaced(argparse.ArgumentParser, "parse_args", parse_and_stop):
        try:
            runpy.run_module(CLI, run_name="__main__", alter_sys=True)
        except _Parsed as parsed:
            return hierarchize(parsed.namespace)
    raise CompatibilityError(f"{CLI} did not parse its arguments; it is not the one this package was written for")


def run(argv: list[str], config: SwapConfig, run_config: RunConfig, engines: Any) -> None:
    """Run OpenRLHF's training CLI with our classes in the places of its own.

    Args:
        argv: OpenRLHF's arguments.
        config: the method's settings, which reach every actor as `strategy.args.swap`.
        run_config: the run's, as `strategy.args.swap_run`.
        engines: what makes rollout engines: an `EngineFactory`.
    """
    from openrlhf import utils

    stock_strategy = utils.get_strategy

    def get_strategy(args: SimpleNamespace) -> object:
        args.swap, args.swap_run = config, run_config
        return stock_strategy(args)

    computed = {
        "openrlhf.trainer.ray.vllm_engine.RolloutRayActor": engines,
        "openrlhf.utils.get_strategy": get_strategy,
        "sys.argv": ["openrlhf_swap.train", *argv],
    }
    with in_force(DRIVER, computed):
        runpy.run_module(CLI, run_name="__main__", alter_sys=True)


class _Parsed(Exception):
    def __init__(self, namespace: argparse.Namespace) -> None:
        super().__init__()
        self.namespace = namespace


@contextmanager
def _as_command_line(argv: list[str]) -> Iterator[None]:
    with replaced(sys, "argv", ["openrlhf_swap.train", *argv]):
        yield


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

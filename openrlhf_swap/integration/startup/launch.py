"""Start a training, and turn whatever ends it into one line."""

import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import ray
from vllm.v1.engine.exceptions import EngineDeadError

from openrlhf_swap.errors import RunError, SwapError
from openrlhf_swap.flags.configuration import Configuration
from openrlhf_swap.flags.placement import engine_limits
from openrlhf_swap.integration import patches
from openrlhf_swap.integration.driver.run import train
from openrlhf_swap.integration.patches import TRAINS, TRAINS_ALONE
from openrlhf_swap.integration.runtime import attention
from openrlhf_swap.integration.runtime.cpu import WHOLE_PROMPTS, build_communication_op
from openrlhf_swap.integration.weights.way import engine_arguments, expert_kernels
from openrlhf_swap.runs import checkpoints

LAST_WORDS_SECONDS = 1  # that Ray takes to deliver the last output of an actor


def launch(
    configuration: Configuration,
    wait_for_ray: Callable[[], None],
    placed: dict[str, int],
) -> None:
    """Train as soon as Ray is there; raises the SwapError that was raised in an actor.

    `placed` are limits of vLLM's engines that follow from their place on the GPUs.
    """
    args = configuration.args
    run = configuration.run
    patches.install(TRAINS)
    if "RAY_ADDRESS" not in os.environ:
        patches.install(TRAINS_ALONE)
    print(f"[swap] {attention.summary(args.ds.attn_implementation, args.actor.model_name_or_path)}")
    limits = engine_limits(configuration) | placed
    # OpenRLHF itself trusts all code.
    more = {**limits, "trust_remote_code": run.trust_remote_code, **engine_arguments(args)}
    if configuration.on_cpu:
        more |= WHOLE_PROMPTS
        build_communication_op()
    else:
        more |= expert_kernels(args.actor.model_name_or_path)
    shown = ", ".join(f"{name} {number}" for name, number in limits.items())
    print(f"[swap] an engine's limits: {shown}")
    print(
        "[swap] starting vLLM and DeepSpeed, which takes a minute or more: their processes import",
        flush=True,
    )
    where = "above" if run.verbose else f"at the end of {Path(run.output_dir) / 'train.log'}"
    try:
        wait_for_ray()
        train(configuration, more)
    except ray.exceptions.RayError as error:
        cause = error
        while isinstance(cause, ray.exceptions.RayTaskError) and cause.cause is not None:
            cause = cause.cause
        if isinstance(cause, SwapError):
            raise cause from None
        if isinstance(cause, ray.exceptions.RayActorError | EngineDeadError):
            raise RunError(describe_death(cause, args, where)) from error
        raise
    finally:
        if sys.exc_info()[0]:
            time.sleep(LAST_WORDS_SECONDS)


def describe_death(
    error: Exception,
    args: SimpleNamespace,
    where: str,
) -> str:
    """Which process died, how, where its output is, and how to resume."""
    text = str(error)
    remedy = checkpoints.how_to_resume(Path(args.ckpt.path))
    created = re.search(r"creation task, .*?ray::(?:\w+\.)?(\w+)\.__init__\(\)", text)
    if created:
        lines = [line for line in text.strip().splitlines() if "errors.pydantic.dev" not in line]
        reason = lines[-1].strip().rstrip(".")
        return f"{created[1]} could not start: {reason}. The output before it is {where}; {remedy}"
    name = re.search(r"class_name: (\w+)", text)
    pid = re.search(r"pid: (\d+)", text)
    if name:
        who = name[1]
    else:
        who = "vLLM's engine" if isinstance(error, EngineDeadError) else "a Ray actor"
    if pid:
        who += f" (pid {pid[1]})"
    return (
        f"{who} died. Its last words, if it had any, are {where}; a process that dies silently was "
        f"usually killed for lack of memory (see the kernel's log): {remedy}"
    )

"""Start a training, and turn whatever ends it into one line."""

import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ray
from vllm.v1.engine.exceptions import EngineDeadError

from openrlhf_swap.errors import RunError, SwapError
from openrlhf_swap.integration.driver.run import train
from openrlhf_swap.integration.runtime import attention
from openrlhf_swap.integration.runtime.cpu import WHOLE_PROMPTS
from openrlhf_swap.integration.startup.communication_op import build_communication_op
from openrlhf_swap.integration.startup.prepared import PreparedRun
from openrlhf_swap.integration.weights.way import engine_arguments, expert_kernels
from openrlhf_swap.process.console import say
from openrlhf_swap.runs import checkpoints

LAST_WORDS_SECONDS = 1  # that Ray takes to deliver the last output of an actor
MOST_GRAPH = 512  # responses of the largest batch with a CUDA graph: vLLM's own limit


def launch(prepared: PreparedRun, wait_for_ray: Callable[[], None]) -> None:
    """Train as soon as Ray is there; raises the SwapError that was raised in an actor."""
    configuration = prepared.configuration
    args = configuration.args
    say(attention.summary(args.ds.attn_implementation, prepared.model_config))
    limits = prepared.engine_limits
    say("an engine's limits: " + ", ".join(f"{name} {most}" for name, most in limits.items()))
    say("starting vLLM and DeepSpeed, which takes a minute or more: their processes import")
    if configuration.on_cpu:
        build_communication_op()
    where = "above"
    if not configuration.run.verbose:
        where = f"at the end of {Path(configuration.run.output_dir) / 'train.log'}"
    try:
        wait_for_ray()
        train(configuration, prepared.objective, vllm_arguments(prepared))
    except ray.exceptions.RayError as error:
        cause = error
        while isinstance(cause, ray.exceptions.RayTaskError) and cause.cause is not None:
            cause = cause.cause
        if isinstance(cause, SwapError):
            raise cause from None
        if isinstance(cause, ray.exceptions.OutOfMemoryError):
            raise RunError(describe_lack_of_memory(str(cause), args)) from error
        if isinstance(cause, ray.exceptions.RayActorError | EngineDeadError):
            raise RunError(describe_death(cause, args, where)) from error
        raise
    finally:
        if sys.exc_info()[0]:
            time.sleep(LAST_WORDS_SECONDS)


def vllm_arguments(prepared: PreparedRun) -> dict[str, Any]:
    """The arguments of vLLM's engines for which OpenRLHF has no flags."""
    configuration = prepared.configuration
    args = configuration.args
    arguments = {
        **prepared.engine_limits,
        # OpenRLHF itself trusts all code.
        "trust_remote_code": configuration.run.trust_remote_code,
        **engine_arguments(args),
    }
    if configuration.on_cpu:
        return {**arguments, **WHOLE_PROMPTS}
    if not args.vllm.enforce_eager:
        sequences = prepared.engine_limits["max_num_seqs"]
        arguments["cudagraph_capture_sizes"] = graph_sizes(sequences)
    return {**arguments, **expert_kernels(prepared.model_config)}


def graph_sizes(sequences: int) -> list[int]:
    """The batches of a decoding step, in responses, for which an engine captures CUDA graphs.

    A smaller batch is filled up to the next of them, which costs next to nothing: a step waits for
    the weights. vLLM by itself captures twice as many at each start: one for every eighth number,
    and up to twice the `sequences`, the most responses of an engine at a time.
    """
    most = min(sequences, MOST_GRAPH)
    steps = [1, 2, 4, 8, *range(16, MOST_GRAPH, 16)]
    smaller = [size for size in steps if size < most]
    return [*smaller, most]


def describe_lack_of_memory(text: str, args: SimpleNamespace) -> str:
    """Which process Ray ended for lack of memory, by Ray's text, with a remedy."""
    named = re.search(r"task name=(\w+)", text)
    own = re.search(r"memory used=([\d.]+)GB", text)
    of_node = re.search(r"was ([\d.]+)GB / ([\d.]+)GB", text)
    who = named[1] if named else "a process of the run"
    if own:
        who += f", which had {own[1]} GB"
    state = f": {of_node[1]} of {of_node[2]} GB were taken" if of_node else ""
    size = "max_tokens_per_gpu" if args.train.dynamic_batch_enable else "micro_batch_size"
    adapters = "" if args.ds.lora.rank else "train adapters (--ds.lora.rank 32), "
    return (
        f"the machine ran out of main memory{state}, and Ray ended {who}; lower "
        f"--train.{size} ({getattr(args.train, size)}) and "
        f"--rollout.{size} ({getattr(args.rollout, size)}), {adapters}or end other programs; "
        f"{checkpoints.how_to_resume(args.ckpt)}"
    )


def describe_death(error: Exception, args: SimpleNamespace, where: str) -> str:
    """Which process died, how, where its output is, and how to resume."""
    text = str(error)
    remedy = checkpoints.how_to_resume(args.ckpt)
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

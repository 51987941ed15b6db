"""A run's numbers, warnings about what will not work, and notes worth reading before the start."""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from openrlhf_swap.config import SwapConfig
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.flags.configuration import Configuration
from openrlhf_swap.flags.placement import MOST_SEQUENCES
from openrlhf_swap.objectives.registry import build
from openrlhf_swap.sizing import memory
from openrlhf_swap.sizing.models import GIB, Model, gib
from openrlhf_swap.sizing.remedies import Machine, find_remedy
from openrlhf_swap.sizing.residence import running_responses
from openrlhf_swap.sizing.settings import PROMPT, Settings, read_run
from openrlhf_swap.sizing.speed import step_flops, step_seconds

DEEPSCALER_ROWS = 40_315
MASK = 3  # bytes of an element of SDPA's mask: a boolean, and a number in bf16 that torch makes of it


def make_plan(own: argparse.Namespace, training: Configuration) -> dict[str, Any]:
    """All numbers of a plan, in bytes, tokens, floating-point operations and seconds, its warnings and notes.

    `own` are the plan's own flags.

    Raises:
        ConfigError: for a model or setting that cannot be planned.
    """
    (gpu, peaks), config, args = own.gpu, training.method, training.args
    model, settings = read_run(training, reserve=int(own.reserve * GIB))
    if model.heads % settings.tensor_parallel:
        raise ConfigError(
            f"--vllm.tensor_parallel_size is {settings.tensor_parallel}, which does not divide the {model.heads} "
            "attention heads; use a divisor"
        )
    machine = Machine(gpu, args.actor.num_gpus_per_node, own.node_memory and int(own.node_memory * GIB))
    longest = args.rollout.max_new_tokens or settings.context
    prompt, response = own.prompt or min(PROMPT, settings.context // 2), own.response or longest // 2
    responses = args.rollout.batch_size * args.rollout.n_samples_per_prompt
    steps = min(config.max_steps, math.ceil(response / config.step_tokens))
    flops = step_flops(model, settings, prompt, response, steps, args.train.max_epochs)
    flops["score"] *= own.correct
    step = {
        "responses": responses,
        "mean_response": response,
        "tokens": responses * response,
        "most_tokens": responses * longest,
        "prefixes": steps + 1 if settings.branches else 0,
        "flops": {phase: responses * value for phase, value in flops.items()},
        "scoring_of_the_step": flops["score"] / sum(flops.values()),
    }
    vllm = _vllm(model, settings, gpu, prompt + response)
    at_a_time = settings.sequences or max(1, min(vllm["mean_sequences"], MOST_SEQUENCES))
    seconds = step_seconds(model, settings, step, prompt, at_a_time, peaks) if peaks else None
    plan = {
        "model": args.actor.model_name_or_path,
        "parameters": model.parameters,
        "adapters": model.adapters,
        "gpu_bytes": gpu,
        "gpus": settings.gpus,
        "settings": dataclasses.asdict(settings),
        "most_update_rows": _most_update_rows(model, settings, gpu),
        "phases": memory.phases(model, settings, gpu),
        "vllm": vllm,
        "step": step,
        "seconds": seconds,
        "run": _run(own, args, memory.checkpoint_bytes(model, settings)),
        "host_bytes": memory.host_bytes(model, settings, machine.gpus_of_node),
        "node_bytes": machine.node,
    }
    plan["time"] = _time(own.tokens_per_second, plan)
    warnings, remedy = list(_warnings(plan)), None
    if warnings:
        remedy = (
            find_remedy(model, settings, machine, longest) or "more or larger GPUs, or nodes with more main memory"
        )
    if plan["run"].get("steps") == 0:
        warnings.append(
            f"{plan['run']['rows']} prompts do not fill a batch (--rollout.batch_size {args.rollout.batch_size}), so "
            "no step is trained: take more prompts, or a smaller batch"
        )
    notes = list(_notes(plan, config, args))
    return plan | {"warnings": warnings, "remedy": remedy, "notes": notes, "fits": not warnings}


def _most_update_rows(model: Model, settings: Settings, gpu: int) -> int:
    """Responses of full length that a micro-batch of the update can hold."""
    for rows in range(1, settings.batch // settings.ranks + 1):
        more = dataclasses.replace(settings, update_tokens=rows * settings.context)
        if sum(memory.phases(model, more, gpu)["update"].values()) > gpu:
            return rows - 1
    return settings.batch // settings.ranks


def _vllm(model: Model, settings: Settings, gpu: int, mean: int) -> dict[str, Any]:
    """The capacity of an engine for responses; `mean` tokens of prompt and response."""
    capacity = memory.vllm_capacity(model, settings, gpu)
    tokens = max(0, capacity["cache"]) // capacity["token"]
    return {
        "weights_bytes": capacity["weights"],
        "cache_bytes": max(0, capacity["cache"]),
        "cache_tokens": tokens,
        "full_sequences": tokens // settings.context,
        "mean_sequences": tokens // mean,
        "most_sequences": running_responses(model, settings, gpu, mean),
        "sequences_a_step": settings.engine_responses,
    }


def _run(own: argparse.Namespace, args: SimpleNamespace, disk: dict[str, int]) -> dict[str, Any]:
    rows, path, assumed = own.rows, Path(args.data.prompt_dataset), False
    if rows is None and path.is_file() and path.suffix == ".jsonl":
        with open(path, encoding="utf-8") as file:
            rows = sum(1 for line in file if line.strip())
    elif rows is None and "deepscaler" in args.data.prompt_dataset.lower():
        rows, assumed = DEEPSCALER_ROWS, True
    run: dict[str, Any] = {"rows": rows, "rows_assumed": assumed, "checkpoint_bytes": disk}
    if rows is None:
        return run
    rollout, train, ckpt = args.rollout, args.train, args.ckpt
    rows = min(rows, args.data.max_samples)
    steps = rows // rollout.batch_size * train.num_episodes  # an episode's incomplete last batch is dropped
    saves = steps // ckpt.save_steps if ckpt.save_steps > 0 else 0
    kept = 0 if ckpt.disable_ds else min(saves, ckpt.max_num + 1)  # one more while it is written
    responses = steps * rollout.batch_size * rollout.n_samples_per_prompt * train.max_epochs
    return run | {
        "rows": rows,
        "steps": steps,
        "updates": responses // train.batch_size,
        "left_out": rows % rollout.batch_size,
        "saves": saves,
        "disk_bytes": kept * disk["deepspeed"] + (saves * ckpt.save_hf + 1) * disk["model"],
    }


def _time(rate: float | None, plan: dict[str, Any]) -> dict[str, float | None] | None:
    """Seconds of a step and hours of the run: at a measured rate of response tokens a second, or as estimated."""
    if rate is None and plan["seconds"] is None:
        return None
    layout = "in_turn" if plan["settings"]["shared"] else "apart"
    seconds = plan["step"]["tokens"] / rate if rate else plan["seconds"][layout]["step"]
    hours = plan["run"]["steps"] * seconds / 3600 if "steps" in plan["run"] else None
    return {"tokens_per_second": rate, "step_seconds": seconds, "hours": hours}


def _warnings(plan: dict[str, Any]) -> Iterator[str]:
    """What does not fit."""
    gpu, held, vllm = plan["gpu_bytes"], sum(plan["host_bytes"].values()), plan["vllm"]
    for phase, parts in plan["phases"].items():
        if (total := sum(parts.values())) > gpu:
            largest = max(parts, key=lambda part: parts[part])
            share = f"{gib(parts[largest])} of it for {largest}"
            yield f"{memory.PHASES[phase]} needs {gib(total)} GiB of {gib(gpu)}, {share}"
    if not vllm["full_sequences"]:
        yield (
            f"vLLM has {gib(vllm['cache_bytes'])} GiB for keys and values, less than one response of "
            f"{plan['settings']['context']} tokens needs"
        )
    if plan["node_bytes"] and held > plan["node_bytes"]:
        has = gib(plan["node_bytes"])
        yield f"a node needs {gib(held)} GiB of main memory in addition to the processes, but has {has}"


def _notes(plan: dict[str, Any], config: SwapConfig, args: SimpleNamespace) -> Iterator[str]:
    run = plan["run"]
    if args.ckpt.save_hf and run.get("saves", 0) > 1:
        size = gib(run["saves"] * run["checkpoint_bytes"]["model"])
        yield f"--ckpt.save_hf keeps all {run['saves']} exports, {size} GiB; --ckpt.max_num does not count them"
    # The phases count flash-attention; where it is missing, the run takes SDPA.
    attention, installed = args.ds.attn_implementation, find_spec("flash_attn") is not None
    if attention == "eager":
        yield "--ds.attn_implementation eager makes matrices of length x length for each head, which are not counted"
    elif "flash" not in attention or not installed:
        rows = 1 if args.ds.packing_samples else args.train.micro_batch_size
        masks = MASK * rows * (plan["settings"]["update_tokens"] // rows) ** 2
        named = f"--ds.attn_implementation is {attention}" if installed else "flash-attn is not installed here"
        yield (
            f"{named}: with SDPA, packed or padded rows get masks of length x length, {gib(masks)} GiB in an update, "
            "which are not counted"
        )
    if args.ds.zero_stage == 2 and args.ds.grad_accum_dtype == "fp32":
        yield "--ds.grad_accum_dtype fp32 has no effect with --ds.zero_stage 2; --ds.zero_stage 3 honours it"
    if args.actor.entropy_coef is not None:
        yield "--actor.entropy_coef makes further copies of the logits, which are not counted"
    if build(config).continues != "no":
        yield (
            f"{config.objective} also generates from parts of the responses, which is not counted here: "
            "swap/continued_tokens and timing/continuations of a run's first steps show how much that is"
        )

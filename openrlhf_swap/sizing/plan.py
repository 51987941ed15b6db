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

from openrlhf_swap.config import RunConfig, SwapConfig
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.flags.engines import MOST_SEQUENCES
from openrlhf_swap.objectives.registry import build
from openrlhf_swap.sizing import memory
from openrlhf_swap.sizing.flops import step_flops
from openrlhf_swap.sizing.models import GIB, Model, gib, read_model
from openrlhf_swap.sizing.remedies import capacity_remedy, host_remedy, most_update_rows, remedy
from openrlhf_swap.sizing.settings import Settings, read_settings
from openrlhf_swap.sizing.speed import PEAKS, step_seconds

DEEPSCALER_ROWS = 40_315
MASK = 3  # bytes of an element of SDPA's mask: a boolean, and a number in bf16 that torch makes of it
PROMPT = 200  # assumed mean tokens of a prompt


@dataclasses.dataclass(frozen=True)
class Workload:
    """What the settings leave open about a step's work."""

    samples: int  # responses
    prompt: int  # mean tokens
    response: int  # mean tokens
    most: int  # tokens of the longest response
    steps: int  # reasoning steps of a response of mean length
    correct: float  # share of correct responses, the only ones that are scored


def make_plan(
    own: argparse.Namespace, gpu: int, config: SwapConfig, run: RunConfig, args: SimpleNamespace
) -> dict[str, Any]:
    """All numbers of a plan, in bytes, tokens, floating-point operations and seconds, its warnings and notes.

    Args:
        own: the plan's own flags: `gpu`, `rows`, `prompt` and `response` (mean tokens), `correct`, `reserve` and
            `node_memory` (GiB), `tokens_per_second`.
        gpu: bytes of a GPU.
        config: the objective's settings.
        run: the run's.
        args: OpenRLHF's.

    Raises:
        ConfigError: for a model or setting that cannot be planned.
    """
    work = _workload(own, gpu, config, args)
    settings = read_settings(config, run, args, reserve=int(own.reserve * GIB))
    lora = args.ds.lora
    model = read_model(args.actor.model_name_or_path, settings.context, lora.rank, lora.target_modules)
    if model.heads % settings.tensor_parallel:
        raise ConfigError(
            f"--vllm.tensor_parallel_size is {settings.tensor_parallel}, which does not divide the {model.heads} "
            "attention heads; use a divisor"
        )
    step, vllm = _step(model, settings, work, args.train.max_epochs), _vllm(model, settings, gpu, work)
    most = settings.sequences or max(1, min(vllm["mean_sequences"], MOST_SEQUENCES))
    peaks = PEAKS.get(own.gpu.lower())
    plan = {
        "model": args.actor.model_name_or_path,
        "parameters": model.parameters,
        "adapters": model.adapters,
        "gpu_bytes": gpu,
        "gpus": settings.gpus,
        "settings": dataclasses.asdict(settings),
        "most_update_rows": most_update_rows(model, settings, gpu),
        "phases": memory.phases(model, settings, gpu),
        "vllm": vllm,
        "step": step,
        "seconds": step_seconds(model, settings, step, work.prompt, most, peaks) if peaks else None,
        "run": _run(own, args, memory.checkpoint_bytes(model, settings)),
        "host_bytes": memory.host_bytes(model, settings, args.actor.num_gpus_per_node),
        "node_bytes": None if own.node_memory is None else int(own.node_memory * GIB),
    }
    plan["time"] = _time(own.tokens_per_second, plan)
    warnings = list(_warnings(plan, model, settings))
    notes = [
        *_notes_on_capacity(plan),
        *_notes_on_run(plan["run"], args),
        *_notes_on_attention(args, settings),
        *_notes_on_flags(args),
        *_notes_on_objective(config),
    ]
    return plan | {"warnings": warnings, "notes": notes, "fits": not warnings}


def _workload(own: argparse.Namespace, gpu: int, config: SwapConfig, args: SimpleNamespace) -> Workload:
    most = args.rollout.max_new_tokens or args.data.max_len
    response = most // 2 if own.response is None else own.response
    for flag, value, good in (
        ("--reserve", own.reserve, 0 <= own.reserve * GIB < gpu),
        ("--correct", own.correct, 0 <= own.correct <= 1),
        ("--rows", own.rows, own.rows is None or own.rows > 0),
        ("--node-memory", own.node_memory, own.node_memory is None or 0 < own.node_memory < math.inf),
        ("--tokens-per-second", own.tokens_per_second, own.tokens_per_second is None or own.tokens_per_second > 0),
        ("--prompt", own.prompt, 0 < own.prompt < args.data.max_len),
        ("--response", response, 0 < response <= most),
    ):
        if not good:
            raise ConfigError(f"{flag} is {value}, which is out of range; see --help for what it takes")
    samples = args.rollout.batch_size * args.rollout.n_samples_per_prompt
    steps = min(config.max_steps, math.ceil(response / config.step_tokens))
    return Workload(samples, own.prompt, response, most, steps, own.correct)


def _vllm(model: Model, settings: Settings, gpu: int, work: Workload) -> dict[str, Any]:
    capacity = memory.vllm_capacity(model, settings, gpu)
    tokens = max(0, capacity["cache"]) // capacity["token"]
    mean = tokens // (work.prompt + work.response)
    return {
        "weights_bytes": capacity["weights"],
        "cache_bytes": max(0, capacity["cache"]),
        "cache_tokens": tokens,
        "full_sequences": tokens // settings.context,
        "mean_sequences": mean,
        # vLLM is not told: it starts as many as fit and queues the others.
        "most_sequences": settings.sequences or max(1, min(settings.engine_responses, mean, MOST_SEQUENCES)),
        "sequences_a_step": settings.engine_responses,
    }


def _step(model: Model, settings: Settings, work: Workload, epochs: int) -> dict[str, Any]:
    flops = step_flops(model, settings, work.prompt, work.response, work.steps, epochs)
    of_forward = flops["score"] / flops["log-probabilities"]
    flops["score"] *= work.correct
    return {
        "responses": work.samples,
        "mean_response": work.response,
        "tokens": work.samples * work.response,
        "most_tokens": work.samples * work.most,
        "prefixes": work.steps + 1 if settings.branches else 0,
        "scored": work.correct,
        "flops": {phase: work.samples * value for phase, value in flops.items()},
        "scoring_of_a_forward": of_forward,
        "scoring_of_the_step": flops["score"] / sum(flops.values()),
    }


def _run(own: argparse.Namespace, args: SimpleNamespace, disk: dict[str, int]) -> dict[str, Any]:
    rows, assumed = count_rows(own, args)
    run: dict[str, Any] = {"rows": rows, "rows_assumed": assumed, "checkpoint_bytes": disk}
    if rows is None:
        return run
    rollout, train, ckpt = args.rollout, args.train, args.ckpt
    steps = rows // rollout.batch_size * train.num_episodes  # an episode's incomplete last batch is dropped
    saves = steps // ckpt.save_steps if ckpt.save_steps > 0 else 0
    kept = 0 if ckpt.disable_ds else min(saves, ckpt.max_num + 1)  # one more while it is written
    responses = steps * rollout.batch_size * rollout.n_samples_per_prompt * train.max_epochs
    return run | {
        "steps": steps,
        "updates": responses // train.batch_size,
        "left_out": rows % rollout.batch_size,
        "saves": saves,
        "disk_bytes": kept * disk["deepspeed"] + (saves * ckpt.save_hf + 1) * disk["model"],
    }


def _time(rate: float | None, plan: dict[str, Any]) -> dict[str, float | None] | None:
    """Seconds of a step and hours of the run at a stated rate of response tokens a second; None without a rate."""
    if rate is None:
        return None
    seconds, steps = plan["step"]["tokens"] / rate, plan["run"].get("steps")
    hours = None if steps is None else steps * seconds / 3600
    return {"tokens_per_second": rate, "step_seconds": seconds, "hours": hours}


def count_rows(own: argparse.Namespace, args: SimpleNamespace) -> tuple[int | None, bool]:
    """The number of prompts in the data set, and whether it is assumed.

    It is as given, counted in a JSONL file, or DeepScaleR's, assumed from the name; None if unknown.
    """
    rows, path, assumed = own.rows, Path(args.data.prompt_dataset), False
    if rows is None and path.is_file() and path.suffix == ".jsonl":
        with open(path, encoding="utf-8") as file:
            rows = sum(1 for line in file if line.strip())
    elif rows is None and "deepscaler" in args.data.prompt_dataset.lower():
        rows, assumed = DEEPSCALER_ROWS, True
    return (None if rows is None else min(rows, args.data.max_samples)), assumed


def _warnings(plan: dict[str, Any], model: Model, settings: Settings) -> Iterator[str]:
    """What will not work, with the remedy."""
    gpu = plan["gpu_bytes"]
    for phase, parts in plan["phases"].items():
        total, largest = sum(parts.values()), max(parts, key=lambda part: parts[part])
        if total > gpu:
            yield (
                f"{memory.PHASES[phase]} needs {gib(total)} GiB of {gib(gpu)}, {gib(parts[largest])} of it for "
                f"{largest}. Remedy: {remedy(model, settings, gpu, phase)}"
            )
    if change := capacity_remedy(model, settings, gpu):
        yield (
            f"vLLM has {gib(plan['vllm']['cache_bytes'])} GiB for keys and values, less than one response of "
            f"{settings.context} tokens needs. Remedy: {change}"
        )
    held = plan["host_bytes"]
    if plan["node_bytes"] and sum(held.values()) > plan["node_bytes"]:
        yield (
            f"a node needs {gib(sum(held.values()))} GiB of main memory in addition to the processes, but has "
            f"{gib(plan['node_bytes'])}. Remedy: {host_remedy(held)}"
        )


def _notes_on_capacity(plan: dict[str, Any]) -> Iterator[str]:
    vllm, gpu = plan["vllm"], plan["gpu_bytes"]
    for phase, parts in plan["phases"].items():
        left = gpu - sum(parts.values())
        if "allowance" in parts and 0 <= left < 0.05 * gpu:
            yield f"{memory.PHASES[phase]} leaves only {gib(left)} GiB beside the allowance"
    asked, most, full = vllm["sequences_a_step"], vllm["most_sequences"], vllm["full_sequences"]
    if full < min(asked, most):
        yield f"an engine gets {asked} responses a step, but has capacity for only {full} of full length at a time"
    elif asked > most:
        yield f"an engine gets {asked} responses a step and generates {most} at a time (--swap.engine_sequences)"


def _notes_on_run(run: dict[str, Any], args: SimpleNamespace) -> Iterator[str]:
    if run["rows_assumed"]:
        yield (
            f"the {run['rows']:,} prompts are assumed from the data set's name; openrlhf-swap prepare leaves fewer: "
            "--rows sets them"
        )
    if run.get("left_out"):
        yield f"the last {run['left_out']} prompts of an episode do not fill a batch and are left out"
    if args.ckpt.save_hf and run.get("saves", 0) > 1:
        size = gib(run["saves"] * run["checkpoint_bytes"]["model"])
        yield f"--ckpt.save_hf keeps all {run['saves']} exports, {size} GiB; --ckpt.max_num does not count them"


def _notes_on_attention(args: SimpleNamespace, settings: Settings) -> Iterator[str]:
    """What the phases leave out, because they count flash-attention; where it is missing, the run takes SDPA."""
    attention, installed = args.ds.attn_implementation, find_spec("flash_attn") is not None
    if attention == "eager":
        yield "--ds.attn_implementation eager makes matrices of length x length for each head, which are not counted"
    elif "flash" not in attention or not installed:
        rows = 1 if args.ds.packing_samples else settings.update_rows
        masks = MASK * rows * (settings.update_tokens // rows) ** 2
        named = f"--ds.attn_implementation is {attention}" if installed else "flash-attn is not installed here"
        yield (
            f"{named}: with SDPA, packed or padded rows get masks of length x length, {gib(masks)} GiB in an update, "
            "which are not counted"
        )


def _notes_on_flags(args: SimpleNamespace) -> Iterator[str]:
    if args.ds.zero_stage == 2 and args.ds.grad_accum_dtype == "fp32":
        yield (
            "--ds.grad_accum_dtype fp32 has no effect with --ds.zero_stage 2, which accumulates in bf16; "
            "--ds.zero_stage 3 honours it"
        )
    if args.actor.entropy_coef is not None:
        yield "--actor.entropy_coef makes further copies of the logits, which are not counted"


def _notes_on_objective(config: SwapConfig) -> Iterator[str]:
    if build(config).continues != "no":
        yield (
            f"{config.objective} also generates from parts of the responses, which is not counted here: "
            "swap/continued_tokens and timing/continuations of a run's first steps show how much that is"
        )

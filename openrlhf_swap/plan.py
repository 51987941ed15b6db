r"""Size a training run before any GPU is taken: memory, step, checkpoints, and what will not fit.

    python -m openrlhf_swap.plan --gpu h100 --command "$(bash scripts/train_swap_1.5b.sh --dry-run)"
    python -m openrlhf_swap.plan --gpu h200 --model deepseek-ai/DeepSeek-R1-Distill-Qwen-7B --gpus 8 --ds.zero_stage 3

All other flags are those of `openrlhf_swap.train` and are read by its own parser, with its defaults: the plan sees
what the run will see. Everything printed is computed from the settings; nothing is measured. Exit status: 0, 1 with
warnings, 2 after a one-line error.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import json
import math
import shlex
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from openrlhf_swap import sizing
from openrlhf_swap.config import SwapConfig, parse_swap_arguments
from openrlhf_swap.errors import ConfigError, SwapError
from openrlhf_swap.objectives.registry import build, method
from openrlhf_swap.sizing import GIB, GPUS, Model, Settings
from openrlhf_swap.train import DEFAULTS, REWARD_FILE

DEEPSCALER_ROWS = 40_315
PHASES = {"generate": "generation", "score": "log-probabilities", "update": "the update", "adam": "Adam's step"}
SHARED_NODE = {  # as in scripts/train_swap_r1.sh
    "--train.colocate_all": None,
    "--vllm.enable_sleep": None,
    "--ds.enable_sleep": None,
    "--actor.gradient_checkpointing_enable": None,
    "--vllm.gpu_memory_utilization": "0.7",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    try:
        own, rest = _parser().parse_known_args(argv)
        plan = make_plan(own, sizing.gpu_bytes(own.gpu), *read_run(own, rest))
    except SwapError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(plan, indent=2) if own.json else report(plan))
    return 0 if plan["fits"] else 1


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise ConfigError(f"{message.replace('argument ', '', 1)}; see --help for what each flag takes")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m openrlhf_swap.plan",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--gpu", required=True, help=f"{', '.join(GPUS)}, or a number of GiB")
    add("--command", default="", help="a training command; flags given beside it win")
    add("--model", help="short for --actor.model_name_or_path")
    add("--gpus", type=int, help="plan one node of so many GPUs that vLLM and DeepSpeed take in turn")
    add("--rows", type=int, help="prompts of the data set; counted if it is a JSONL file")
    add("--prompt", type=int, default=200, metavar="TOKENS", help="mean prompt (default: 200)")
    add("--response", type=int, metavar="TOKENS", help="mean response (default: half of the maximum)")
    add("--correct", type=float, default=1.0, metavar="SHARE", help="of responses, which are scored (default: 1)")
    add(
        "--reserve",
        type=float,
        default=4.0,
        metavar="GIB",
        help="of a GPU for contexts, NCCL, fragmentation (default: 4)",
    )
    add("--json", action="store_true", help="print bytes and numbers as JSON")
    return parser


def read_run(own: argparse.Namespace, rest: Sequence[str]) -> tuple[SwapConfig, SimpleNamespace]:
    """Read the training flags as `openrlhf_swap.train` does.

    Raises:
        ConfigError: for what the run itself would refuse.
    """
    try:
        given = [*shlex.split(own.command), *rest]
    except ValueError as error:
        raise ConfigError(f"--command cannot be read ({error}); put it between quotes") from None
    if "openrlhf_swap.train" in given:
        given = given[given.index("openrlhf_swap.train") + 1 :]
    if own.model:
        given += ["--actor.model_name_or_path", own.model]
    config, given = parse_swap_arguments(given)
    # A plan needs no data set.
    defaults: dict[str, str | None] = {"--data.prompt_dataset": "unknown", "--data.label_key": "answer"}
    defaults |= DEFAULTS | method(config.objective).flags | {"--reward.remote_url": str(REWARD_FILE)}
    defaults |= _placement(own, given)

    from openrlhf_swap.integration import patches

    patches.check_versions()
    from openrlhf_swap.checks import check_settings

    argv = [word for flag, value in defaults.items() for word in (flag, value) if word is not None]
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            args = patches.parse_arguments([*argv, *given])
    except SystemExit:
        reason = complaint.getvalue().strip().rpartition("error: ")[2].replace("argument ", "", 1)
        raise ConfigError(f"{reason}; see python -m openrlhf_swap.train --help") from None
    check_settings(args, build(config))
    return config, args


def _placement(own: argparse.Namespace, given: list[str]) -> dict[str, str | None]:
    """The flags that --gpus stands for."""
    if own.gpus is None:
        return {}
    shards = _Parser(add_help=False, allow_abbrev=False)
    shards.add_argument("--vllm.tensor_parallel_size", dest="size", type=int, default=1)
    size = shards.parse_known_args(given)[0].size
    if own.gpus < 1 or size < 1 or own.gpus % size:
        raise ConfigError(f"--gpus is {own.gpus}; use a multiple of --vllm.tensor_parallel_size, which is {size}")
    return {
        **SHARED_NODE,
        "--actor.num_gpus_per_node": str(own.gpus),
        "--vllm.num_engines": str(own.gpus // size),
    }


def read_settings(config: SwapConfig, args: SimpleNamespace, reserve: int) -> Settings:
    """What decides the size, out of a run's flags.

    Raises:
        ConfigError: for what the plan has no formula for, or what OpenRLHF or DeepSpeed would stop at.
    """
    ds, train, rollout, vllm = args.ds, args.train, args.rollout, args.vllm
    ranks, shared = args.actor.num_nodes * args.actor.num_gpus_per_node, train.colocate_all
    places = vllm.num_engines * vllm.tensor_parallel_size
    counts = (ranks, places, train.micro_batch_size, rollout.micro_batch_size, train.batch_size, args.data.max_len)
    refused = [
        (min(counts) < 1, "a number of GPUs, engines, responses or tokens is below 1"),
        (ds.lora.rank > 0, f"--ds.lora.rank is {ds.lora.rank}; the plan knows full fine-tuning only: leave it out"),
        (args.actor.optim != "adam", f"--actor.optim is {args.actor.optim}; the plan knows adam only: leave it out"),
        (
            not 0 < vllm.gpu_memory_utilization <= 1,
            f"--vllm.gpu_memory_utilization is {vllm.gpu_memory_utilization}; use a share between 0 and 1",
        ),
        (
            shared and ranks != places,
            f"--actor.num_nodes x --actor.num_gpus_per_node is {ranks} and --vllm.num_engines x "
            f"--vllm.tensor_parallel_size is {places}; with --train.colocate_all both must be equal",
        ),
    ]
    for wrong, message in refused:
        if wrong:
            raise ConfigError(message)
    context, dynamic = args.data.max_len, train.dynamic_batch_enable
    most = {"train": train.max_tokens_per_gpu, "rollout": rollout.max_tokens_per_gpu or train.max_tokens_per_gpu}
    rows = {"train": train.micro_batch_size, "rollout": rollout.micro_batch_size}
    tokens = {name: max(context, most[name]) if dynamic else rows[name] * context for name in rows}
    return Settings(
        ranks=ranks,
        stage=ds.zero_stage,
        adam_offload=ds.adam_offload,
        accumulate_bytes=sizing.FP32 if ds.grad_accum_dtype == "fp32" and ds.zero_stage != 2 else sizing.BIT16,
        overlap=ds.overlap_comm,
        checkpointing=args.actor.gradient_checkpointing_enable,
        temperature=rollout.temperature,
        context=context,
        batch=train.batch_size,
        update_rows=rows["train"],
        update_tokens=tokens["train"],
        score_rows=max(1, tokens["rollout"] // context),
        score_tokens=tokens["rollout"],
        dynamic=dynamic,
        packed=ds.packing_samples or dynamic,
        branches=config.max_steps + 1 if build(config).scores_steps else 0,
        reference=args.algo.kl.init_coef > 0 and (shared or train.colocate_actor_ref) and not args.ref.offload,
        shared=shared,
        vllm_sleeps=vllm.enable_sleep and shared,
        actor_sleeps=ds.enable_sleep,
        engines=vllm.num_engines,
        tensor_parallel=vllm.tensor_parallel_size,
        utilization=vllm.gpu_memory_utilization,
        reserve=reserve,
    )


def make_plan(own: argparse.Namespace, gpu: int, config: SwapConfig, args: SimpleNamespace) -> dict[str, Any]:
    """All numbers of a plan, in bytes, tokens and floating-point operations, its warnings and notes.

    Raises:
        ConfigError: for a model or setting that cannot be planned.
    """
    path, longest = args.actor.model_name_or_path, args.data.max_len
    most = min(args.rollout.max_new_tokens or longest, longest)
    response = most // 2 if own.response is None else own.response
    for flag, value, good in (
        ("--reserve", own.reserve, 0 <= own.reserve * GIB < gpu),
        ("--correct", own.correct, 0 <= own.correct <= 1),
        ("--rows", own.rows, own.rows is None or own.rows > 0),
        ("--prompt", own.prompt, 0 < own.prompt < longest),
        ("--response", response, 0 < response <= most),
    ):
        if not good:
            raise ConfigError(f"{flag} is {value}, which is out of range; see --help for what it takes")
    settings = read_settings(config, args, reserve=int(own.reserve * GIB))
    model = sizing.read_model(path, longest)
    if model.heads % settings.tensor_parallel:
        raise ConfigError(
            f"--vllm.tensor_parallel_size is {settings.tensor_parallel}, which does not divide the {model.heads} "
            "attention heads; use a divisor"
        )
    samples = args.rollout.batch_size * args.rollout.n_samples_per_prompt
    steps = min(config.max_steps, math.ceil(response / config.step_tokens))
    flops = sizing.step_flops(model, settings, own.prompt, response, steps, args.train.max_epochs)
    of_forward = flops["score"] / flops["log-probabilities"]
    flops["score"] *= own.correct
    plan = {
        "model": path,
        "parameters": model.parameters,
        "gpu_bytes": gpu,
        "gpus": settings.ranks + (0 if settings.shared else settings.engines * settings.tensor_parallel),
        "settings": dataclasses.asdict(settings),
        "most_update_rows": sizing.most_update_rows(model, settings, gpu),
        "phases": sizing.phases(model, settings, gpu),
        "vllm": _vllm(model, settings, gpu, samples, own.prompt + response),
        "step": {
            "responses": samples,
            "mean_response": response,
            "tokens": samples * response,
            "most_tokens": samples * most,
            "prefixes": steps + 1 if settings.branches else 0,
            "scored": own.correct,
            "flops": {phase: samples * value for phase, value in flops.items()},
            "scoring_of_a_forward": of_forward,
            "scoring_of_the_step": flops["score"] / sum(flops.values()),
        },
        "run": _run(own, args, sizing.checkpoint_bytes(model, settings)),
        "host_bytes": sizing.host_bytes(model, settings, args.actor.num_gpus_per_node),
    }
    plan["warnings"] = _warnings(plan, model, settings, args)
    plan["notes"] = _notes(plan, settings, args)
    return plan | {"fits": not plan["warnings"]}


def _vllm(model: Model, settings: Settings, gpu: int, samples: int, length: int) -> dict[str, Any]:
    room = sizing.vllm_room(model, settings, gpu)
    tokens = max(0, room["cache"]) // room["token"]
    full = room["weights"] + sizing.VLLM_OVERHEAD + sizing.SEQUENCES * settings.context * room["token"]
    return {
        "weights_bytes": room["weights"],
        "cache_bytes": max(0, room["cache"]),
        "cache_tokens": tokens,
        "full_sequences": tokens // settings.context,
        "mean_sequences": tokens // length,
        "most_sequences": sizing.SEQUENCES,
        "share_for_most_sequences": math.ceil(100 * full / gpu) / 100,
        "sequences_a_step": math.ceil(samples / settings.engines),
    }


def _run(own: argparse.Namespace, args: SimpleNamespace, disk: dict[str, int]) -> dict[str, Any]:
    rows, assumed = count_rows(own, args)
    run: dict[str, Any] = {"rows": rows, "rows_assumed": assumed, "checkpoint_bytes": disk}
    if rows is None:
        return run
    rollout, train, ckpt = args.rollout, args.train, args.ckpt
    steps = rows // rollout.batch_size * train.num_episodes  # the rest of an episode is left out
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


def count_rows(own: argparse.Namespace, args: SimpleNamespace) -> tuple[int | None, bool]:
    """Prompts of the data set, and whether the number is assumed.

    As given, counted in a JSONL file, or DeepScaleR's, assumed from the name; None if unknown.
    """
    rows, path, assumed = own.rows, Path(args.data.prompt_dataset), False
    if rows is None and path.is_file() and path.suffix == ".jsonl":
        with open(path, encoding="utf-8") as file:
            rows = sum(1 for line in file if line.strip())
    elif rows is None and "deepscaler" in args.data.prompt_dataset.lower():
        rows, assumed = DEEPSCALER_ROWS, True
    return (None if rows is None else min(rows, args.data.max_samples)), assumed


def _warnings(plan: dict[str, Any], model: Model, settings: Settings, args: SimpleNamespace) -> list[str]:
    """What will not work, with the remedy."""
    warnings, gpu = [], plan["gpu_bytes"]
    for phase, parts in plan["phases"].items():
        total, largest = sum(parts.values()), max(parts, key=lambda part: parts[part])
        if total > gpu:
            warnings.append(
                f"{PHASES[phase]} needs {_gib(total)} GiB of {_gib(gpu)}, {_gib(parts[largest])} of it for {largest}. "
                f"Remedy: {sizing.remedy(model, settings, gpu, phase)}"
            )
    if remedy := sizing.room_remedy(model, settings, gpu):
        warnings.append(
            f"vLLM has {_gib(plan['vllm']['cache_bytes'])} GiB for keys and values, less than one response of "
            f"{settings.context} tokens needs. Remedy: {remedy}"
        )
    return warnings


def _notes(plan: dict[str, Any], settings: Settings, args: SimpleNamespace) -> list[str]:
    """What works, and is worth knowing before the start."""
    notes, run, vllm, gpu = [], plan["run"], plan["vllm"], plan["gpu_bytes"]
    for phase, parts in plan["phases"].items():
        left = gpu - sum(parts.values())
        if "allowance" in parts and 0 <= left < 0.05 * gpu:
            notes.append(f"{PHASES[phase]} leaves only {_gib(left)} GiB beside the allowance")
    asked, most, full = vllm["sequences_a_step"], vllm["most_sequences"], vllm["full_sequences"]
    if full < min(asked, most):
        notes.append(f"an engine gets {asked} responses a step, and has room for {full} of full length at a time")
    elif asked > most:
        notes.append(
            f"an engine gets {asked} responses a step and runs {most} at a time, which fit at full length with "
            f"--vllm.gpu_memory_utilization {vllm['share_for_most_sequences']:.2f}: more is of no use"
        )
    if run["rows_assumed"]:
        notes.append(
            f"the {run['rows']:,} prompts are assumed from the data set's name; openrlhf_swap.prepare leaves fewer: "
            "--rows sets them"
        )
    if run.get("left_out"):
        notes.append(f"the last {run['left_out']} prompts of an episode do not fill a batch and are left out")
    if args.ckpt.save_hf and run.get("saves", 0) > 1:
        size = _gib(run["saves"] * run["checkpoint_bytes"]["model"])
        notes.append(
            f"--ckpt.save_hf keeps all {run['saves']} exports, {size} GiB; --ckpt.max_num does not count them"
        )
    if "flash" not in (attention := args.ds.attn_implementation):
        notes.append(f"--ds.attn_implementation {attention} makes matrices of length x length, which are not counted")
    if settings.stage == 2 and args.ds.grad_accum_dtype == "fp32":
        notes.append("--ds.grad_accum_dtype fp32 has no effect with --ds.zero_stage 2, which adds up in bf16; 3 obeys")
    if args.actor.entropy_coef is not None:
        notes.append("--actor.entropy_coef makes further copies of the logits, which are not counted")
    return notes


def report(plan: dict[str, Any]) -> str:
    """A plan as text."""
    settings, vllm, step, run = plan["settings"], plan["vllm"], plan["step"], plan["run"]
    apart = f"{settings['ranks']} for DeepSpeed, the rest for vLLM"
    flops = sum(step["flops"].values())
    held = [f"{name} {_gib(size)} GiB" for name, size in plan["host_bytes"].items()]
    facts = {
        "micro-batch": f"log-probabilities {settings['score_tokens']:,} tokens, update {settings['update_tokens']:,}; "
        f"responses of full length that an update has room for: {plan['most_update_rows']}",
        "main memory": f"of a node, beside the processes: {', '.join(held) or 'little'}",
        "vLLM": f"{_gib(vllm['weights_bytes'])} GiB of weights; {_gib(vllm['cache_bytes'])} GiB for the keys and "
        f"values of {vllm['cache_tokens']:,} tokens: {vllm['full_sequences']} responses of full length or "
        f"{vllm['mean_sequences']} of mean length. An engine runs at most {vllm['most_sequences']} at a time and gets "
        f"{vllm['sequences_a_step']} a step",
        "a step": f"{step['responses']:,} responses of {step['mean_response']:,} tokens: {step['tokens'] / 1e6:.1f}M "
        f"(at most {step['most_tokens'] / 1e6:.1f}M)",
        "FLOPs": f"{flops:.2e}: " + ", ".join(f"{name} {value:.2e}" for name, value in step["flops"].items()),
        "scoring": f"{step['prefixes']} prefixes: {step['scoring_of_a_forward']:.1%} of a forward of their response; "
        f"{step['scoring_of_the_step']:.1%} of the step with {step['scored']:.0%} of the responses scored",
        "checkpoint": f"{_gib(run['checkpoint_bytes']['deepspeed'])} GiB of DeepSpeed's, "
        f"{_gib(run['checkpoint_bytes']['model'])} GiB as a model",
        "the run": "prompts unknown: give --rows",
    }
    if run["rows"] is not None:
        facts["the run"] = (
            f"{run['rows']:,} prompts, {run['steps']} steps with {run['updates']} updates, {run['steps'] * flops:.2e} "
            f"FLOPs; {run['saves']} checkpoints, {_gib(run['disk_bytes'])} GiB of disk"
        )
    return "\n".join(
        [
            f"{plan['model']}, {plan['parameters']:,} parameters",
            f"on {plan['gpus']} x {_gib(plan['gpu_bytes'])} GiB: "
            + ("vLLM and DeepSpeed in turn" if settings["shared"] else apart),
            "Computed from the settings, for the longest sequences they allow. Nothing was measured.",
            "",
            *_memory_table(plan),
            "",
            *(_wrapped(name, fact) for name, fact in facts.items()),
            "",
            *(_wrapped("warning:", warning) for warning in plan["warnings"]),
            *(_wrapped("note:", note) for note in plan["notes"]),
            "It fits." if plan["fits"] else "See the warnings.",
        ]
    )


def _wrapped(label: str, text: str) -> str:
    return textwrap.fill(f"{label:13}{text}", 118, subsequent_indent=" " * 13, break_on_hyphens=False)


def _memory_table(plan: dict[str, Any]) -> list[str]:
    phases = plan["phases"].values()
    parts = sorted({part: None for phase in phases for part in phase if phase[part]}, key="allowance".__eq__)
    used = [sum(phase.values()) for phase in phases]
    rows = {part: [phase.get(part, 0) for phase in phases] for part in parts}
    rows |= {"together": used, "left": [plan["gpu_bytes"] - total for total in used]}
    head = f"{'GiB on a GPU':20}" + "".join(f"{name:>19}" for name in PHASES.values())
    cells = {name: "".join(f"{_gib(size) if size else '-':>19}" for size in sizes) for name, sizes in rows.items()}
    return [head, *(f"{name:20}{line}" for name, line in cells.items())]


def _gib(size: int) -> str:
    return f"{size / GIB:.1f}"


if __name__ == "__main__":
    sys.exit(main())

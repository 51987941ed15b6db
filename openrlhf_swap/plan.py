r"""Size a training run before any GPU is taken: memory, days, disk, and what will not fit.

    openrlhf-swap plan --gpu h100 --config scripts/train_swap_1.5b.yaml
    openrlhf-swap plan --gpu h200 --model r1-7b --gpus 8 --ds.zero_stage 3 --node-memory 1500

All other flags are those of `openrlhf-swap train` and are read by its own parser, with its
defaults: the plan sees what the run will see. Everything printed is computed from the settings;
nothing is measured. Exit status: 0, 1 with warnings, 2 after a one-line error.
"""

import argparse
import dataclasses
import json
import math
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import suppress
from operator import itemgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tabulate import tabulate

from openrlhf_swap.command import Parser, run_command
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.flags.configuration import Configuration, configure
from openrlhf_swap.flags.rules import check_flags, check_objective
from openrlhf_swap.sizing import memory
from openrlhf_swap.sizing.models import GIB, GPUS, SHORT_NAMES, gib

DEEPSCALER_ROWS = 40_315
SHARED_NODE = {  # as in scripts/train_swap_1.5b.yaml
    "train.colocate_all": True,
    "vllm.enable_sleep": True,
    "ds.enable_sleep": True,
    "actor.gradient_checkpointing_enable": True,
    "vllm.gpu_memory_utilization": 0.7,
}


def main(argv: list[str]) -> int:
    own, rest = _parser().parse_known_args(argv)
    plan = make_plan(own, training_configuration(own, rest))
    print(json.dumps(plan, indent=2) if own.json else "\n".join(_lines(plan)))
    return 0 if plan["fits"] else 1


def _parser() -> Parser:
    parser = Parser("openrlhf-swap plan", __doc__)
    add = parser.add_argument
    add("--gpu", required=True, type=_gpu, help=f"{', '.join(GPUS)}, or a number of GiB")
    add("--model", help=f"short for --actor.model_name_or_path; also {', '.join(SHORT_NAMES)}")
    add(
        "--gpus",
        type=int,
        help="plan one node of N GPUs: used in turn, or halved with --train.async_enable",
    )
    add("--rows", type=int, help="prompts in the data set; counted if it is a JSONL file")
    add(
        "--prompt",
        type=int,
        metavar="TOKENS",
        help=f"mean prompt length (default: {memory.PROMPT})",
    )
    add(
        "--response",
        type=int,
        metavar="TOKENS",
        help="mean response length (default: half of the maximum)",
    )
    correct = "share of correct responses, the only ones that are scored (default: 1)"
    add("--correct", type=float, default=1.0, metavar="SHARE", help=correct)
    add(
        "--node-memory",
        type=float,
        metavar="GIB",
        help="main memory of a node; warns if it is too small",
    )
    add("--json", action="store_true", help="print bytes and numbers as JSON")
    return parser


def _gpu(name: str) -> tuple[int, tuple[float, ...]]:
    """Bytes of a GPU; operations and bytes a second, if it is a known one."""
    if name.lower() in GPUS:
        size, *peaks = GPUS[name.lower()]
        return int(size * GIB), tuple(peaks)
    with suppress(ValueError):
        if 0 < (size := float(name)) < math.inf:
            return int(size * GIB), ()
    raise argparse.ArgumentTypeError(
        f"{name} is unknown; use one of {', '.join(GPUS)}, or a number of GiB"
    )


def training_configuration(own: argparse.Namespace, words: Sequence[str]) -> Configuration:
    """Read the training's flags as `openrlhf-swap train` does; raises ConfigError for what the run
    would refuse.
    """
    if own.model:
        words = [
            *words,
            "--actor.model_name_or_path",
            SHORT_NAMES.get(own.model.lower(), own.model),
        ]
    defaults: dict[str, Any] = {
        "data.prompt_dataset": "unknown",
        "data.label_key": "answer",
    }  # a plan needs no data
    configuration = configure(words, on_cpu=False, defaults=defaults)
    if (gpus := own.gpus) is not None:
        size = max(1, configuration.args.vllm.tensor_parallel_size)
        engines = gpus // size
        placed = SHARED_NODE | {"actor.num_gpus_per_node": gpus, "vllm.num_engines": engines}
        if configuration.args.train.async_enable:
            placed = {
                "actor.num_gpus_per_node": gpus - engines // 2 * size,
                "vllm.num_engines": engines // 2,
            }
            placed["actor.gradient_checkpointing_enable"] = True
        configuration = configure(words, on_cpu=False, defaults=defaults | placed)
    check_flags(configuration)
    check_objective(configuration)
    return configuration


def make_plan(own: argparse.Namespace, training: Configuration) -> dict[str, Any]:
    """All numbers of a plan, in bytes, tokens, floating-point operations and seconds, and its
    warnings.

    `own` are the plan's own flags. Raises ConfigError for a model or setting that cannot be
    planned.
    """
    (gpu, peaks), config, args = own.gpu, training.method, training.args
    model, given = memory.read_run(training)
    if model.heads % given.tensor_parallel:
        raise ConfigError(
            f"--vllm.tensor_parallel_size is {given.tensor_parallel}, which does not divide the {model.heads} "
            "attention heads; use a divisor"
        )
    machine = memory.Machine(
        gpu, args.actor.num_gpus_per_node, own.node_memory and int(own.node_memory * GIB)
    )
    settings = memory.place_optimizer(model, given, machine)
    prompt = own.prompt or min(memory.PROMPT, settings.context // 2)
    response = own.response or settings.longest // 2
    if prompt + response > settings.context:
        raise ConfigError(
            f"--prompt is {prompt}, with responses of {response} tokens more than --data.max_len {settings.context}; "
            "use fewer tokens or a larger context"
        )
    responses = args.rollout.batch_size * args.rollout.n_samples_per_prompt
    steps = min(config.max_steps, math.ceil(response / config.step_tokens))
    flops = memory.step_flops(model, settings, prompt, response, steps, args.train.max_epochs)
    flops["score"] *= own.correct
    vllm = memory.engine_capacity(model, settings, gpu, prompt + response)
    seconds: dict[str, float] | None = None
    if peaks:
        generation = memory.generation_seconds(
            model, settings, prompt, response, vllm["most_sequences"], peaks
        )
        training_flops = responses * sum(
            value for phase, value in flops.items() if phase != "generate"
        )
        seconds = memory.step_seconds(settings, generation, training_flops, peaks)
    plan = {
        "model": args.actor.model_name_or_path,
        "parameters": model.parameters,
        "adapters": model.adapters,
        "gpu_bytes": gpu,
        "gpus": settings.gpus,
        "settings": dataclasses.asdict(settings),
        "phases": memory.phases(model, settings, gpu),
        "vllm": vllm,
        "step": {
            "responses": responses,
            "mean_response": response,
            "tokens": responses * response,
            "most_tokens": responses * settings.longest,
            "prefixes": steps + 1 if settings.branches else 0,
            "flops": {phase: responses * value for phase, value in flops.items()},
            "scoring_of_the_step": flops["score"] / sum(flops.values()),
        },
        "seconds": seconds,
        "run": _run(
            own,
            args,
            memory.checkpoint_bytes(model, settings),
            seconds["step"] if seconds else None,
        ),
        "host_bytes": memory.host_bytes(model, settings, machine.gpus_of_node),
        "node_bytes": machine.node,
    }
    warnings, remedy = list(_warnings(plan)), None
    if warnings:
        remedy = (
            memory.find_remedy(model, given, machine)
            or "more or larger GPUs, or nodes with more main memory"
        )
    if plan["run"].get("steps") == 0:
        warnings.append(
            f"{plan['run']['rows']} prompts do not fill a batch (--rollout.batch_size {args.rollout.batch_size}), so "
            "no step is trained: take more prompts, or a smaller batch"
        )
    return plan | {"warnings": warnings, "remedy": remedy, "fits": not warnings}


def _run(
    own: argparse.Namespace, args: SimpleNamespace, disk: dict[str, int], seconds: float | None
) -> dict[str, Any]:
    """Steps, hours and disk of the whole run, where the number of prompts is known; from the
    seconds of a step.
    """
    rows, path = own.rows, Path(args.data.prompt_dataset)
    if rows is None and path.suffix == ".jsonl" and path.is_file():
        rows = sum(1 for line in path.read_bytes().split(b"\n") if line.strip())
    assumed = rows is None and not path.is_file() and "deepscaler" in str(path).lower()
    rows = DEEPSCALER_ROWS if assumed else rows
    run: dict[str, Any] = {"rows": rows, "rows_assumed": assumed, "checkpoint_bytes": disk}
    if rows is None:
        return run
    rollout, train, ckpt = args.rollout, args.train, args.ckpt
    rows = min(rows, args.data.max_samples)
    steps = (
        rows // rollout.batch_size * train.num_episodes
    )  # an episode's incomplete last batch is dropped
    saves = steps // ckpt.save_steps if ckpt.save_steps > 0 else 0
    kept = 0 if ckpt.disable_ds else min(saves, ckpt.max_num + 1)  # one more while it is written
    responses = steps * rollout.batch_size * rollout.n_samples_per_prompt * train.max_epochs
    return run | {
        "rows": rows,
        "steps": steps,
        "hours": seconds and steps * seconds / 3600,
        "updates": responses // train.batch_size,
        "saves": saves,
        "disk_bytes": kept * disk["deepspeed"] + (saves * ckpt.save_hf + 1) * disk["model"],
    }


def _warnings(plan: dict[str, Any]) -> Iterator[str]:
    """What does not fit."""
    gpu, held, vllm, node = (
        plan["gpu_bytes"],
        sum(plan["host_bytes"].values()),
        plan["vllm"],
        plan["node_bytes"],
    )
    for phase, parts in plan["phases"].items():
        if (total := sum(parts.values())) > gpu:
            part, size = max(parts.items(), key=itemgetter(1))
            yield f"{memory.PHASES[phase]} needs {gib(total)} GiB of {gib(gpu)}, {gib(size)} of it for {part}"
    if not vllm["full_sequences"]:
        yield (
            f"vLLM has {gib(vllm['cache_bytes'])} GiB for keys and values, less than one response of "
            f"{plan['settings']['context']} tokens needs"
        )
    if node and held > node:
        yield f"a node needs {gib(held)} GiB of main memory in addition to the processes, but has {gib(node)}"


def _lines(plan: dict[str, Any]) -> Iterator[str]:
    """A plan as text."""
    settings, vllm, step, run, seconds = (
        plan[part] for part in ("settings", "vllm", "step", "run", "seconds")
    )
    held, node, shared = plan["host_bytes"], plan["node_bytes"], settings["shared"]
    trained = f"; LoRA trains {plan['adapters']:,} more" if plan["adapters"] else ""
    yield f"{plan['model']}, {plan['parameters']:,} parameters{trained}"
    place = (
        "vLLM and DeepSpeed in turn"
        if shared
        else f"{settings['ranks']} for DeepSpeed, the rest for vLLM"
    )
    yield f"on {plan['gpus']} x {gib(plan['gpu_bytes'])} GiB: {place}"
    yield "Computed from the settings, for the longest sequences they allow. Nothing was measured.\n"
    yield _memory_table(plan) + "\n"
    facts = {
        "main memory": f"per node, in addition to the processes: {gib(sum(held.values()))} GiB"
        + (f" of {gib(node)}" if node else "")
        + "".join(f", {name} {gib(size)}" for name, size in held.items()),
        "vLLM": f"{gib(vllm['weights_bytes'])} GiB of weights; {gib(vllm['cache_bytes'])} GiB for the keys and "
        f"values of {vllm['cache_tokens']:,} tokens: {vllm['full_sequences']} responses of full length or "
        f"{vllm['mean_sequences']} of mean length. An engine runs at most {vllm['most_sequences']} at a time and gets "
        f"{vllm['sequences_a_step']} a step",
        "a step": f"{step['responses']:,} responses of {step['mean_response']:,} tokens: {step['tokens'] / 1e6:.1f}M "
        f"(at most {step['most_tokens'] / 1e6:.1f}M), {sum(step['flops'].values()):.2e} FLOPs, "
        f"{step['scoring_of_the_step']:.1%} of them for scoring",
        "seconds": f"{seconds['step']:.0f} a step (generation {seconds['generate']:.0f}, training "
        f"{seconds['train']:.0f}{'' if shared else ', at the same time'}). Assumes {memory.OF_OPERATIONS:.0%} of the "
        f"GPU's peak operations and {memory.OF_BYTES:.0%} of its bandwidth"
        if seconds
        else "unknown: give --gpu by its name",
        "the run": "prompts unknown: give --rows",
    }
    if run["rows"] is not None:
        time = (
            f"{run['hours']:,.1f} hours ({run['hours'] / 24:.1f} days); "
            if run["hours"] is not None
            else ""
        )
        assumed = (
            " (assumed from the data set's name; --rows sets them)" if run["rows_assumed"] else ""
        )
        facts["the run"] = (
            f"{run['rows']:,} prompts{assumed}, {run['steps']} steps with {run['updates']} updates: {time}"
            f"{run['saves']} checkpoints, {gib(run['disk_bytes'])} GiB of disk"
        )
    if shared and not settings["adam_offload"]:
        stays = f"stays on the GPU while vLLM takes {settings['utilization']:.0%} of it"
        facts["optimizer"] = (
            "leaves the GPU while vLLM generates" if settings["actor_sleeps"] else stays
        )
    for label, text in [*facts.items(), *(("warning:", text) for text in plan["warnings"])]:
        yield textwrap.fill(
            f"{label:13}{text}", 118, subsequent_indent=" " * 13, break_on_hyphens=False
        )
    yield (
        "It fits."
        if plan["fits"]
        else f"Remedy: {plan['remedy']}"
        if plan["remedy"]
        else "See the warnings."
    )


def _memory_table(plan: dict[str, Any]) -> str:
    phases = plan["phases"].values()
    parts = sorted(
        {part: None for phase in phases for part in phase if phase[part]}, key="allowance".__eq__
    )
    used = [sum(phase.values()) for phase in phases]
    rows = {part: [phase.get(part, 0) for phase in phases] for part in parts}
    rows |= {"together": used, "left": [plan["gpu_bytes"] - total for total in used]}
    cells = [
        [name, *(size / GIB if size else None for size in sizes)] for name, sizes in rows.items()
    ]
    head = ["GiB on a GPU", *memory.PHASES.values()]
    return tabulate(cells, head, tablefmt="plain", floatfmt=".1f", numalign="right", missingval="-")


if __name__ == "__main__":
    sys.exit(run_command(main))

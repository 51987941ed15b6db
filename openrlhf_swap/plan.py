r"""Size a training run before any GPU is taken: memory, hours, disk, and what will not fit.

    openrlhf-swap plan --gpu h100 --config scripts/train_swap_1.5b.yaml
    openrlhf-swap plan --gpu h200 --model r1-7b --gpus 8 --ds.zero_stage 3 --node-memory 1500

All other flags are those of `openrlhf-swap train` and are read by its own parser, with its defaults: the plan sees
what the run will see. Everything printed is computed from the settings; nothing is measured. Exit status: 0, 1 with
warnings, 2 after a one-line error.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from tabulate import tabulate

from openrlhf_swap.command import Parser, counted, run_command
from openrlhf_swap.flags.configuration import Configuration, configure
from openrlhf_swap.flags.rules import check
from openrlhf_swap.sizing.memory import PHASES
from openrlhf_swap.sizing.models import GIB, GPUS, SHORT_NAMES, gib
from openrlhf_swap.sizing.plan import make_plan
from openrlhf_swap.sizing.settings import PROMPT
from openrlhf_swap.sizing.speed import OF_BYTES, OF_OPERATIONS

Size = tuple[int, tuple[float, ...]]
"""Bytes of a GPU; operations and bytes a second, if it is a known one."""
LAYOUTS = {  # of vLLM and DeepSpeed, with the GPUs of vLLM
    "in_turn": "in turn on all GPUs",
    "apart": "at the same time, {:.0f} for vLLM,",
    "fastest": "with the best split, {:.0f} for vLLM,",
}
SHARED_NODE = {  # as in scripts/train_swap_1.5b.yaml
    "train.colocate_all": True,
    "vllm.enable_sleep": True,
    "ds.enable_sleep": True,
    "actor.gradient_checkpointing_enable": True,
    "vllm.gpu_memory_utilization": 0.7,
}


def main(argv: list[str]) -> int:
    """Run the command."""
    own, rest = _parser().parse_known_args(argv)
    plan = make_plan(own, training_configuration(own, rest))
    print(json.dumps(plan, indent=2) if own.json else "\n".join(_lines(plan)))
    return 0 if plan["fits"] else 1


def _parser() -> Parser:
    parser = Parser("openrlhf-swap plan", __doc__)
    add = parser.add_argument
    add("--gpu", required=True, type=_gpu, help=f"{', '.join(GPUS)}, or a number of GiB")
    add("--model", help=f"short for --actor.model_name_or_path; also {', '.join(SHORT_NAMES)}")
    add("--gpus", type=int, help="plan one node of N GPUs: used in turn, or halved with --train.async_enable")
    add("--rows", type=int, help="prompts in the data set; counted if it is a JSONL file")
    prompt, response = f"mean prompt length (default: {PROMPT})", "mean response length (default: half of the maximum)"
    add("--prompt", type=int, metavar="TOKENS", help=prompt)
    add("--response", type=int, metavar="TOKENS", help=response)
    correct = "share of correct responses, the only ones that are scored (default: 1)"
    add("--correct", type=float, default=1.0, metavar="SHARE", help=correct)
    reserve = "memory of a GPU kept free for CUDA contexts, NCCL and fragmentation (default: 4)"
    add("--reserve", type=float, default=4.0, metavar="GIB", help=reserve)
    node = "main memory of a node; warns if it is too small"
    add("--node-memory", type=float, metavar="GIB", help=node)
    rate = "a step's response tokens divided by its seconds, measured in a run of yours: gives seconds and hours"
    add("--tokens-per-second", type=float, metavar="N", help=rate)
    add("--json", action="store_true", help="print bytes and numbers as JSON")
    return parser


def _gpu(name: str) -> Size:
    if name.lower() in GPUS:
        size, *peaks = GPUS[name.lower()]
        return int(size * GIB), tuple(peaks)
    with suppress(ValueError):
        if 0 < (size := float(name)) < math.inf:
            return int(size * GIB), ()
    raise argparse.ArgumentTypeError(f"{name} is unknown; use one of {', '.join(GPUS)}, or a number of GiB")


def training_configuration(own: argparse.Namespace, words: Sequence[str]) -> Configuration:
    """Read the training's flags as `openrlhf-swap train` does; raises ConfigError for what the run would refuse."""
    if own.model:
        words = [*words, "--actor.model_name_or_path", SHORT_NAMES.get(own.model.lower(), own.model)]
    # A plan needs no data set.
    defaults = {"data.prompt_dataset": "unknown", "data.label_key": "answer"}
    configuration = configure(words, on_cpu=False, defaults=defaults)
    if own.gpus is not None:
        configuration = configure(words, on_cpu=False, defaults={**defaults, **_placement(own.gpus, configuration)})
    check(configuration)
    return configuration


def _placement(gpus: int, configuration: Configuration) -> dict[str, Any]:
    """The flags that --gpus stands for."""
    args = configuration.args
    size = max(1, args.vllm.tensor_parallel_size)
    engines = gpus // size
    if not args.train.async_enable:
        return SHARED_NODE | {"actor.num_gpus_per_node": gpus, "vllm.num_engines": engines}
    return {
        "actor.gradient_checkpointing_enable": True,
        "actor.num_gpus_per_node": gpus - engines // 2 * size,
        "vllm.num_engines": engines // 2,
    }


def _lines(plan: dict[str, Any]) -> Iterator[str]:
    """A plan as text."""
    settings, vllm, step, run = plan["settings"], plan["vllm"], plan["step"], plan["run"]
    held, node = plan["host_bytes"], plan["node_bytes"]
    trained = f"; LoRA trains {plan['adapters']:,} more" if plan["adapters"] else ""
    yield f"{plan['model']}, {plan['parameters']:,} parameters{trained}"
    ranks = f"{settings['ranks']} for DeepSpeed, the rest for vLLM"
    place = "vLLM and DeepSpeed in turn" if settings["shared"] else ranks
    yield f"on {plan['gpus']} x {gib(plan['gpu_bytes'])} GiB: {place}"
    yield "Computed from the settings, for the longest sequences they allow. Nothing was measured.\n"
    yield _memory_table(plan) + "\n"
    facts = {
        "an update": f"has capacity for {counted(plan['most_update_rows'], 'response')} of full length at a time",
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
        "seconds": _seconds(plan),
        "the run": "prompts unknown: give --rows",
    }
    if run["rows"] is not None:
        hours = f"{plan['time']['hours']:,.1f} hours; " if plan["time"] else ""
        assumed = " (assumed from the data set's name; --rows sets them)" if run["rows_assumed"] else ""
        facts["the run"] = (
            f"{run['rows']:,} prompts{assumed}, {run['steps']} steps with {run['updates']} updates: {hours}"
            f"{run['saves']} checkpoints, {gib(run['disk_bytes'])} GiB of disk"
        )
        if run["left_out"]:
            facts["the run"] += (
                f"; the last {run['left_out']} prompts of an episode, too few for a batch, are left out"
            )
    labelled = [*facts.items(), *(("warning:", text) for text in plan["warnings"])]
    for label, text in [*labelled, *(("note:", text) for text in plan["notes"])]:
        yield textwrap.fill(f"{label:13}{text}", 118, subsequent_indent=" " * 13, break_on_hyphens=False)
    yield "It fits." if plan["fits"] else f"Remedy: {plan['remedy']}" if plan["remedy"] else "See the warnings."


def _seconds(plan: dict[str, Any]) -> str:
    """Of a step as measured; else in both layouts of vLLM and DeepSpeed, and which is faster."""
    if rate := plan["time"] and plan["time"]["tokens_per_second"]:
        return f"{plan['time']['step_seconds']:,.0f} a step, at {rate:,.0f} response tokens a second, as stated"
    if plan["seconds"] is None:
        return "unknown: give --gpu by its name"
    parts = []
    for name, times in plan["seconds"].items():
        place = LAYOUTS[name].format(times["gpus"])
        parts.append(
            f"{place} {times['step']:.0f} (generation {times['generate']:.0f}, training {times['train']:.0f})"
        )
    if len(parts) > 1:
        fastest = min(plan["seconds"].items(), key=lambda layout: layout[1]["step"])[0]
        parts.append(f"{'in turn' if fastest == 'in_turn' else 'at the same time'} is faster")
    return (
        f"a step, {'; '.join(parts)}. Assumes {OF_OPERATIONS:.0%} of the GPU's peak operations and {OF_BYTES:.0%} of "
        "its bandwidth"
    )


def _memory_table(plan: dict[str, Any]) -> str:
    phases = plan["phases"].values()
    parts = sorted({part: None for phase in phases for part in phase if phase[part]}, key="allowance".__eq__)
    used = [sum(phase.values()) for phase in phases]
    rows = {part: [phase.get(part, 0) for phase in phases] for part in parts}
    rows |= {"together": used, "left": [plan["gpu_bytes"] - total for total in used]}
    cells = [[name, *(size / GIB if size else None for size in sizes)] for name, sizes in rows.items()]
    head = ["GiB on a GPU", *PHASES.values()]
    return tabulate(cells, head, tablefmt="plain", floatfmt=".1f", numalign="right", missingval="-")


if __name__ == "__main__":
    sys.exit(run_command(main))

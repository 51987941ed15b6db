"""A plan as text."""

from __future__ import annotations

import textwrap
from typing import Any

from tabulate import tabulate

from openrlhf_swap.command import counted
from openrlhf_swap.sizing.memory import PHASES
from openrlhf_swap.sizing.models import GIB, gib
from openrlhf_swap.sizing.speed import OF_BYTES, OF_OPERATIONS


def report(plan: dict[str, Any]) -> str:
    """A plan as text."""
    ranks, shared = plan["settings"]["ranks"], plan["settings"]["shared"]
    trained = f"; LoRA trains {plan['adapters']:,} more" if plan["adapters"] else ""
    place = "vLLM and DeepSpeed in turn" if shared else f"{ranks} for DeepSpeed, the rest for vLLM"
    return "\n".join(
        [
            f"{plan['model']}, {plan['parameters']:,} parameters{trained}",
            f"on {plan['gpus']} x {gib(plan['gpu_bytes'])} GiB: {place}",
            "Computed from the settings, for the longest sequences they allow. Nothing was measured.",
            "",
            _memory_table(plan),
            "",
            *(_wrapped(name, fact) for name, fact in _facts(plan).items()),
            "",
            *(_wrapped("warning:", warning) for warning in plan["warnings"]),
            *(_wrapped("note:", note) for note in plan["notes"]),
            "It fits." if plan["fits"] else "See the warnings.",
        ]
    )


def _facts(plan: dict[str, Any]) -> dict[str, str]:
    settings, vllm, step, run = plan["settings"], plan["vllm"], plan["step"], plan["run"]
    flops, disk = sum(step["flops"].values()), run["checkpoint_bytes"]
    held = ", ".join(f"{name} {gib(size)} GiB" for name, size in plan["host_bytes"].items())
    if plan["node_bytes"]:
        held = f"{held or 'little'}; {gib(sum(plan['host_bytes'].values()))} of {gib(plan['node_bytes'])} GiB"
    facts = {
        "micro-batch": f"log-probabilities {settings['score_tokens']:,} tokens, update {settings['update_tokens']:,}; "
        f"an update has capacity for {counted(plan['most_update_rows'], 'response')} of full length",
        "main memory": f"per node, in addition to the processes: {held or 'little'}",
        "vLLM": f"{gib(vllm['weights_bytes'])} GiB of weights; {gib(vllm['cache_bytes'])} GiB for the keys and "
        f"values of {vllm['cache_tokens']:,} tokens: {vllm['full_sequences']} responses of full length or "
        f"{vllm['mean_sequences']} of mean length. An engine runs at most {vllm['most_sequences']} at a time and gets "
        f"{vllm['sequences_a_step']} a step",
        "a step": f"{step['responses']:,} responses of {step['mean_response']:,} tokens: {step['tokens'] / 1e6:.1f}M "
        f"(at most {step['most_tokens'] / 1e6:.1f}M)",
        "FLOPs": f"{flops:.2e}: " + ", ".join(f"{name} {value:.2e}" for name, value in step["flops"].items()),
        "scoring": f"{step['prefixes']} prefixes: {step['scoring_of_a_forward']:.1%} of a forward of their response "
        f"(one attention call a layer, half of whose scores are masked); "
        f"{step['scoring_of_the_step']:.1%} of the step with {step['scored']:.0%} of the responses scored",
        "seconds": _seconds(plan["seconds"]),
        "checkpoint": f"{gib(disk['deepspeed'])} GiB of DeepSpeed's, {gib(disk['model'])} GiB as a model",
        "the run": "prompts unknown: give --rows",
    }
    if run["rows"] is not None:
        facts["the run"] = (
            f"{run['rows']:,} prompts, {run['steps']} steps with {run['updates']} updates, {run['steps'] * flops:.2e} "
            f"FLOPs; {run['saves']} checkpoints, {gib(run['disk_bytes'])} GiB of disk"
        )
    if time := plan["time"]:
        stated = f"at {time['tokens_per_second']:,.0f} response tokens a second, as stated"
        hours = "" if time["hours"] is None else f", {time['hours']:,.1f} hours in all"
        facts["time"] = f"{time['step_seconds']:,.0f} s a step{hours}, {stated}"
    return facts


def _seconds(layouts: dict[str, dict[str, float]] | None) -> str:
    """Both layouts of vLLM and DeepSpeed, and which is faster."""
    if layouts is None:
        return "unknown: give --gpu by its name"
    texts = {
        name: f"{seconds['step']:.0f} a step (generation {seconds['generate']:.0f}, training {seconds['train']:.0f})"
        for name, seconds in layouts.items()
    }
    parts = [f"in turn on all GPUs {texts['in_turn']}"]
    if "apart" in layouts:
        parts.append(f"at the same time, {layouts['apart']['gpus']:.0f} for vLLM, {texts['apart']}")
    if "fastest" in layouts:
        parts.append(f"with the best split, {layouts['fastest']['gpus']:.0f} for vLLM, {texts['fastest']}")
    faster = min(layouts, key=lambda name: layouts[name]["step"])
    if len(layouts) > 1:
        parts.append(f"{'in turn' if faster == 'in_turn' else 'at the same time'} is faster")
    return (
        "; ".join(parts)
        + f". Assumes {OF_OPERATIONS:.0%} of the GPU's peak operations and {OF_BYTES:.0%} of its bandwidth"
    )


def _wrapped(label: str, text: str) -> str:
    return textwrap.fill(f"{label:13}{text}", 118, subsequent_indent=" " * 13, break_on_hyphens=False)


def _memory_table(plan: dict[str, Any]) -> str:
    phases = plan["phases"].values()
    parts = sorted({part: None for phase in phases for part in phase if phase[part]}, key="allowance".__eq__)
    used = [sum(phase.values()) for phase in phases]
    rows = {part: [phase.get(part, 0) for phase in phases] for part in parts}
    rows |= {"together": used, "left": [plan["gpu_bytes"] - total for total in used]}
    cells = [[name, *(size / GIB if size else None for size in sizes)] for name, sizes in rows.items()]
    head = ["GiB on a GPU", *PHASES.values()]
    return tabulate(cells, head, tablefmt="plain", floatfmt=".1f", numalign="right", missingval="-")

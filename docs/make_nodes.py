"""Write the page of plans for several nodes.

    python docs/make_nodes.py > docs/use/nodes.md

Memory and seconds are `openrlhf_swap.plan`'s; the driver's seconds and bytes were measured:

    python -m benchmarks.driver --responses 1024 --json docs/use/driver.json
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tabulate import tabulate

from openrlhf_swap import plan
from openrlhf_swap.flags.defaults import as_words
from openrlhf_swap.sizing.memory import PHASES
from openrlhf_swap.sizing.models import SHORT_NAMES, gib
from openrlhf_swap.sizing.speed import OF_BYTES, OF_OPERATIONS

MODELS = {"r1-1.5b": 2, "r1-7b": 3, "r1-32b": 3, "qwen3-30b-a3b": 3}  # and the ZeRO stage
GPUS = ("h100", "h200")
NODES = (1, 4, 16, 64)
OF_NODE = 8  # GPUs
PROMPTS, RESPONSES = 128, 16  # of a step
SHARDS = (1, 2, 4, 8)  # tensor parallelism, in the order in which it is tried
NETWORK = 400 * 10**9  # bytes per second into a node
FELT = 0.1  # share of a step from which the driver is called a bottleneck
DRIVER = Path(__file__).parent / "use" / "driver.json"

PAGE = """\
# Several nodes, on paper

Made by `python docs/make_nodes.py > docs/use/nodes.md`: edit the script, not this file.

**None of this was run.** No model of this table was trained on a GPU with this project, no run had more than one node
with GPUs, and no mixture of experts of this size was loaded. Memory and FLOPs come from the formulas in
[sizing_formulas.md](../internals/sizing_formulas.md); seconds assume {operations:.0%} of the data sheet's
operations and {bandwidth:.0%} of its bandwidth, and leave out waking, sleeping, communication and the wait for the
slowest rank. Only the driver's seconds and bytes were measured, on a CPU.

Nodes have {gpus} GPUs, on which vLLM and DeepSpeed take turns, with the flags of `scripts/train_swap_r1.sh` without
packing: at most 14,000 tokens, {responses:,} responses a step with 6,000 tokens on average, one response per
micro-batch. Each row has the smallest `--vllm.tensor_parallel_size` that fits, and `--ds.adam_offload` where nothing
else does. With few responses per engine a larger one generates faster: therefore some rows take longer on the larger
GPU. Any of them, in full:

```bash
{command}
```

## Memory

{memory}

## What travels in a step

N parameters, n nodes, R = {gpus} n GPUs, B responses a step, m = B / R micro-batches per GPU. GB that reach **one node
from the others**; inside a node NVLink carries the rest. The seconds are
for {network} GB/s per node, which is {gpus} network cards of 400 Gbit/s at their peak.

* **Weights to the engines.** An engine takes them from the processes on its own GPUs by CUDA IPC, without a copy on
  the network. ZeRO-2 has all weights on each GPU: 0. ZeRO-3 first gathers them: 2 N (n - 1) / n.
* **DeepSpeed, ZeRO-2.** Each micro-batch's gradients are reduced (2 N), and the new weights gathered once (2 N):
  2 N (m + 1) (n - 1) / n.
* **DeepSpeed, ZeRO-3.** Each micro-batch gathers the weights for its log-probabilities, its forward and its backward
  pass, and reduces its gradients: 8 N m (n - 1) / n. Packed rows divide m by the responses in a row.
* **Hidden states** leave no GPU: the policy scores its own responses, and returns K + 1 numbers for each.

{traffic}

Both are lower bounds: each byte enters a node once. With {responses:,} responses **per node** m, and with it
DeepSpeed's traffic, is that of one node's {one_node} micro-batches.

Through the driver, pickled, per response of {tokens:,} tokens (measured):

{ways}

## Where the driver becomes the bottleneck

The driver reads all responses, makes micro-batches and advantages and writes the metrics, in one process, while all
GPUs wait: d = {cpu:.2f} ms of CPU time per response of {tokens:,} tokens, measured over {measured:,} responses
({wall:.2f} ms by the clock, because other work ran: {cores} cores with a load of {load:.1f}). Ray's copies of the
bytes above and the grading are not in it. The driver's share of a step is B d / (B d + the step's seconds); in bold
from {felt:.0%} on.

{seconds}

{summary}
"""


@dataclass(frozen=True)
class Layout:
    """A plan and the flags that it was made with."""

    words: tuple[str, ...]
    shards: int
    offload: bool
    numbers: dict[str, Any]


@cache
def layout_of(model: str, gpu: str, nodes: int, steps: int = 1) -> Layout:
    """The first layout without warnings or, if there is none, the last one.

    Args:
        model: a short name.
        gpu: a name.
        nodes: how many.
        steps: how many times the responses of a step.
    """
    for offload, shards in ((offload, shards) for offload in (False, True) for shards in SHARDS):
        words = ("--gpu", gpu, "--model", model, *_flags(model, nodes, steps, shards, offload))
        with contextlib.redirect_stdout(io.StringIO()) as text:
            plan.main([*words, "--json"])
        layout = Layout(words, shards, offload, json.loads(text.getvalue()))
        if layout.numbers["fits"]:
            break
    return layout


def _flags(model: str, nodes: int, steps: int, shards: int, offload: bool) -> list[str]:
    flags = dict(plan.SHARED_NODE) | {
        "--ds.zero_stage": str(MODELS[model]),
        "--actor.num_nodes": str(nodes),
        "--actor.num_gpus_per_node": str(OF_NODE),
        "--vllm.num_engines": str(nodes * OF_NODE // shards),
        "--vllm.tensor_parallel_size": str(shards),
        "--rollout.batch_size": str(PROMPTS * steps),
        "--rollout.n_samples_per_prompt": str(RESPONSES),
        "--train.batch_size": str(PROMPTS * RESPONSES * steps),
        "--train.micro_batch_size": "1",
        "--rollout.micro_batch_size": "1",
    }
    if offload:
        del flags["--ds.enable_sleep"]
        flags["--ds.adam_offload"] = None
    return as_words(flags)


def nodes_page(driver: dict[str, Any]) -> str:
    """The whole document, with the numbers that `benchmarks.driver` measured."""
    responses = PROMPTS * RESPONSES
    words = layout_of("qwen3-30b-a3b", "h200", 4).words
    return PAGE.format(
        operations=OF_OPERATIONS,
        bandwidth=OF_BYTES,
        gpus=OF_NODE,
        responses=responses,
        command=_command(words),
        memory=_table(_memory_rows(), ("model", "nodes", *[head for gpu in GPUS for head in _memory_heads(gpu)])),
        traffic=_table(_traffic_rows(), ("model", "nodes", "m", "weights to engines, GB", "DeepSpeed, GB", "both, s")),
        network=NETWORK // 10**9,
        one_node=responses // OF_NODE,
        tokens=driver["tokens"],
        ways=_table(_way_rows(driver), ("way", "kB", f"GB a step of {responses:,}", f"of {responses:,} x 64")),
        cpu=1000 * driver["cpu_seconds"],
        wall=1000 * driver["seconds"],
        measured=driver["responses"],
        cores=driver["cores"],
        load=driver["load"],
        felt=FELT,
        seconds=_table(_second_rows(driver), _second_heads(responses)),
        summary=_summary(driver),
    )


def _command(words: tuple[str, ...]) -> str:
    lines, text = [], "python -m openrlhf_swap.plan"
    for word in words:
        if word.startswith("--") and len(text) + len(word) > 100:
            lines.append(text + " \\")
            text = "   "
        text += f" {word}"
    return "\n".join([*lines, text])


def _table(rows: Iterator[tuple[Any, ...]], heads: tuple[str, ...]) -> str:
    return tabulate(rows, heads, tablefmt="github", disable_numparse=True)


def _name(model: str) -> str:
    return SHORT_NAMES[model].rpartition("/")[2].removeprefix("DeepSeek-")


def _memory_heads(gpu: str) -> tuple[str, ...]:
    size = {"h100": "80 GB", "h200": "141 GB"}[gpu]
    return f"{size}: layout", "GiB at most", "main memory of a node, GiB"


def _memory_rows() -> Iterator[tuple[Any, ...]]:
    for model in MODELS:
        for nodes in NODES:
            cells = [cell for gpu in GPUS for cell in _memory_cells(layout_of(model, gpu, nodes))]
            yield (_name(model), nodes, *cells)


def _memory_cells(layout: Layout) -> tuple[str, ...]:
    sizes = {phase: sum(parts.values()) for phase, parts in layout.numbers["phases"].items()}
    phase = max(sizes, key=lambda name: sizes[name])
    of = layout.numbers["gpu_bytes"]
    kind = f"ZeRO-{layout.numbers['settings']['stage']}, TP {layout.shards}" + (", offload" if layout.offload else "")
    peak = f"{gib(sizes[phase])} of {gib(of)}, {PHASES[phase]}"
    if not layout.numbers["fits"]:
        kind = "does not fit"
    return kind, peak, f"{sum(layout.numbers['host_bytes'].values()) / 2**30:,.0f}"


def traffic(parameters: int, stage: int, nodes: int, micro_batches: int) -> tuple[float, float]:
    """Bytes that reach a node from the others in a step: weights for its engines, and what DeepSpeed exchanges."""
    whole = 2 * parameters * (nodes - 1) / nodes
    return (0.0, whole * (micro_batches + 1)) if stage < 3 else (whole, 4 * whole * micro_batches)


def _traffic_rows() -> Iterator[tuple[Any, ...]]:
    for model, stage in MODELS.items():
        for nodes in NODES:
            micro = PROMPTS * RESPONSES // (OF_NODE * nodes)
            sizes = traffic(layout_of(model, GPUS[-1], nodes).numbers["parameters"], stage, nodes, micro)
            gigabytes = [f"{size / 1e9:,.0f}" for size in sizes]
            yield (_name(model), nodes, micro, *gigabytes, f"{sum(sizes) / NETWORK:,.1f}")


def _way_rows(driver: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for way, size in [*driver["bytes"].items(), ("together", sum(driver["bytes"].values()))]:
        step = size * PROMPTS * RESPONSES / 1e9
        yield way, f"{size / 1e3:.0f}", f"{step:.2f}", f"{step * 64:.0f}"


def _second_heads(responses: int) -> tuple[str, ...]:
    heads = [f"{gpu.upper()}, {count}: step, s" for count in (f"{responses:,}", f"{responses:,} x n") for gpu in GPUS]
    return ("model", "nodes", *(head for pair in zip(heads, ["driver"] * 4, strict=True) for head in pair))


def share(driver: dict[str, Any], model: str, gpu: str, nodes: int, steps: int) -> tuple[float, float]:
    """Seconds of a step without the driver, and the driver's share of both."""
    seconds = layout_of(model, gpu, nodes, steps).numbers["seconds"]["in_turn"]["step"]
    own = driver["cpu_seconds"] * PROMPTS * RESPONSES * steps
    return seconds, own / (own + seconds)


def _second_rows(driver: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    for model in MODELS:
        for nodes in NODES:
            cells: list[str] = []
            for steps in (1, nodes):
                for gpu in GPUS:
                    seconds, part = share(driver, model, gpu, nodes, steps)
                    cells += [f"{seconds:,.0f}", f"**{part:.1%}**" if part >= FELT else f"{part:.1%}"]
            yield (_name(model), nodes, *cells)


def _summary(driver: dict[str, Any]) -> str:
    """Where the driver first takes its share, for each model."""
    lines = []
    for model in MODELS:
        parts = []
        for steps, kind in ((lambda nodes: 1, "a step"), (lambda nodes: nodes, "a node")):
            felt = [nodes for nodes in NODES if share(driver, model, GPUS[-1], nodes, steps(nodes))[1] >= FELT]
            found = f"from {felt[0]} nodes on" if felt else "not up to 64 nodes"
            parts.append(f"{PROMPTS * RESPONSES:,} {kind}: {found}")
        lines.append(f"* {_name(model)} on H200, {'; '.join(parts)}.")
    return "\n".join(lines)


if __name__ == "__main__":
    print(nodes_page(json.loads(DRIVER.read_text(encoding="utf-8"))), end="")

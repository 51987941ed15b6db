r"""Size a training run before any GPU is taken: memory, days, disk, and what will not fit.

    openrlhf-swap plan --gpu h100 --config scripts/train_swap_1.5b.yaml
    openrlhf-swap plan --gpu h200 --model r1-7b --gpus 8 --ds.zero_stage 3 --node-memory 1500

All other flags are those of `openrlhf-swap train` and are read by its own parser, with its
defaults: the plan sees what the run will see. Everything printed is computed from the settings;
nothing is measured. Exit status: 0, 1 with warnings, 2 after a one-line error.
"""

import argparse
import json
import math
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from operator import itemgetter
from pathlib import Path
from types import SimpleNamespace

import psutil
from tabulate import tabulate

from openrlhf_swap.command import Parser, run_command
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.flags.configuration import Configuration, configure
from openrlhf_swap.flags.rules import check_flags, check_objective
from openrlhf_swap.flags.step_tokens import advice_on_step_tokens
from openrlhf_swap.flags.stock import FlagValues
from openrlhf_swap.objectives.registry import build
from openrlhf_swap.sizing.engine import EngineCapacity, cached_token, engine_capacity
from openrlhf_swap.sizing.fitting import (
    NODE_MEMORY,
    VLLM_CACHE,
    Machine,
    copied_bytes,
    describe_place,
    describe_update,
    fit,
    lower_micro_batches,
    of_mean_length,
    savings,
)
from openrlhf_swap.sizing.host import (
    CheckpointBytes,
    checkpoint_bytes,
    cpu_bytes,
    cpu_cache,
    host_bytes,
    ways_to_fit,
)
from openrlhf_swap.sizing.memory import PHASES, phases
from openrlhf_swap.sizing.models import GIB, GPUS, SHORT_NAMES, GpuModel, Model, gib
from openrlhf_swap.sizing.operations import (
    OF_BYTES,
    OF_OPERATIONS,
    StepSeconds,
    generation_seconds,
    step_flops,
    step_seconds,
)
from openrlhf_swap.sizing.settings import MEAN_PROMPT, BytesByUse, Settings, read_run

DEEPSCALER_ROWS = 40_315
WIDTH = 80  # columns of the text
LABEL = 13  # columns of a line's label
NOTHING_HELPS = "no flag helps: take more or larger GPUs, or nodes with more main memory"
SHARED_NODE = {  # as in scripts/train_swap_1.5b.yaml
    "train.colocate_all": True,
    "vllm.enable_sleep": True,
    "ds.enable_sleep": True,
    "vllm.gpu_memory_utilization": 0.7,
}


@dataclass(frozen=True, kw_only=True)
class PlannedStep:
    """A training step."""

    responses: int
    mean_response: int  # tokens of a response
    tokens: int  # of all responses, at their mean length
    most_tokens: int  # of all responses, at their full length
    prefixes: int  # of a response that are scored; 0 for an objective that scores none
    flops: dict[str, float]  # of all responses, by phase
    scoring_of_the_step: float  # share of the floating-point operations
    advice: str | None  # another length of the steps, where this one leaves too few


@dataclass(frozen=True)
class PlannedRun:
    """A run of unknown length, because nobody knows the number of its prompts."""

    rows: int | None  # prompts
    rows_assumed: bool  # their number follows from the data set's name alone
    checkpoint_bytes: CheckpointBytes


@dataclass(frozen=True)
class CountedRun(PlannedRun):
    """A run with a known number of prompts."""

    rows: int
    steps: int
    hours: float | None  # None for a GPU of unknown speed
    updates: int
    saves: int  # checkpoints that are written
    disk_bytes: int


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All numbers of a plan; `--json` prints them by these names."""

    model: str
    parameters: int
    adapters: int  # parameters of LoRA
    gpu_bytes: int
    gpus: int
    settings: Settings
    optimizer: str | None  # where it is while vLLM generates, on shared GPUs
    update: str | None  # what it recomputes and holds, if the plan decides
    copied_bytes: int  # of a GPU, in a step, to the main memory and back
    phases: dict[str, BytesByUse]  # bytes on a GPU by phase and use
    vllm: EngineCapacity
    step: PlannedStep
    seconds: StepSeconds | None  # None for a GPU of unknown speed
    run: PlannedRun
    host_bytes: BytesByUse  # of a node's main memory by use
    node_bytes: int | None  # main memory of a node, if it is known
    savings: dict[str, BytesByUse]  # bytes that each flag saves, by the place that lacks memory
    warnings: list[str] = field(default_factory=list)
    fits: bool = True


def main(argv: list[str]) -> int:
    own, rest = _parser().parse_known_args(argv)
    if own.gpu is None:
        return plan_on_cpu(own, training_configuration(own, rest, on_cpu=True))
    plan = make_plan(own, training_configuration(own, rest))
    if own.json:
        print(json.dumps(asdict(plan), indent=2))
    else:
        print(*_lines(plan), sep="\n")
    return 0 if plan.fits else 1


def _parser() -> Parser:
    parser = Parser("openrlhf-swap plan", __doc__)
    add = parser.add_argument
    text = f"{', '.join(GPUS)}, or a number of GiB; cpu for a run without GPUs"
    add("--gpu", required=True, type=_gpu, help=text)
    add("--model", help=f"short for --actor.model_name_or_path; also {', '.join(SHORT_NAMES)}")
    text = (
        "plan one node of N GPUs, used in turn, or halved with --train.async_enable (default: what "
        "--actor.num_gpus_per_node says, or OpenRLHF's 8)"
    )
    add("--gpus", type=int, help=text)
    add("--rows", type=int, help="prompts in the data set; counted if it is a JSONL file")
    text = f"mean prompt length (default: {MEAN_PROMPT})"
    add("--prompt", type=int, metavar="TOKENS", help=text)
    text = "mean response length (default: half of the maximum)"
    add("--response", type=int, metavar="TOKENS", help=text)
    text = "share of correct responses, the only ones that are scored (default: 1)"
    add("--correct", type=float, default=1.0, metavar="SHARE", help=text)
    text = "main memory of a node; warns if it is too small (of a CPU's run: what is free here)"
    add("--node-memory", type=float, metavar="GIB", help=text)
    add("--json", action="store_true", help="print bytes and numbers as JSON")
    return parser


def _gpu(name: str) -> GpuModel | None:
    """A known GPU, or one of a size in GiB; None for a run without GPUs."""
    if name.lower() == "cpu":
        return None
    known = GPUS.get(name.lower())
    if known:
        return known
    with suppress(ValueError):
        size = float(name)
        if 0 < size < math.inf:
            return GpuModel(size)
    raise argparse.ArgumentTypeError(
        f"{name} is unknown; use one of {', '.join(GPUS)}, a number of GiB, or cpu"
    )


def training_configuration(
    own: argparse.Namespace, words: Sequence[str], on_cpu: bool = False
) -> Configuration:
    """Read the training's flags as `openrlhf-swap train` does.

    Raises ConfigError for what the run would refuse.
    """
    if own.model:
        model = SHORT_NAMES.get(own.model.lower(), own.model)
        words = [*words, "--actor.model_name_or_path", model]
    # A plan needs no data.
    defaults: FlagValues = {"data.prompt_dataset": "unknown", "data.label_key": "answer"}
    if own.gpus is not None:
        defaults["actor.num_gpus_per_node"] = own.gpus
    configuration = configure(words, on_cpu=on_cpu, defaults=defaults)
    if own.gpus is not None:
        defaults |= _one_node(own.gpus, configuration.args)
        configuration = configure(words, on_cpu=on_cpu, defaults=defaults)
    check_flags(configuration)
    check_objective(configuration)
    return configuration


def _one_node(gpus: int, args: SimpleNamespace) -> FlagValues:
    """The flags of a run on one node of so many GPUs."""
    size = max(1, args.vllm.tensor_parallel_size)
    engines = gpus // size
    if not args.train.async_enable:
        return SHARED_NODE | {"actor.num_gpus_per_node": gpus, "vllm.num_engines": engines}
    return {
        "actor.num_gpus_per_node": gpus - engines // 2 * size,
        "vllm.num_engines": engines // 2,
    }


@dataclass(frozen=True, kw_only=True)
class CpuPlan:
    """The main memory of a run without GPUs; `--json` prints the numbers by these names."""

    model: str
    parameters: int
    available_bytes: int
    update_rows: int  # responses of a micro-batch of the update, as the start lowers them
    score_rows: int  # and of the log-probability pass
    mean: BytesByUse  # bytes by process for responses of mean length
    longest: BytesByUse  # and of full length
    fits: bool  # for responses of mean length


def plan_on_cpu(own: argparse.Namespace, training: Configuration) -> int:
    """Print what a run without GPUs takes of the main memory; returns the exit status."""
    model, given = read_run(training, build(training.method))
    available = psutil.virtual_memory().available
    if own.node_memory:
        available = int(own.node_memory * GIB)
    cache = cpu_cache(given.engine_responses * given.context * cached_token(model, given))
    settings = lower_micro_batches(model, given, cache, available)
    mean = cpu_bytes(model, of_mean_length(settings), cache)
    plan = CpuPlan(
        model=training.args.actor.model_name_or_path,
        parameters=model.parameters,
        available_bytes=available,
        update_rows=settings.update_rows,
        score_rows=settings.score_rows,
        mean=mean,
        longest=cpu_bytes(model, settings, cache),
        fits=sum(mean.values()) <= available,
    )
    if own.json:
        print(json.dumps(asdict(plan), indent=2))
    else:
        print(*_cpu_lines(plan), sep="\n")
        if not plan.fits:
            print(_filled(f"warning: this does not fit; {ways_to_fit(training.args)}"))
    return 0 if plan.fits else 1


def _cpu_lines(plan: CpuPlan) -> Iterator[str]:
    """The plan of a run without GPUs as text."""
    yield f"{plan.model}, {plan.parameters:,} parameters"
    yield f"on a CPU with {gib(plan.available_bytes)} GiB of free main memory"
    yield "Computed from the settings. Nothing was measured.\n"
    rows = []
    for process, size in plan.mean.items():
        rows.append([process, size / GIB, plan.longest[process] / GIB])
    both = [plan.mean, plan.longest]
    rows.append(["together", *(sum(sizes.values()) / GIB for sizes in both)])
    head = ["GiB", "responses of mean length", "of full length"]
    yield tabulate(rows, head, tablefmt="plain", floatfmt=".1f", numalign="right")
    yield ""
    yield _filled(
        f"with --train.micro_batch_size {plan.update_rows} --rollout.micro_batch_size "
        f"{plan.score_rows}, which the start takes if larger ones do not fit"
    )


def make_plan(own: argparse.Namespace, training: Configuration) -> Plan:
    """Plan a training; `own` are the plan's own flags.

    Raises ConfigError for a model or setting that cannot be planned.
    """
    args = training.args
    gpu = own.gpu.memory
    model, given = read_run(training, build(training.method))
    if model.heads % given.tensor_parallel:
        raise ConfigError(
            f"--vllm.tensor_parallel_size is {given.tensor_parallel}, which does not divide the "
            f"{model.heads} attention heads; use a divisor"
        )
    node = own.node_memory and int(own.node_memory * GIB)
    machine = Machine(gpu, args.actor.num_gpus_per_node, node)
    settings = fit(model, given, machine)
    prompt, response = _lengths(own, settings)
    vllm = engine_capacity(model, settings, gpu, prompt + response)
    step = _step(own, training, model, settings, prompt, response)
    seconds = None
    if own.gpu.peaks:
        at_a_time = vllm.most_sequences
        generation = generation_seconds(model, settings, prompt, response, at_a_time, own.gpu.peaks)
        flops = sum(step.flops.values()) - step.flops["generate"]
        seconds = step_seconds(settings, generation, flops, own.gpu.peaks)
    plan = Plan(
        model=args.actor.model_name_or_path,
        parameters=model.parameters,
        adapters=model.adapters,
        gpu_bytes=gpu,
        gpus=settings.gpus,
        settings=settings,
        optimizer=describe_place(model, given, settings) if settings.shared else None,
        update=describe_update(given, settings),
        copied_bytes=copied_bytes(model, settings),
        phases=phases(model, settings, gpu),
        vllm=vllm,
        step=step,
        seconds=seconds,
        run=_run(own, training, checkpoint_bytes(model, settings), seconds),
        host_bytes=host_bytes(model, settings, machine.gpus_of_node),
        node_bytes=node,
        savings=savings(model, given, machine),
    )
    warnings = list(_warnings(plan, args.rollout.batch_size))
    return replace(plan, warnings=warnings, fits=not warnings)


def _lengths(own: argparse.Namespace, settings: Settings) -> tuple[int, int]:
    """Mean tokens of a prompt and of a response."""
    prompt = own.prompt or min(MEAN_PROMPT, settings.context // 2)
    response = own.response or settings.longest // 2
    if prompt + response > settings.context:
        raise ConfigError(
            f"--prompt is {prompt}, with responses of {response} tokens more than --data.max_len "
            f"{settings.context}; use fewer tokens or a larger context"
        )
    return prompt, response


def _step(
    own: argparse.Namespace,
    training: Configuration,
    model: Model,
    settings: Settings,
    prompt: int,
    response: int,
) -> PlannedStep:
    """The step of a run whose prompts and responses have so many tokens on average."""
    config = training.method
    args = training.args
    responses = args.rollout.batch_size * args.rollout.n_samples_per_prompt
    steps = min(config.max_steps, math.ceil(response / config.step_tokens))
    epochs = args.train.max_epochs
    flops = step_flops(model, settings, prompt, response, steps, epochs)
    flops["score"] *= own.correct
    advice = None
    if settings.branches and config.steps == "tokens":
        advice = advice_on_step_tokens(response, config.step_tokens, steps)
    return PlannedStep(
        responses=responses,
        mean_response=response,
        tokens=responses * response,
        most_tokens=responses * settings.longest,
        prefixes=steps + 1 if settings.branches else 0,
        flops={phase: responses * value for phase, value in flops.items()},
        scoring_of_the_step=flops["score"] / sum(flops.values()),
        advice=advice,
    )


def _run(
    own: argparse.Namespace,
    training: Configuration,
    disk: CheckpointBytes,
    seconds: StepSeconds | None,
) -> PlannedRun:
    """Steps, hours and disk of the whole run, where the number of prompts is known."""
    args = training.args
    rows = own.rows
    path = Path(args.data.prompt_dataset)
    if rows is None and path.suffix == ".jsonl" and path.is_file():
        rows = sum(1 for line in path.read_bytes().split(b"\n") if line.strip())
    assumed = rows is None and not path.is_file() and "deepscaler" in str(path).lower()
    if assumed:
        rows = DEEPSCALER_ROWS
    if rows is None:
        return PlannedRun(rows, assumed, disk)
    rollout = args.rollout
    train = args.train
    ckpt = args.ckpt
    rows = min(rows, args.data.max_samples)
    assumed = assumed and rows == DEEPSCALER_ROWS
    # An episode's incomplete last batch is dropped.
    steps = training.run.total_steps(rows // rollout.batch_size, train.num_episodes)
    saves = steps // ckpt.save_steps if ckpt.save_steps > 0 else 0
    kept = min(saves, ckpt.max_num + 1)  # one more while it is written
    if ckpt.disable_ds:
        kept = 0
    exports = saves * ckpt.save_hf + 1
    responses = steps * rollout.batch_size * rollout.n_samples_per_prompt * train.max_epochs
    return CountedRun(
        rows,
        assumed,
        disk,
        steps=steps,
        hours=steps * seconds.step / 3600 if seconds else None,
        updates=responses // train.batch_size,
        saves=saves,
        disk_bytes=kept * disk.deepspeed + exports * disk.model,
    )


def _warnings(plan: Plan, batch: int) -> Iterator[str]:
    """What does not fit, each with the flags that help and what each of them saves by itself.

    `batch` has the prompts of a step.
    """
    for place, flags in plan.savings.items():
        saved = [f"{flag} saves {gib(size)}" for flag, size in flags.items() if size > GIB / 20]
        yield f"{_shortage(plan, place)}; {', '.join(saved) or NOTHING_HELPS}"
    run = plan.run
    if isinstance(run, CountedRun) and run.steps == 0:
        yield (
            f"{run.rows} prompts do not fill a batch (--rollout.batch_size {batch}), so no step is "
            "trained: take more prompts, or a smaller batch"
        )


def _shortage(plan: Plan, place: str) -> str:
    """What does not fit: a phase of the step, vLLM's cache, or what a node's main memory holds."""
    if place == VLLM_CACHE:
        return (
            f"vLLM has {gib(plan.vllm.cache_bytes)} GiB for keys and values, less than one "
            f"response of {plan.settings.context} tokens needs"
        )
    if place == NODE_MEMORY:
        assert plan.node_bytes is not None
        return (
            f"a node needs {gib(sum(plan.host_bytes.values()))} GiB of main memory in addition to "
            f"the processes, but has {gib(plan.node_bytes)}"
        )
    parts = plan.phases[place]
    part, size = max(parts.items(), key=itemgetter(1))
    return (
        f"{PHASES[place]} needs {gib(sum(parts.values()))} GiB of {gib(plan.gpu_bytes)}, "
        f"{gib(size)} of it for {part}"
    )


def _lines(plan: Plan) -> Iterator[str]:
    """A plan as text."""
    trained = f"; LoRA trains {plan.adapters:,} more" if plan.adapters else ""
    yield _filled(f"{plan.model}, {plan.parameters:,} parameters{trained}")
    place = f"{plan.settings.ranks} for DeepSpeed, the rest for vLLM"
    if plan.settings.shared:
        place = "vLLM and DeepSpeed in turn"
    yield f"on {plan.gpus} x {gib(plan.gpu_bytes)} GiB: {place}"
    yield "Computed from the settings, for the longest sequences that they allow."
    yield "Nothing was measured."
    yield f"\n{_memory_table(plan)}\n"
    facts = {
        "main memory": _main_memory(plan),
        "vLLM": _engine(plan.vllm),
        "a step": _step_text(plan.step),
        "seconds": _seconds(plan),
        "the run": _run_text(plan.run),
    }
    if plan.step.advice:
        facts["steps"] = plan.step.advice
    if plan.optimizer:
        facts["optimizer"] = plan.optimizer
    if plan.update:
        facts["the update"] = plan.update
    warnings = [("warning:", text) for text in plan.warnings]
    for label, text in [*facts.items(), *warnings]:
        yield _filled(f"{label:{LABEL}}{text}", " " * LABEL)
    yield "It fits." if plan.fits else "See the warnings."


def _filled(text: str, indent: str = "") -> str:
    """The text in lines of WIDTH columns, all but the first behind the indent."""
    return textwrap.fill(text, WIDTH, subsequent_indent=indent, break_on_hyphens=False)


def _main_memory(plan: Plan) -> str:
    held = plan.host_bytes
    of_node = f" of {gib(plan.node_bytes)}" if plan.node_bytes else ""
    total = f"per node, in addition to the processes: {gib(sum(held.values()))} GiB{of_node}"
    parts = [f"{name} {gib(size)}" for name, size in held.items()]
    return ", ".join([total, *parts])


def _engine(vllm: EngineCapacity) -> str:
    return (
        f"{gib(vllm.weights_bytes)} GiB of weights; {gib(vllm.cache_bytes)} GiB for the keys "
        f"and values of {vllm.cache_tokens:,} tokens: {vllm.full_sequences} responses of "
        f"full length or {vllm.mean_sequences} of mean length. An engine runs at most "
        f"{vllm.most_sequences} at a time and gets {vllm.sequences_a_step} a step"
    )


def _step_text(step: PlannedStep) -> str:
    return (
        f"{step.responses:,} responses of {step.mean_response:,} tokens: "
        f"{step.tokens / 1e6:.1f}M (at most {step.most_tokens / 1e6:.1f}M), "
        f"{sum(step.flops.values()):.2e} FLOPs, {step.scoring_of_the_step:.1%} of them for scoring"
    )


def _seconds(plan: Plan) -> str:
    seconds = plan.seconds
    if seconds is None:
        return "unknown: give --gpu by its name"
    together = "" if plan.settings.shared else ", at the same time"
    return (
        f"{seconds.step:.0f} a step (generation {seconds.generate:.0f}, training "
        f"{seconds.train:.0f}{together}). Assumes {OF_OPERATIONS:.0%} of the GPU's peak "
        f"operations and {OF_BYTES:.0%} of its bandwidth"
    )


def _run_text(run: PlannedRun) -> str:
    if not isinstance(run, CountedRun):
        return "prompts unknown: give --rows"
    time = ""
    if run.hours is not None:
        days = f" ({run.hours / 24:.1f} days)" if run.hours >= 24 else ""
        time = f"{run.hours:,.1f} hours{days}; "
    assumed = ""
    if run.rows_assumed:
        assumed = " (assumed from the data set's name; --rows sets them)"
    return (
        f"{run.rows:,} prompts{assumed}, {run.steps} steps with {run.updates} updates: "
        f"{time}{run.saves} checkpoints, {gib(run.disk_bytes)} GiB of disk"
    )


def _memory_table(plan: Plan) -> str:
    """A row for each use of memory, a column for each phase."""
    phases = plan.phases.values()
    names: list[str] = []
    for phase in phases:
        names += [name for name, size in phase.items() if size and name not in names]
    names.remove("allowance")
    names.append("allowance")  # the last row
    rows = {name: [phase.get(name, 0) for phase in phases] for name in names}
    totals = [sum(phase.values()) for phase in phases]
    rows["together"] = totals
    rows["left"] = [plan.gpu_bytes - total for total in totals]
    cells = []
    for name, sizes in rows.items():
        cells.append([name, *(size / GIB if size else None for size in sizes)])
    head = ["GiB on a GPU", *map(_narrow, PHASES.values())]
    return tabulate(cells, head, tablefmt="plain", floatfmt=".1f", numalign="right", missingval="-")


def _narrow(phase: str) -> str:
    """The name of a phase as the head of a narrow column."""
    return phase.removeprefix("the ").replace("probabilities", "probs").replace(" ", "\n")


if __name__ == "__main__":
    sys.exit(run_command(main))

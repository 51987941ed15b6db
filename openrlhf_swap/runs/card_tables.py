"""What stands in the cells and the picture of a model card."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from openrlhf_swap.config import SwapConfig, short_name
from openrlhf_swap.files import Row
from openrlhf_swap.objectives.ablation import ABLATION
from openrlhf_swap.objectives.registry import objective_class

CURVES = {"accuracy of rollouts, %": ("swap/accuracy", 100), "tokens per rollout": ("length/mean", 1)}
FLAGS = (  # OpenRLHF's that the card shows beside the objective's
    "--rollout.batch_size",
    "--rollout.n_samples_per_prompt",
    "--rollout.max_new_tokens",
    "--rollout.temperature",
    "--rollout.top_p",
    "--train.batch_size",
    "--train.num_episodes",
    "--train.seed",
    "--actor.adam.lr",
    "--actor.lr_scheduler",
    "--actor.eps_clip",
    "--algo.kl.init_coef",
    "--ds.lora.rank",
)


def equation(objective: str) -> str:
    """The objective's equation, and what it changes in SWAP when it is a row of the ablation table."""
    changes = ABLATION[objective](SwapConfig(objective=objective)) if objective in ABLATION else {}
    lines = (objective_class(objective).__doc__ or "").splitlines() or [""]
    return "; ".join([lines[0], *(f"{name} {value}" for name, value in changes.items())]).replace("|", "\\|")


def measures(steps: Sequence[Row]) -> dict[str, list[str]]:
    """Each curve's value at the first step, at the last, and its mean over the last tenth of the steps."""
    table = {}
    for name, (key, scale) in CURVES.items():
        values = [scale * row[key] for row in steps if row.get(key) is not None]
        if values:
            means = (values[0], values[-1], fmean(values[-last_tenth(steps) :]))
            table[name] = [f"{value:,.1f}" for value in means]
    return table


def last_tenth(steps: Sequence[Row]) -> int:
    """How many steps the last tenth of them has, at least 1."""
    return max(1, round(len(steps) / 10))


def draw_curves(steps: Sequence[Row]) -> Any:
    """A figure with a panel for each curve, by step."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(8, 2.8), layout="constrained")
    for number, (name, (key, scale)) in enumerate(CURVES.items(), start=1):
        panel = figure.add_subplot(1, len(CURVES), number, xlabel="step", ylabel=name)
        points = [(row["step"], scale * row[key]) for row in steps if row.get(key) is not None]
        if points:
            panel.plot(*zip(*points, strict=True), marker="." if len(points) < 50 else None)
        panel.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        panel.spines[["top", "right"]].set_visible(False)
    return figure


def duration(seconds: float) -> str:
    """Seconds as hours and minutes, or as seconds below two minutes."""
    if seconds < 120:
        return f"{seconds:.0f} seconds"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} minutes"


def hardware(flags: Mapping[str, str]) -> str:
    """The processes of the run, and the device of the process that writes this."""
    import torch

    policies = int(flags.get("--actor.num_nodes", 1)) * int(flags.get("--actor.num_gpus_per_node", 8))
    engines = int(flags.get("--vllm.num_engines", 1))
    if torch.version.cuda is None:
        return f"no GPU: {len(os.sched_getaffinity(0))} cores of {_processor()}"
    device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "GPUs of other nodes"
    return f"{policies} policy processes and {engines} vLLM engines on {device}"


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "an unnamed processor")


def shown(source: Row) -> str:
    """A source's name, of a local one without the folders of this machine, and the Hub's revision."""
    name = Path(source["name"]).name if Path(source["name"]).is_absolute() else source["name"]
    revision = f" at {source['revision']}" if "revision" in source else ""
    return f"`{name}`{revision}"


def file_rows(role: str, source: Row) -> list[tuple[str, ...]]:
    """A row for each file of a source: its role, name, file, bytes and hash."""
    rows = [
        (file, f"{found['bytes']:,}", *(f"`{kind}:{found[kind]}`" for kind in found if kind != "bytes"))
        for file, found in source["files"].items()
    ]
    return [(role.replace("_", " "), shown(source), *row) for row in rows or [("not on this machine", "", "")]]


def swap_settings(settings: Row) -> dict[str, str]:
    """The objective's settings: all of SWAP's for it and its ablation; for others their own, and what was changed."""
    objective, defaults = settings["objective"], SwapConfig().to_dict()
    shown = {
        f"--swap.{name}": settings[name]
        for name in SwapConfig.declared()
        if name in settings and name != "objective" and (objective in ABLATION or settings[name] != defaults[name])
    }
    kind = objective_class(objective)
    own = {name: spec.default for name, spec in kind.Settings.declared().items()} | settings["options"]
    shown |= {f"--swap.{short_name(objective)}.{name}": value for name, value in own.items()}
    return {flag: _code(value) for flag, value in {"--swap.objective": objective, **shown}.items()}


def _code(value: Any) -> str:
    """A value in a cell of a table, between back-ticks."""
    return str(value).replace("\n", "\\n").replace("|", "\\|")


def rounded(value: float | None) -> str:
    """A metric with four digits; nothing for one that was not finite."""
    return "" if value is None else f"{value:.4g}"

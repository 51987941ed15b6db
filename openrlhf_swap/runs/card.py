"""The model card: a README.md beside a trained policy, from the files of the run."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openrlhf_swap import __version__
from openrlhf_swap.command import ADAPTERS, PROGRAM
from openrlhf_swap.config import SwapConfig
from openrlhf_swap.errors import DataError, SwapError, reader_errors
from openrlhf_swap.files import Row, read_rows
from openrlhf_swap.objectives.registry import ABLATION, objective_class
from openrlhf_swap.runs.checkpoints import CONFIGURATION
from openrlhf_swap.runs.metrics import EVALUATIONS, METRICS

if TYPE_CHECKING:
    from pandas import DataFrame

CARD, TEMPLATE = "README.md", Path(__file__).with_name("card.md")
TAGS = ["openrlhf-swap", "openrlhf", "grpo", "reasoning"]
FOLDERS = re.compile(
    r"(?<=[\s=,'])/(?:[^\s'/,]+/)+"
)  # of this machine, before a name in a command line
CURVES = {
    "accuracy of rollouts, %": ("swap/accuracy", 100),
    "tokens per rollout": ("length/mean", 1),
}


def try_write_card(policy: Path, run: Path) -> None:
    """`write_card`; what prevents it becomes a line on the console, because the run is finished."""
    try:
        with reader_errors(f"{{reason}}; {run} has everything that would be in it"):
            write_card(policy, run)
    except SwapError as error:
        print(f"[swap] warning: the model card {policy / CARD} cannot be written: {error}")


def write_card(policy: Path, run: Path) -> None:
    """Write the card into the folder of a trained policy, from the run's; DataError if this machine
    has no policy.
    """
    import yaml
    from huggingface_hub import ModelCard, ModelCardData
    from pandas import DataFrame

    adapter = (policy / ADAPTERS).exists()
    if not adapter and not (policy / "config.json").exists():
        raise DataError(f"{policy} holds no policy")
    about = json.loads((run / CONFIGURATION).read_text(encoding="utf-8"))
    flags, sources = about["flags"], about["inputs"]
    base, objective = sources["weights"][0], flags["swap.objective"]
    data = ModelCardData(
        base_model=base["name"] if _is_hubs(base) else None,
        datasets=[source["name"] for source in sources["data"] if _is_hubs(source)] or None,
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=TAGS,
    )
    files = [
        (role.replace("_", " "), *row)
        for role in sources
        for source in sources[role]
        for row in _files(source)
    ]
    evaluations, steps = list(read_rows(run / EVALUATIONS)), DataFrame(read_rows(run / METRICS))
    evaluation = {
        name: value for name, value in (evaluations or [{}])[-1].items() if name.startswith("eval_")
    }
    unused = {} if objective in ABLATION else SwapConfig().model_dump()
    settings = {
        name: _strip_folders(v)
        for name, v in flags.items()
        if unused.get(name.removeprefix("swap.")) != v
    }
    card = ModelCard.from_template(
        data,
        str(TEMPLATE),
        about=about,
        adapter=adapter,
        base=base["name"] if data.base_model else _shown(base),
        version=__version__,
        versions=", ".join(
            f"{name} {n}" for name, n in about["versions"].items() if name != PROGRAM
        ),
        objective=objective,
        equation=equation(objective).replace("|", "\\|"),
        paper=objective in ABLATION,
        grader=flags["swap.grader"].replace("|", "\\|"),
        steps=len(steps),
        responses=f"{steps['rollout/num_samples'].sum():,.0f}" if len(steps) else "0",
        time=timedelta(seconds=round(steps["timing/step_total"].sum()))
        if len(steps)
        else "no time",
        measures=measures(steps).to_markdown(floatfmt=",.1f") if len(steps) else "",
        evaluation=DataFrame({"value": evaluation}).to_markdown(floatfmt=".4g")
        if evaluation
        else "",
        evaluation_step=(evaluations or [{}])[-1].get("step"),
        flags=flags,
        template_arguments=json.loads(flags.get("data.chat_template_kwargs", "{}")),
        evaluated_on=_strip_folders(flags.get("eval.dataset")),
        command=FOLDERS.sub("", about["command"]),
        files=DataFrame(files, columns=["", "name", "file", "bytes", "hash"]).to_markdown(
            index=False, intfmt=","
        ),
        settings=yaml.safe_dump(settings, sort_keys=False),
    )
    card.save(policy / CARD)


def equation(objective: str) -> str:
    """The objective's equation, and what it changes in SWAP when it is a row of the ablation table."""
    changes = ABLATION[objective](SwapConfig(objective=objective)) if objective in ABLATION else {}
    lines = (objective_class(objective).__doc__ or "").splitlines() or [""]
    return "; ".join([lines[0], *(f"{name} {value}" for name, value in changes.items())])


def measures(steps: DataFrame) -> DataFrame:
    """Accuracy and length of a run's rollouts: first and last value, and mean over the last tenth
    of the steps.
    """
    from pandas import DataFrame

    curves = DataFrame(
        {name: scale * steps[key] for name, (key, scale) in CURVES.items() if key in steps}
    )
    tenth = max(1, round(len(curves) / 10))
    means = curves.apply(lambda curve: curve.dropna().tail(tenth).mean())
    first, last = curves.bfill().iloc[0], curves.ffill().iloc[-1]
    return DataFrame({"first step": first, "last step": last, f"mean of the last {tenth}": means})


def _is_hubs(source: Row) -> bool:
    return "revision" in source or not (source["files"] or Path(source["name"]).exists())


def _files(source: Row) -> Sequence[tuple[str, str, int | str, str]]:
    rows = [
        (
            _shown(source),
            file,
            entry["bytes"],
            *(f"`{kind}:{entry[kind]}`" for kind in entry if kind != "bytes"),
        )
        for file, entry in source["files"].items()
    ]
    return rows or [(_shown(source), "not on this machine", "", "")]


def _shown(source: Row) -> str:
    revision = f" at {source['revision']}" if "revision" in source else ""
    return f"`{_strip_folders(source['name'])}`{revision}"


def _strip_folders(value: Any) -> Any:
    """An absolute path without the folders of this machine; any other value as it is."""
    return Path(value).name if isinstance(value, str) and value.startswith("/") else value

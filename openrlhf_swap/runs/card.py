"""The model card: a README.md beside a trained policy, from the files of the run."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openrlhf_swap import __version__
from openrlhf_swap.command import ADAPTERS
from openrlhf_swap.config import ABLATION
from openrlhf_swap.errors import DataError, first_line
from openrlhf_swap.files import Row, read_rows
from openrlhf_swap.objectives.registry import objective_class
from openrlhf_swap.objectives.table import SUMMARIES
from openrlhf_swap.runs.checkpoints import CONFIGURATION
from openrlhf_swap.runs.metrics import EVALUATIONS, METRICS
from openrlhf_swap.runs.provenance import is_same, shown

if TYPE_CHECKING:
    from pandas import DataFrame

CARD = "README.md"
TEMPLATE = Path(__file__).with_name("card.md")
CARD_TAGS = ["openrlhf-swap", "openrlhf", "grpo", "reasoning"]
# Folders of this machine, before a name in a command line.
LOCAL_FOLDERS = re.compile(r"(?<=[\s=,'])/(?:[^\s'/,]+/)+")
# The name of a curve, its column in the metrics, and the factor between them.
CURVES = [
    ("accuracy of rollouts, %", "swap/accuracy", 100),
    ("tokens per rollout", "length/mean", 1),
]


def try_write_card(policy: Path, run: Path) -> None:
    """Write the card. The run is finished, so an error is only a line on the console."""
    try:
        write_card(policy, run)
    except Exception as error:  # noqa: BLE001 - nothing may end a run that has its policy
        print(f"[swap] warning: no model card {policy / CARD}: {first_line(error)}")


def write_card(policy: Path, run: Path) -> None:
    """Write the card into the folder of a trained policy, from the files of the run's folder.

    Raises DataError if this machine has no policy.
    """
    import yaml
    from huggingface_hub import ModelCard, ModelCardData

    is_adapter = (policy / ADAPTERS).exists()
    if not is_adapter and not (policy / "config.json").exists():
        raise DataError(f"{policy} holds no policy")
    about = json.loads((run / CONFIGURATION).read_text(encoding="utf-8"))
    flags = about["flags"]
    base = about["inputs"]["weights"][0]
    base_model = base["name"] if _is_of_hub(base) else None
    datasets = [source["name"] for source in about["inputs"]["data"] if _is_of_hub(source)]
    data = ModelCardData(
        base_model=base_model,
        datasets=datasets or None,
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=CARD_TAGS,
    )
    objective = flags["swap.objective"]
    settings = {name: _strip_folders(value) for name, value in flags.items()}
    card = ModelCard.from_template(
        data,
        str(TEMPLATE),
        about=about,
        adapter=is_adapter,
        base=base_model or _shown(base),
        version=__version__,
        versions=", ".join(f"{name} {number}" for name, number in about["versions"].items()),
        objective=objective,
        equation=equation(objective),
        paper=objective in ABLATION,
        grader=flags["swap.grader"],
        **_training(run),
        **_evaluation(run),
        flags=flags,
        template_arguments=json.loads(flags.get("data.chat_template_kwargs", "{}")),
        evaluated_on=_strip_folders(flags.get("eval.dataset")),
        command=LOCAL_FOLDERS.sub("", about["command"]),
        files=_sources(about["inputs"]),
        settings=yaml.safe_dump(settings, sort_keys=False),
        other_settings=_other_settings(about.get("starts", [])),
    )
    card.save(policy / CARD)


def equation(objective: str) -> str:
    """The objective's equation, and in words what a row of the ablation table changes in SWAP."""
    line = (objective_class(objective).__doc__ or "").partition("\n")[0]
    return f"{line} {SUMMARIES[objective]}" if objective in ABLATION else line


def measures(steps: DataFrame) -> DataFrame:
    """Accuracy and length of a run's rollouts: the first value, the last, and the last mean.

    The mean is over the last tenth of the steps.
    """
    from pandas import DataFrame

    curves = DataFrame(
        {name: factor * steps[column] for name, column, factor in CURVES if column in steps}
    )
    tenth = max(1, round(len(curves) / 10))
    columns = {
        "first step": curves.bfill().iloc[0],
        "last step": curves.ffill().iloc[-1],
        f"mean of the last {tenth}": curves.apply(lambda curve: curve.dropna().tail(tenth).mean()),
    }
    return DataFrame(columns)


def _training(run: Path) -> Row:
    """What the template says about the steps of a run."""
    from pandas import DataFrame

    columns = {"step", "rollout/num_samples", "timing/step_total"}
    columns.update(column for _, column, _ in CURVES)
    # A row has some hundred metrics, and a long run's rows with all of them fill the memory.
    rows = read_rows(run / METRICS)
    steps = DataFrame({name: row[name] for name in columns & row.keys()} for row in rows)
    if steps.empty:
        return {"steps": 0, "responses": "0", "time": "no time", "measures": ""}
    return {
        "steps": len(steps),
        "responses": f"{steps['rollout/num_samples'].sum():,.0f}",
        "time": timedelta(seconds=round(steps["timing/step_total"].sum())),
        "measures": measures(steps).to_markdown(floatfmt=",.1f"),
    }


def _evaluation(run: Path) -> Row:
    """What the template says about the last evaluation of a run."""
    from pandas import DataFrame

    rows = list(read_rows(run / EVALUATIONS))
    last = rows[-1] if rows else {}
    values = {name: value for name, value in last.items() if name.startswith("eval_")}
    table = DataFrame({"value": values}).to_markdown(floatfmt=".4g") if values else ""
    return {"evaluation": table, "evaluation_step": last.get("step")}


def _other_settings(starts: list[Row]) -> str:
    """A list of the steps that were trained with other settings than the last ones; "" for none."""
    lines = []
    for start, following in pairwise(starts):
        last = starts[-1]["settings"]
        first_step = start["after_step"] + 1
        steps = f"steps {first_step} to {following['after_step']}"
        for flag, value in start["settings"].items():
            if not is_same(last.get(flag, value), value):
                lines.append(f"* {steps}: `{flag}` {_strip_folders(shown(value))}")
    return "\n".join(lines)


def _sources(inputs: dict[str, list[Row]]) -> str:
    """A list of data and weights: each file with its size and hash."""
    lines = []
    for role, sources in inputs.items():
        for source in sources:
            lines.append(f"* {role}: {_shown(source)}")
            for file, about in source["files"].items():
                facts = ", ".join(f"{name} {value}" for name, value in about.items())
                lines.append(f"  * `{file}`: {facts}")
    return "\n".join(lines)


def _is_of_hub(source: Row) -> bool:
    is_here = source["files"] or Path(source["name"]).exists()
    return "revision" in source or not is_here


def _shown(source: Row) -> str:
    name = f"`{_strip_folders(source['name'])}`"
    return f"{name} at {source['revision']}" if "revision" in source else name


def _strip_folders(value: Any) -> Any:
    """An absolute path without the folders of this machine; any other value as it is."""
    is_path = isinstance(value, str) and value.startswith("/")
    return Path(value).name if is_path else value

"""The model card: a README.md beside a trained policy, and a picture of its training, from the files of the run."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from openrlhf_swap import __version__
from openrlhf_swap.command import ADAPTERS, PROGRAM
from openrlhf_swap.errors import DataError, SwapError, reader_errors
from openrlhf_swap.files import Row, read_rows, write_text
from openrlhf_swap.objectives.ablation import ABLATION
from openrlhf_swap.rewards.verifiers import MATH
from openrlhf_swap.runs.card_tables import (
    FLAGS,
    draw_curves,
    duration,
    equation,
    file_rows,
    hardware,
    last_tenth,
    measures,
    rounded,
    shown,
    swap_settings,
)
from openrlhf_swap.runs.checkpoints import CONFIGURATION
from openrlhf_swap.runs.rollout_log import EVALUATIONS, METRICS

CARD, PICTURE, TEMPLATE = "README.md", "training.png", Path(__file__).with_name("card.md")
LICENCE = ("license", "license_name", "license_link")
UNKNOWN = "unknown"


def try_write_card(policy: Path, run: Path) -> None:
    """Write the card and its picture; what prevents it becomes a line on the console, because the run is finished.

    Args:
        policy: the folder of the trained policy in Hugging Face format.
        run: the run's output folder.
    """
    try:
        with reader_errors(f"{{reason}}; {run} has everything that would be in it"):
            write_card(policy, run)
    except SwapError as error:
        print(f"[swap] warning: the model card {policy / CARD} cannot be written: {error}")


def write_card(policy: Path, run: Path) -> None:
    """Write the card and its picture; arguments as for `try_write_card`.

    Raises:
        DataError: when there is no policy here, as on a driver that shares no disk with the policy's process.
        OSError: when they cannot be written.
        ImportError: without huggingface_hub, Jinja2 or matplotlib.
    """
    import jinja2
    from huggingface_hub import ModelCard

    if not (policy / "config.json").exists() and not (policy / ADAPTERS).exists():
        raise DataError(f"{policy} holds no policy")
    about = json.loads((run / CONFIGURATION).read_text(encoding="utf-8"))
    steps = list(read_rows(run / METRICS))
    if steps:
        draw_curves(steps).savefig(policy / PICTURE, dpi=100)
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    text = template.render(**card_contents(about, steps, list(read_rows(run / EVALUATIONS)), policy))
    write_text(policy / CARD, str(ModelCard(text)))  # which reads the metadata


def card_contents(about: Row, steps: Sequence[Row], evaluations: Sequence[Row], policy: Path) -> dict[str, Any]:
    """What the template takes.

    Args:
        about: the run's configuration and provenance.
        steps: a row of metrics for each step.
        evaluations: a row for each evaluation during training.
        policy: its folder.
    """
    words = shlex.split(about["command_with_defaults"])
    flags = flag_values(words)
    objective, inputs = about["swap"]["objective"], about["inputs"]
    base = inputs["weights"][0]
    licence = licence_of(base["name"])
    measured = evaluations[-1] if evaluations else {}
    return {
        "command": about["command"],
        "commit": about["commit"],
        "version": __version__,
        "versions": {name: number for name, number in about["versions"].items() if name != PROGRAM},
        "metadata": _metadata(inputs, licence),
        "base": Path(base["name"]).name,
        "base_link": f"[{base['name']}](https://huggingface.co/{base['name']})" if _of_hub(base) else shown(base),
        "licence": licence_words(licence),
        "objective": objective,
        "equation": equation(objective),
        "paper": objective in ABLATION,
        "steps": len(steps),
        "responses": f"{sum(row.get('swap/responses') or 0 for row in steps):,.0f}",
        "hours": duration(sum(row.get("timing/step_total") or 0 for row in steps)),
        "hardware": hardware(flags),
        "grader": str(about["swap"].get("grader", MATH)).replace("|", "\\|"),
        "picture": PICTURE,
        "last_steps": last_tenth(steps),
        "measures": measures(steps) if steps else {},
        "evaluated": flags.get("--eval.dataset"),
        "evaluation": {name: rounded(value) for name, value in measured.items() if name.startswith("eval/")},
        "evaluation_step": measured.get("step"),
        "adapter": (policy / ADAPTERS).exists(),
        "chat": "--data.apply_chat_template" in words,
        "max_new_tokens": flags["--rollout.max_new_tokens"],
        "temperature": flags["--rollout.temperature"],
        "files": [row for role, models in inputs.items() for model in models for row in file_rows(role, model)],
        "settings": {**swap_settings(about["swap"]), **{flag: flags[flag] for flag in FLAGS if flag in flags}},
    }


def flag_values(words: Sequence[str]) -> dict[str, str]:
    """The value of each flag in a command line that has one; the last one of several."""
    values: dict[str, str] = {}
    for word, following in zip(words, [*words[1:], "--"], strict=True):
        flag, equals, value = word.partition("=")
        if word.startswith("--") and (equals or not following.startswith("--")):
            values[flag] = value if equals else following
    return values


def licence_of(base: str) -> dict[str, str]:
    """What the base's own card says of its licence; empty when there is no card, or it says nothing."""
    from huggingface_hub import hf_hub_download, metadata_load

    try:
        local = Path(base).is_dir()
        card = Path(base, CARD) if local else Path(hf_hub_download(base, CARD, etag_timeout=10))
        stated = metadata_load(card) or {}
    except (OSError, ValueError):  # there is none, the Hub cannot be reached, or the name is not one of the Hub
        return {}
    return {name: str(stated[name]) for name in LICENCE if stated.get(name)}


def licence_words(licence: Mapping[str, str]) -> str:
    """A licence as the card names it."""
    if not licence:
        return "unknown: the base has no card that says so"
    name = licence.get("license_name") or licence.get("license") or UNKNOWN
    link = licence.get("license_link")
    return f"[{name}]({link}), as the base" if link else f"{name}, as the base"


def _metadata(inputs: Mapping[str, Sequence[Row]], licence: Mapping[str, str]) -> str:
    """The YAML that the Hub reads, without its marks."""
    from huggingface_hub import ModelCardData

    base = inputs["weights"][0]
    return ModelCardData(
        base_model=base["name"] if _of_hub(base) else None,
        datasets=[data["name"] for data in inputs["data"] if _of_hub(data)] or None,
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=["openrlhf-swap", "openrlhf", "grpo", "reasoning"],
        license=licence.get("license", UNKNOWN),
        license_name=licence.get("license_name"),
        license_link=licence.get("license_link"),
    ).to_yaml()


def _of_hub(source: Row) -> bool:
    """Whether a model or a data set is the Hub's: no folder or file of this machine, unless the Hub's cache."""
    return "revision" in source or not (source["files"] or Path(source["name"]).exists())

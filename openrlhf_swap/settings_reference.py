"""Write the reference of all settings as Markdown.

    python -m openrlhf_swap.settings_reference > docs/settings.md

Flags, types, defaults and meanings are read from SwapConfig, from the objectives and from OpenRLHF's own parser. Only
the reasons for defaults that differ from OpenRLHF's are written by hand.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import sys
from collections.abc import Iterable, Sequence
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

from openrlhf_swap.config import SwapConfig
from openrlhf_swap.train import CPU_DEFAULTS, DEFAULTS

REASONS = {
    "--algo.advantage.estimator": "the outcome term is GRPO's",
    "--algo.kl.init_coef": "no KL term, and so no reference model",
    "--actor.lr_scheduler": "a constant learning rate (the paper is silent; ours)",
    "--actor.lr_warmup_ratio": "the same",
    "--rollout.batch_size": "the paper's 128 prompts a step",
    "--rollout.n_samples_per_prompt": "the paper's 16 responses to each",
    "--rollout.temperature": "the paper's",
    "--rollout.max_new_tokens": "the paper's longest response",
    "--data.max_len": "the longest response, and 2,000 tokens for the prompt",
    "--train.batch_size": "all responses of a step in one on-policy update",
    "--ckpt.max_num": "a checkpoint is deleted only when a newer one is complete, so two are enough",
    "--vllm.sync_backend": "there is no NCCL",
    "--vllm.enforce_eager": "there are no CUDA graphs",
    "--vllm.gpu_memory_utilization": "the other processes need the same memory",
    "--ds.attn_implementation": "there is no flash-attn",
    "--actor.num_gpus_per_node": "one process, on a small machine",
    "--vllm.num_engines": "one engine, on a small machine",
}
INTRODUCTION = """\
# Settings

Made by `python -m openrlhf_swap.settings_reference > docs/settings.md`: edit the code, not this file.

`python -m openrlhf_swap.train` takes these flags and every flag of OpenRLHF's `train_ppo_ray`.
"""


def settings_reference() -> str:
    """The whole document."""
    from openrlhf_swap.integration.patches import parse_arguments

    stock = parse_arguments([])
    sections = [
        INTRODUCTION,
        f"## The method\n\n{_fields_table(_own_fields(), 'swap')}",
        f"## Single objectives\n\n{_objectives()}",
        f"## Defaults that differ from OpenRLHF's\n\nWhat the command line says wins.\n\n"
        f"{_defaults_table(DEFAULTS, stock)}",
        f"Without an accelerator, as torch was built, also:\n\n{_defaults_table(CPU_DEFAULTS, stock)}",
    ]
    return "\n".join(sections)


def changed_defaults(defaults: dict[str, str | None], stock: SimpleNamespace) -> list[tuple[str, Any, Any]]:
    """Flag, our value and OpenRLHF's of those defaults that differ.

    Args:
        defaults: flag -> value, None for a switch.
        stock: OpenRLHF's arguments when nothing is given.
    """
    from openrlhf_swap.integration.patches import parse_arguments

    ours = parse_arguments([word for pair in defaults.items() for word in pair if word is not None])
    values = [(flag, *(attrgetter(flag.removeprefix("--"))(args) for args in (ours, stock))) for flag in defaults]
    return [(flag, own, theirs) for flag, own, theirs in values if own != theirs]


def _own_fields() -> list[dataclasses.Field]:
    return [spec for spec in dataclasses.fields(SwapConfig) if "doc" in spec.metadata]


def _objectives() -> str:
    from openrlhf_swap.objectives.registry import METHODS, method

    plain, sections = [], []
    for name in METHODS:
        objective = method(name)
        fields = dataclasses.fields(objective.Settings)
        lines = [f"### {name}\n"]
        if objective.flags:
            flags = ", ".join(_code(f"{flag} {value}") for flag, value in objective.flags.items())
            lines.append(f"Sets OpenRLHF's {flags}.\n")
        if fields:
            lines.append(_fields_table(fields, f"swap.{name}"))
        if len(lines) > 1:
            sections.append("\n".join(lines))
        else:
            plain.append(_code(name))
    return "\n".join([f"{', '.join(plain)} have none of their own.\n", *sections])


def _fields_table(fields: Iterable[dataclasses.Field], prefix: str) -> str:
    from openrlhf_swap.objectives.base import type_of

    rows = [
        (
            _code(f"--{prefix}.{spec.name}"),
            spec.type if isinstance(spec.type, str) else type_of(spec).__name__,
            _code(spec.default),
            _text(spec.metadata["doc"]),
        )
        for spec in fields
    ]
    return _table(("flag", "type", "default", "meaning"), rows)


def _defaults_table(defaults: dict[str, str | None], stock: SimpleNamespace) -> str:
    rows = [
        (_code(flag), _code(own), _code(theirs), _text(REASONS[flag]))
        for flag, own, theirs in changed_defaults(defaults, stock)
    ]
    return _table(("flag", "here", "OpenRLHF", "why"), rows)


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(cells) + " |\n" for cells in lines)


def _code(value: object) -> str:
    """A value as the command line takes it: backslash and n for a newline."""
    if value is None or value == "":
        return "none"
    text = str(value).replace("\n", "\\n").replace("|", "\\|")
    return f"`{text}`"


def _text(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m openrlhf_swap.settings_reference",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.parse_args(argv)
    with contextlib.redirect_stdout(sys.stderr):  # imports print, and the output is a file
        text = settings_reference()
    print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Write the reference of all settings as Markdown.

    python docs/make_settings.py > docs/use/settings.md

Flags, types, defaults and meanings are read from where the settings are declared, and from OpenRLHF's own parser. Only
the reasons for defaults that differ from OpenRLHF's are written by hand.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

from tabulate import tabulate

from openrlhf_swap.config import FlagSettings, RunConfig, SwapConfig, type_name
from openrlhf_swap.flags.defaults import ASYNC_DEFAULTS, CPU_DEFAULTS, DEFAULTS, Flags, as_words
from openrlhf_swap.flags.stock import parse_arguments
from openrlhf_swap.objectives.registry import OBJECTIVES, objective_class

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
    "--algo.advantage.is_correction_level": "rollouts come from older weights ([async.md](async.md))",
    "--vllm.sync_backend": "there is no NCCL",
    "--vllm.enforce_eager": "there are no CUDA graphs",
    "--vllm.gpu_memory_utilization": "the other processes need the same memory",
    "--ds.attn_implementation": "there is no flash-attn",
    "--actor.num_gpus_per_node": "one process, on a small machine",
    "--vllm.num_engines": "one engine, on a small machine",
}
PAGE = """\
# Settings

Made by `python docs/make_settings.py > docs/use/settings.md`: edit the code, not this file.

`python -m openrlhf_swap.train` takes these flags and every flag of OpenRLHF's `train_ppo_ray`.

## The method

{method}

## The run

{run}

## Single objectives

{objectives}

## Defaults that differ from OpenRLHF's

What the command line says wins.

{defaults}

With `--train.async_enable`, also:

{async_defaults}

Without an accelerator, as torch was built, also:

{cpu_defaults}
"""


def settings_page() -> str:
    """The whole document."""
    stock = parse_arguments([])
    return PAGE.format(
        method=_settings_table(SwapConfig, "swap"),
        run=_settings_table(RunConfig, "swap"),
        objectives=_objectives(),
        defaults=_defaults_table(DEFAULTS, stock),
        async_defaults=_defaults_table(ASYNC_DEFAULTS, stock),
        cpu_defaults=_defaults_table(CPU_DEFAULTS, stock),
    )


def changed_defaults(defaults: Flags, stock: SimpleNamespace) -> list[tuple[str, Any, Any]]:
    """Flag, our value and OpenRLHF's of those defaults that differ.

    Args:
        defaults: flag -> value, None for a switch.
        stock: OpenRLHF's arguments when nothing is given.
    """
    ours = parse_arguments(as_words(defaults))
    values = [(flag, *(attrgetter(flag.removeprefix("--"))(args) for args in (ours, stock))) for flag in defaults]
    return [(flag, own, theirs) for flag, own, theirs in values if own != theirs]


def _objectives() -> str:
    plain, sections = [], []
    for name in OBJECTIVES:
        objective, parts = objective_class(name), [f"### {name}"]
        if objective.flags:
            flags = ", ".join(_code(f"{flag} {value}") for flag, value in objective.flags.items())
            parts.append(f"Sets OpenRLHF's {flags}.")
        if objective.Settings.declared():
            parts.append(_settings_table(objective.Settings, f"swap.{name}"))
        if len(parts) > 1:
            sections.append("\n\n".join(parts))
        else:
            plain.append(_code(name))
    return "\n\n".join([f"{', '.join(plain)} have none of their own.", *sections])


def _settings_table(kind: type[FlagSettings], prefix: str) -> str:
    rows = [
        (_code(f"--{prefix}.{name}"), type_name(spec), _code(spec.default), _text(spec.description or ""))
        for name, spec in kind.declared().items()
    ]
    return _table(("flag", "type", "default", "meaning"), rows)


def _defaults_table(defaults: Flags, stock: SimpleNamespace) -> str:
    rows = [
        (_code(flag), _code(own), _code(theirs), _text(REASONS[flag]))
        for flag, own, theirs in changed_defaults(defaults, stock)
    ]
    return _table(("flag", "here", "OpenRLHF", "why"), rows)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return tabulate(rows, header, tablefmt="github", disable_numparse=True)


def _code(value: object) -> str:
    """A value as the command line takes it: backslash and n for a newline."""
    if value is None or value == "":
        return "none"
    return f"`{value}`".replace("\n", "\\n").replace("|", "\\|")


def _text(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def main() -> None:
    """Run the command."""
    with contextlib.redirect_stdout(sys.stderr):  # imports print, and the output is a file
        text = settings_page()
    print(text, end="")


if __name__ == "__main__":
    main()

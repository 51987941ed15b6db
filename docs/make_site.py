"""What mkdocs.yml calls: the files of the site are the repository's, under their own paths."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # not installed where the site is built

from openrlhf_swap import _HOMES  # noqa: E402

PAGES = ("*.md", "docs/**/*.md", "examples/**/*.md", "studies/**/*.md")
LINK = re.compile(r"(?:\]\(|src(?:set)?=\")([^)\"#\s:]+)(?:#[^)\s]*)?[)\"]")
NAMES = (  # beside those that `openrlhf_swap` exports
    "openrlhf_swap.rewards.grade_answer",
    "openrlhf_swap.objectives.base.Objective",
    "openrlhf_swap.rollouts.rollout.Batch",
    "openrlhf_swap.errors",
)
ASSETS = ("docs/site.css", "docs/site.js")
PYTHON = """# Python

`from openrlhf_swap import {exported}`: what the package exports. Below it, what an
[objective of your own](use/objectives.md) builds on, and the errors. The fields of `SwapConfig` are
the [settings](use/settings.md); [own trainer](use/own_trainer.md) has examples.
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Replace the files of docs/ by all pages, what they link to, and the page of public names."""
    theme = [file for file in files if not (file.abs_src_path or "").startswith(config.docs_dir)]
    pages = [path for pattern in PAGES for path in ROOT.glob(pattern) if path.name != "AGENTS.md"]
    linked = [
        target
        for page in pages
        for link in LINK.findall(page.read_text(encoding="utf-8"))
        if (target := (page.parent / link).resolve()).is_file() and target.suffix != ".md"
    ]
    names = sorted(
        {
            str(path.relative_to(ROOT))
            for path in [*pages, *linked, *(ROOT / name for name in ASSETS)]
        }
    )
    listed = [File.generated(config, name, abs_src_path=str(ROOT / name)) for name in names]
    return Files([*theme, *listed, File.generated(config, "docs/python.md", content=python_page())])


def python_page() -> str:
    """The page of public names: mkdocstrings fills it from the docstrings."""
    exported = [f"{home}.{name}" for name, home in sorted(_HOMES.items())]
    blocks = "".join(f"\n::: {name}\n" for name in (*exported, *NAMES))
    return PYTHON.format(exported=", ".join(sorted(_HOMES))) + blocks

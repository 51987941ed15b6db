"""Names and links of the pages exist, their commands can be run, and their tables are even."""

import doctest
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name

import pytest
from support.paths import ROOT

from openrlhf_swap.__main__ import COMMANDS

PACKAGE = ROOT / "openrlhf_swap"
ROOMS = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
# What a run may put beside them is not the repository's.
TOP = {path.name for path in ROOT.iterdir() if path.name not in ("data", "outputs")}
FOLDERS = ("docs", "evaluation", "examples", "openrlhf_swap", "scripts", "studies", "tests")
SOURCES = {path.name for folder in FOLDERS for path in (ROOT / folder).rglob("*")}
SOURCES |= {path.name for path in ROOT.glob("*")}
PAGES = [*ROOT.glob("*.md")]
for folder in ("docs", "evaluation", "examples", "studies"):
    PAGES += sorted((ROOT / folder).rglob("*.md"))
pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def prose(page: Path) -> str:
    """A page's text without blocks of code."""
    text = page.read_text(encoding="utf-8")
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def spans(page: Path) -> list[str]:
    """The texts in back-ticks."""
    return re.findall(r"`([^`\n]+)`", prose(page))


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.*)", prose(page), flags=re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
    return {heading.replace(" ", "-") for heading in plain}


def missing_link(page: Path, link: str) -> bool:
    if link.startswith("https://"):
        return False
    name, _, anchor = link.partition("#")
    target = page.parent / name if name else page
    return not target.exists() or (bool(anchor) and anchor not in anchors(target))


def missing_file(span: str) -> bool:
    """Whether a path or a name of code leads nowhere; names of other files may be a run's."""
    if re.search(r"[^\w./-]", span):
        return False
    first, slash, _ = span.partition("/")
    if slash and first in TOP:
        return not (ROOT / span).exists()
    if slash and first in ROOMS:
        return not (PACKAGE / span).exists()
    return not slash and span.endswith((".py", ".sh", ".sbatch", ".toml")) and span not in SOURCES


def missing_name(span: str) -> bool:
    """Whether a dotted name of ours, or the name of a file of tests, stands for nothing."""
    if re.fullmatch(r"test_\w+", span):
        return f"{span}.py" not in SOURCES
    if not re.fullmatch(r"[a-z_]+(\.\w+)+", span) or span in SOURCES:
        return False
    first = span.split(".")[0]
    if first not in ROOMS | {"openrlhf_swap", "evaluation"}:
        return False
    try:
        resolve_name(f"openrlhf_swap.{span}" if first in ROOMS else span)
    except (ImportError, AttributeError):
        return True
    return False


def missing_command(module: str) -> bool:
    spec = find_spec(module)
    if spec is None:
        return True
    return spec.submodule_search_locations is not None and not find_spec(f"{module}.__main__")


def cells(row: str) -> int:
    """The number of cells; a pipe after a backslash is text."""
    return len(re.findall(r"(?<!\\)\|", row)) - 1


def uneven_tables(text: str) -> list[str]:
    """The headers of tables that have rows of different numbers of cells."""
    tables = re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE)
    uneven = []
    for table in tables:
        rows = table.splitlines()
        if len(set(map(cells, rows))) > 1:
            uneven.append(rows[0])
    return uneven


def test_every_page_is_in_the_navigation_of_the_site():
    shown = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    listed = set(re.findall(r"(?: |- )(docs/\S+\.md)$", shown, flags=re.MULTILINE))
    found = {str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md")}
    assert found == listed - {"docs/python.md"}


@pages
def test_links_and_names_lead_somewhere(page):
    links = re.findall(r"\]\(([^)\s]+)\)", prose(page))
    missing = [link for link in links if missing_link(page, link)]
    missing += [span for span in spans(page) if missing_file(span) or missing_name(span)]
    assert missing == []
    assert uneven_tables(page.read_text(encoding="utf-8")) == []


@pages
def test_commands_that_are_shown_can_be_run(page):
    text = page.read_text(encoding="utf-8")
    modules = re.findall(r"python -m ([\w.]+)", text)
    assert [module for module in modules if missing_command(module)] == []
    named = re.findall(r"openrlhf-swap ((?:eval )?[a-z][a-z-]*)(?: (?:--|[A-Z|])|`)", text)
    assert [name for name in named if name not in COMMANDS] == []
    folders = "|".join(FOLDERS)
    path = rf"(?<![\w/.])(?:{folders})/[\w./]+\.(?:py|sbatch|sh)\b"
    scripts = re.findall(path, text)
    assert [script for script in scripts if not (ROOT / script).is_file()] == []


def test_the_first_python_for_other_trainers_runs():
    page = (ROOT / "docs" / "use" / "own_trainer.md").read_text(encoding="utf-8")
    code = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0]
    found = {}
    exec(code, found)
    assert [len(advantages) for advantages in found["advantages"]] == [9, 5, 6]


def test_an_objective_of_ones_own_is_tried_without_ray(tmp_path, monkeypatch):
    page = (ROOT / "docs" / "use" / "custom_objective.md").read_text(encoding="utf-8")
    code, session = re.findall(r"```(?:python|pycon)\n(.*?)```", page, re.DOTALL)
    (tmp_path / "per_token.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "per_token", raising=False)
    shown = doctest.DocTestParser().get_doctest(session, {}, "custom_objective.md", None, 0)
    assert doctest.DocTestRunner().run(shown).failed == 0
    monkeypatch.delitem(sys.modules, "per_token")

"""Code figures: a row per folder, and figures of the two packages as a whole.

    python scripts/code_figures.py [--check]

With --check, lists the limits that the packages exceed; the exit status is 1 if there are any.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import grimp
import networkx
from tabulate import tabulate

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("openrlhf_swap", "evaluation")
FOLDERS = (*PACKAGES, "examples", "benchmarks", "scripts", "tests")
SUFFIXES = {".py", ".sh", ".sbatch"}
FILE_LINES, FUNCTION_LINES, BROAD_EXCEPTS, TOP_MODULES = 300, 60, 3, 12  # limits for the packages
HEADERS = ("folder", "files", "lines", "longest file", "longest function", "annotated", "docstrings", "broad excepts")


@dataclass(frozen=True)
class Function:
    """A function or method: where it is, its lines, and whether all arguments and the result are annotated."""

    place: str
    lines: int
    annotated: bool


@dataclass(frozen=True)
class CodeFile:
    """A file: its functions, its public names and whether each has a docstring, and its broad excepts."""

    path: Path
    lines: int
    functions: tuple[Function, ...] = ()
    documented: tuple[tuple[str, bool], ...] = ()
    broad_excepts: tuple[str, ...] = ()


def main(argv: Sequence[str] | None = None) -> int:
    """Print the figures; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit with 1 if a limit is exceeded")
    check = parser.parse_args(argv).check
    files = list(read_files(ROOT, FOLDERS))
    print(tabulate([_row(folder, list(group)) for folder, group in _by_folder(files)], HEADERS))
    ours = [file for file in files if file.path.parts[0] in PACKAGES]
    circles = import_circles(PACKAGES)
    print(f"\n{' and '.join(PACKAGES)} together: {sum(file.lines for file in ours)} lines")
    for package in PACKAGES:
        print(f"modules on the top level of {package}: {len(top_modules(ours, package))}")
    print(f"import cycles: {len(circles)}")
    broken = broken_bounds(ours, PACKAGES, circles) if check else []
    for line in broken:
        print(f"error: {line}", file=sys.stderr)
    return int(bool(broken))


def read_files(root: Path, folders: Iterable[str]) -> Iterator[CodeFile]:
    """Every code file below the folders of `root`."""
    for folder in folders:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in SUFFIXES:
                yield _read_file(path, path.relative_to(root))


def _read_file(path: Path, name: Path) -> CodeFile:
    text = path.read_text(encoding="utf-8")
    lines = len(text.splitlines())
    if path.suffix != ".py":
        return CodeFile(name, lines)
    tree = ast.parse(text)
    nodes = list(ast.walk(tree))
    functions = (n for n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
    return CodeFile(
        name,
        lines,
        tuple(Function(f"{name}:{n.lineno} {n.name}", _length(n), _is_annotated(n)) for n in functions),
        ((str(name), ast.get_docstring(tree) is not None), *_public_names(tree, f"{name}:")),
        tuple(f"{name}:{line}" for line in sorted(_broad_excepts(nodes))),
    )


def _length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _is_annotated(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    spec = node.args
    arguments = [*spec.posonlyargs, *spec.args]
    if arguments and arguments[0].arg in ("self", "cls"):
        del arguments[0]
    arguments += [argument for argument in (*spec.kwonlyargs, spec.vararg, spec.kwarg) if argument]
    return node.returns is not None and all(argument.annotation for argument in arguments)


def _public_names(parent: ast.Module | ast.ClassDef, prefix: str) -> Iterator[tuple[str, bool]]:
    """Public classes, functions and methods, and whether they have a docstring."""
    for node in parent.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield f"{prefix}{node.lineno} {node.name}", ast.get_docstring(node) is not None
            if isinstance(node, ast.ClassDef):
                yield from _public_names(node, prefix)


def _broad_excepts(nodes: Iterable[ast.AST]) -> Iterator[int]:
    """Lines of `except:`, `except Exception` and `suppress(Exception)`, also in tuples."""
    for node in nodes:
        if isinstance(node, ast.ExceptHandler):
            caught = ast.unparse(node.type) if node.type else "BaseException"
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("suppress"):
            caught = ast.unparse(node)
        else:
            continue
        if re.search(r"\b(Base)?Exception\b", caught):
            yield node.lineno


def _by_folder(files: Iterable[CodeFile]) -> Iterator[tuple[str, Iterator[CodeFile]]]:
    return groupby(sorted(files, key=lambda file: file.path.parts[:-1]), key=lambda file: str(file.path.parent))


def _row(folder: str, files: Sequence[CodeFile]) -> tuple[object, ...]:
    functions = [function for file in files for function in file.functions]
    return (
        folder,
        len(files),
        sum(file.lines for file in files),
        max(file.lines for file in files),
        max((function.lines for function in functions), default=""),
        _share([function.annotated for function in functions]),
        _share([documented for file in files for _, documented in file.documented]),
        sum(len(file.broad_excepts) for file in files),
    )


def _share(values: Sequence[bool]) -> str:
    return f"{sum(values) / len(values):.1%}" if values else ""


def top_modules(files: Iterable[CodeFile], package: str) -> list[str]:
    """The modules directly in a package, without its `__init__`."""
    names = [file.path for file in files if file.path.parent == Path(package)]
    return [path.stem for path in names if path.stem != "__init__"]


def import_circles(packages: Sequence[str]) -> list[list[str]]:
    """Import cycles: groups of modules that import each other, directly or indirectly, type-checking imports aside."""
    graph = grimp.build_graph(*packages, exclude_type_checking_imports=True, cache_dir=None)
    imports = networkx.DiGraph([(a, b) for a in graph.modules for b in graph.find_modules_directly_imported_by(a)])
    return sorted(sorted(group) for group in networkx.strongly_connected_components(imports) if len(group) > 1)


def broken_bounds(files: Sequence[CodeFile], packages: Sequence[str], circles: Iterable[Iterable[str]]) -> list[str]:
    """One line per exceeded limit."""
    functions = [function for file in files for function in file.functions]
    broad = [place for file in files for place in file.broad_excepts]
    tops = {package: len(top_modules(files, package)) for package in packages}
    broken = [f"{f.path} has {f.lines} lines; at most {FILE_LINES}" for f in files if f.lines > FILE_LINES]
    broken += [
        f"{f.place} has {f.lines} lines; at most {FUNCTION_LINES}" for f in functions if f.lines > FUNCTION_LINES
    ]
    broken += [f"{f.place} is not fully annotated" for f in functions if not f.annotated]
    broken += [
        f"{place} has no docstring" for file in files for place, documented in file.documented if not documented
    ]
    if len(broad) > BROAD_EXCEPTS:
        broken.append(f"{len(broad)} places catch everything, at most {BROAD_EXCEPTS}: {', '.join(broad)}")
    broken += [
        f"{p} has {n} modules on its top level; at most {TOP_MODULES}" for p, n in tops.items() if n > TOP_MODULES
    ]
    return broken + [f"these import each other: {', '.join(circle)}" for circle in circles]


if __name__ == "__main__":
    sys.exit(main())

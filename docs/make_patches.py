"""Write the page of everything that is replaced in other packages.

    python docs/make_patches.py > docs/internals/patches.md

All of it is read from the inventory, whose entries are what the code puts in force.
"""

from __future__ import annotations

from tabulate import tabulate

from openrlhf_swap.integration.inventory import PATCHES, Kind, Patch
from openrlhf_swap.packages.versions import VERSIONS

PAGE = """\
# Patches

Made by `python docs/make_patches.py > docs/internals/patches.md`: edit the code, not this file.

Everything that this project replaces in other packages and in the interpreter, in which process, and why. A
replacement is refused, with the remedy, where another version of its package is installed. "On CPU" means: with a CPU
build of torch. Replacements that begin with a dot are in `openrlhf_swap.integration`.

{sections}
"""


def patches_page() -> str:
    """The whole document."""
    return PAGE.format(sections="\n\n".join(f"## {kind.value}\n\n{_table(kind)}" for kind in Kind))


def _table(kind: Kind) -> str:
    rows = [_row(patch) for patch in PATCHES if patch.group.kind is kind]
    return tabulate(rows, ("what", "replaced by", "where", "why", "version"), tablefmt="github", disable_numparse=True)


def _row(patch: Patch) -> tuple[str, ...]:
    group = patch.group
    version = f"{group.package} {VERSIONS[group.package]}" if group.package else "any"
    return f"`{patch.target}`", f"`{patch.replacement}`", group.where, group.why, version


if __name__ == "__main__":
    print(patches_page(), end="")

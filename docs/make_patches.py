"""Write the page of everything that is replaced in other packages.

    python docs/make_patches.py > docs/internals/patches.md

It is read from the table in `openrlhf_swap/integration/patches.py`, whose entries are what the code puts in force.
"""

from __future__ import annotations

from tabulate import tabulate

from openrlhf_swap.integration.patches import PATCHES, Kind
from openrlhf_swap.packages.versions import VERSIONS

PAGE = """\
# Patches

Made by `python docs/make_patches.py > docs/internals/patches.md`: edit the code, not this file.

Everything that this project replaces in other packages and in the interpreter, in which process, and why. A
replacement is refused, with the remedy, where another version of its package is installed. "On CPU" means: with a CPU
build of torch. Replacements that begin with a dot are in `openrlhf_swap.integration`.

{sections}
"""


HEAD = ("what", "replaced by", "where", "why", "version")


def patches_page() -> str:
    """The whole document."""
    sections = []
    for kind in Kind:
        rows = [
            (
                f"`{target}`",
                f"`{value}`",
                group.where,
                group.why,
                f"{package} {VERSIONS[package]}" if package else "any",
            )
            for group, targets in PATCHES.items()
            if group.kind is kind
            for package in [group.package]
            for target, value in targets.items()
        ]
        sections.append(f"## {kind.value}\n\n{tabulate(rows, HEAD, tablefmt='github', disable_numparse=True)}")
    return PAGE.format(sections="\n\n".join(sections))


if __name__ == "__main__":
    print(patches_page(), end="")

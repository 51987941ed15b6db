"""The metrics that docs/use/metrics.md declares."""

import re
from fnmatch import fnmatchcase

from support.paths import ROOT

PAGE = (ROOT / "docs" / "use" / "metrics.md").read_text(encoding="utf-8")
# Name -> meaning; a `*` stands for the part that differs between runs.
METRICS = dict(re.findall(r"^\| `(.+?)` +\| (.+?) +\|$", PAGE, re.MULTILINE))


def meaning(name):
    """The meaning of a metric; None if it is not declared."""
    for declared, text in METRICS.items():
        if fnmatchcase(name, declared):
            return text
    return None

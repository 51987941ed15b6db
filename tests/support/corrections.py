"""For tests that compute tables again with SciPy, which nothing else needs."""

import sys
from pathlib import Path

import pytest

SCIPY = Path(sys.prefix) / "tests_only"  # where scripts/test.sh installs it
needs_scipy = pytest.mark.skipif(not SCIPY.is_dir(), reason="bash scripts/test.sh installs SciPy")


def corrected_by_hand(tests):
    """Holm's correction of p-values by key."""
    corrected, ordered, largest = {}, sorted(tests, key=tests.get), 0.0
    for rank, key in enumerate(ordered):
        largest = max(largest, (len(ordered) - rank) * tests[key])
        corrected[key] = min(1.0, largest)
    return corrected

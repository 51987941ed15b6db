import sys
from pathlib import Path

import pytest


@pytest.fixture
def stats(monkeypatch):
    """scipy.stats, which scripts/test.sh installs beside the environment, because nothing else
    needs it.
    """
    monkeypatch.syspath_prepend(Path(sys.prefix) / "tests_only")
    return pytest.importorskip("scipy.stats", reason="bash scripts/test.sh installs SciPy")

"""A mark for tests that run code in the sandbox."""

import pytest

from openrlhf_swap.errors import ConfigError
from openrlhf_swap.rewards.unit_tests import find_bwrap


def _works():
    try:
        find_bwrap()
    except ConfigError:
        return False
    return True


confined = pytest.mark.skipif(not _works(), reason="no bwrap works here")

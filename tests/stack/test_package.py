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
from openrlhf_swap.files import write_rows

DATA = {"csv", "html", "jinja", "js", "json", "md", "safetensors", "typed", "yaml"}
BUILD = "from setuptools import build_meta; build_meta.build_{0}({1!r})"
# Commands of the wheel in an empty folder, one after the other, and their exit statuses.
PROGRAM = """
import shlex, sys
from importlib.metadata import distribution
import openrlhf_swap
from openrlhf_swap import Scorer, swap_advantages
from openrlhf_swap.quickstart import make_data

print(openrlhf_swap.__file__)
(script,) = distribution("openrlhf-swap").entry_points
assert script.name == "openrlhf-swap"
swap = script.load()
make_data.main(["--output", "data", "--train", "16", "--test", "4"])
for command in sys.argv[1:]:
    print("status", swap(shlex.split(command)), "of", command)
"""
PLAN = "plan --gpu h200 --model r1-1.5b --gpus 8"
SCORE = "score --input traces.jsonl --output scored.jsonl --swap.step_tokens 8"
PAGE = "eval page scored.jsonl --output page.html"
TRAIN = "train --data.prompt_dataset data/train.jsonl --dry-run"


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
    row = {"problem": "What is 123 + 456?", "answer": "579", "response": "ones: 3+6+0=09\n"}
    write_rows(tmp_path / "traces.jsonl", [row])
    quickstart = installed / "openrlhf_swap" / "quickstart"
    score = f"{SCORE} --model {quickstart / 'policy'}"
    train = f"{TRAIN} --config {quickstart / 'settings.yaml'} "
    train += f"--actor.model_name_or_path {quickstart / 'policy'}"
    commands = ["--version", PLAN, score, PAGE, train]
    command = [sys.executable, "-c", PROGRAM, *commands]
    result = run(*command, cwd=tmp_path, PYTHONPATH=str(installed))
    assert result.returncode == 0, result.stderr
    shown = result.stdout.splitlines()
    assert shown[0] == f"{installed}/openrlhf_swap/__init__.py"
    assert f"openrlhf-swap {openrlhf_swap.__version__}" in shown
    assert "data.prompt_dataset: data/train.jsonl" in result.stdout
    for done in ("--version", score, PAGE, train):
        assert f"status 0 of {done}" in shown
    # A plan has status 1 if there are warnings.
    assert {f"status {status} of {PLAN}" for status in (0, 1)} & set(shown)
    assert "What is 123 + 456?" in (tmp_path / "page.html").read_text(encoding="utf-8")
    help_of = [sys.executable, "-m", "openrlhf_swap", "quickstart", "--help"]
    result = run(*help_of, cwd=tmp_path, PYTHONPATH=str(installed))
    assert result.stdout.startswith("usage: openrlhf-swap quickstart"), result.stderr


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
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.search(r"^## (\S+)", changes, flags=re.MULTILINE)
    assert citation["version"] == newest[1] == openrlhf_swap.__version__
    assert project["dynamic"] == ["version"]

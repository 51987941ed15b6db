"""The comparison: what it has the sweep run, and its rows, whose flags can be read."""

import json
import os
import shlex

import pytest
from objectives import configurations
from support.paths import STUDIES
from support.scripts import bash

from openrlhf_swap.flags.configuration import configure
from openrlhf_swap.objectives.registry import build

FILES = sorted((STUDIES / "objectives").iterdir())
ROWS = {path.name: json.loads(path.read_text()) for path in FILES}
ROWS |= {world: configurations(world) for world in ("addition", "decomposition", "words")}


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
def test_the_rows_of_a_comparison_can_be_run(rows):
    configs = {}
    for row in rows:
        configs[row["name"]] = configure(list(map(str, row["train"])), on_cpu=True).method
    assert len(configs) == len(rows)
    assert all(config.objective == build(config).config.objective for config in configs.values())


def test_a_comparison_without_a_policy_says_how_to_make_one(tmp_path):
    result = bash(
        "examples/worlds/compare.sh",
        MODEL=str(tmp_path),
        OUTPUT=str(tmp_path / "out"),
        WORLD="decomposition",
    )
    assert result.returncode == 2
    assert (
        f"MODEL is {tmp_path}, where no policy is; make one with WORLD=decomposition bash"
        in result.stderr
    )
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    "variables", [{}, {"EVALUATE_EVERY": "5", "PROBLEMS": "100", "STEPS": "20"}]
)
def test_a_stopped_training_resumes(tmp_path, variables):
    """Evaluations on the way keep their best checkpoint, beside which train refuses to start anew."""
    words = tmp_path / "words"
    stub = tmp_path / "python"
    stub.write_text(f'#!/bin/bash\nprintf "%s\\0" "$@" > {words}\n')
    stub.chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "OUTPUT": str(tmp_path / "o p"),
        "WORLD": "words",
    }
    result = bash(
        "examples/worlds/compare.sh", "--only", "swap", **environment, STEP_TOKENS="3", **variables
    )
    assert result.returncode == 0
    sweep = words.read_text().split("\0")
    train = shlex.split(sweep[sweep.index("--train") + 1])
    assert (
        train[:4] == ["env", "OUTPUT={output}", "SEED={seed}", "bash"]
        and "--ckpt.load_enable" in train
    )
    if variables:
        flags = dict(zip(train[6::2], train[7::2], strict=True))
        assert flags["--eval.dataset"] == f"{tmp_path}/o p/data/test.jsonl"
        assert flags["--eval.n_samples_per_prompt"] == "1"

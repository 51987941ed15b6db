"""The command of the comparison: what it has the sweep run."""

import os
import shlex
import subprocess

import pytest
from support.paths import ROOT


@pytest.mark.parametrize("variables", [{}, {"EVALUATE_EVERY": "5", "PROBLEMS": "100", "STEPS": "20"}])
def test_a_stopped_training_resumes(tmp_path, variables):
    """Evaluations on the way keep their best checkpoint, beside which train refuses to start anew."""
    words = tmp_path / "words"
    stub = tmp_path / "python"
    stub.write_text(f'#!/bin/bash\nprintf "%s\\0" "$@" > {words}\n')
    stub.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "OUTPUT": str(tmp_path / "o p"), "WORLD": "words"}
    subprocess.run(
        ["bash", "examples/worlds/compare.sh", "--only", "swap"],
        cwd=ROOT,
        env=environment | {"STEP_TOKENS": "3"} | variables,
        check=True,
    )
    sweep = words.read_text().split("\0")
    train = shlex.split(sweep[sweep.index("--train") + 1])
    assert train[:4] == ["env", "OUTPUT={output}", "SEED={seed}", "bash"] and "--ckpt.load_enable" in train
    if variables:
        flags = dict(zip(train[6::2], train[7::2], strict=True))
        assert flags["--eval.dataset"] == f"{tmp_path}/o p/data/test.jsonl"
        assert flags["--eval.n_samples_per_prompt"] == "1"

"""The comparison: what it has the sweep run, and its rows, whose flags can be read."""

import json
import os
import shlex

import pytest
from objectives import configurations
from support.paths import STUDIES
from support.scripts import bash, make_tool

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


@pytest.mark.parametrize(
    "variables", [{}, {"EVALUATE_EVERY": "5", "PROBLEMS": "100", "STEPS": "20"}]
)
def test_a_stopped_training_resumes(tmp_path, variables):
    """Evaluations on the way keep their best checkpoint, beside which no training starts anew."""
    words = tmp_path / "words"
    make_tool(tmp_path / "python", f'printf "%s\\0" "$@" > {words}')
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "OUTPUT": str(tmp_path / "o p")}
    environment |= {"WORLD": "words", "STEP_TOKENS": "3", **variables}
    result = bash("examples/worlds/compare.sh", "--only", "swap", **environment)
    assert result.returncode == 0
    sweep = words.read_text().split("\0")
    train = shlex.split(sweep[sweep.index("--train") + 1])
    assert train[:4] == ["env", "OUTPUT={output}", "SEED={seed}", "bash"]
    assert "--ckpt.load_enable" in train
    if variables:
        flags = dict(zip(train[6::2], train[7::2], strict=True))
        assert flags["--eval.dataset"] == f"{tmp_path}/o p/data/test.jsonl"
        assert flags["--eval.n_samples_per_prompt"] == "1"

"""A run of agents, whose environment fails in the second step."""

import pytest
from support.disturbing import errors
from support.paths import ROOT
from support.running import SMALL_STEPS, start_training, words

from openrlhf_swap.files import read_rows

pytestmark = pytest.mark.slow
CALCULATOR = ROOT / "examples" / "agents" / "calculator.py"
FLAGS = words(
    "--swap.steps turns --data.max_samples 16 --ckpt.save_steps 1 "
    "--train.full_determinism_enable --swap.rollouts_every 1 --actor.adam.lr 3e-4 "
    "--swap.turn_weight 0.5 --swap.step_discount 0.5"
)
FAILS = """
import sys
from pathlib import Path
sys.path.append({folder!r})
import calculator
from calculator import AgentExecutor

answer = calculator.Calculator.step


async def step(self, state, **more):
    if Path({checkpoint!r}).exists():
        raise LookupError(1)
    return await answer(self, state)


calculator.Calculator.step = step
calculator.COST = 0.1
"""


def test_turns_are_paid_and_an_environment_that_fails_costs_one_step(tmp_path, prompts_file):
    """The first step's checkpoint, metrics and rollouts are there."""
    run = tmp_path / "run"
    agent = tmp_path / "agent.py"
    saved = run / "checkpoints" / "_actor" / "global_step1"
    agent.write_text(FAILS.format(folder=str(CALCULATOR.parent), checkpoint=str(saved)))
    flags = [*SMALL_STEPS, *FLAGS, "--train.agent_func_path", str(agent)]
    result = start_training(run, prompts_file, *flags)
    assert result.returncode == 2
    (line,) = errors(result.stderr)
    assert line.startswith("error: the agent of --train.agent_func_path failed with LookupError: 1")
    assert saved.exists()
    (row,) = read_rows(run / "metrics.jsonl")
    assert row["step"] == 1
    assert "raise LookupError" in (run / "train.log").read_text()
    # Every turn but the last is a call; the last is one, too, if the context ends there. An answer
    # of the environment has three tokens.
    assert row["calls"] <= row["swap/turns"] <= row["calls"] + 1
    assert row["swap/observation_tokens"] == pytest.approx(3 * (row["swap/turns"] - 1))
    assert row["length/mean"] < row["total_length"] - row["swap/observation_tokens"]
    assert row["swap/adv_process_absmean"] > 0
    assert row["swap/skipped_steps"] == 0
    (table,) = (run / "rollouts").iterdir()
    assert table.name == "step_000001.jsonl"
    for response in read_rows(table):
        turns = response["turns"]
        assert "".join(turn["action"] for turn in turns) == response["response"]
        assert all(turn["observation"].endswith("\n") for turn in turns[:-1])
        # The environment paid each turn of every response, and their sum is the reward.
        paid = [step["turn_reward"] for step in response["steps"]]
        assert sum(paid) == pytest.approx(response["reward"], abs=1e-6)
        # An answer without a step leaves its reward to the call before it.
        assert {round(reward, 6) for reward in paid} <= {0.0, -0.1, 0.9, 1.0}

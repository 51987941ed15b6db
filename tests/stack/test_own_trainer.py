"""The examples of docs/use/own_trainer.md; those for TRL and verl run where these are installed."""

import re
import sys
import types

import pytest
import torch
from support.paths import ROOT

from openrlhf_swap import SwapConfig, swap_advantages

BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "use" / "own_trainer.md").read_text(), re.DOTALL)


@pytest.fixture
def run(monkeypatch):
    """Runs the example that holds a word, in the folder that the page names, and returns its names."""
    monkeypatch.chdir(ROOT)

    def run_block(word):
        (code,) = (block for block in BLOCKS if word in block)
        module = types.ModuleType("example")
        monkeypatch.setitem(sys.modules, "example", module)
        exec(code, module.__dict__)
        return module

    return run_block


def test_torch_alone(run, capsys):
    example = run("torch.optim")
    line = r"\d of 8 correct, \d+ tokens each, loss -?\d+\.\d+\n"
    assert re.fullmatch(f"({line}){{2}}", capsys.readouterr().out)
    # The last group as the page leaves it: a value a token, and steps that were scored.
    assert [len(values) for values in example.advantages] == [len(response) for response in example.responses]
    correct = [trace for trace in example.traces if trace.correct]
    assert correct and all(len(trace.answer_logprobs) == len(trace.step_ends) + 1 > 1 for trace in correct)
    assert all(parameter.grad is not None for parameter in example.model.parameters())


def test_a_critic_of_length(run):
    """The block goes on from the names of the example above."""
    before = run("torch.optim")
    code = next(block for block in BLOCKS if "StateCritic()" in block)
    exec(code, before.__dict__)
    (group,) = before.advantages
    assert [len(values) for values in group] == [len(response) for response in before.responses]
    assert before.critic.state_dict() and all(values.isfinite().all() for values in group)


def test_trl_trains_two_steps(run, tmp_path, monkeypatch):
    trl = pytest.importorskip("trl")
    monkeypatch.setattr(trl, "GRPOConfig", lambda **options: GRPOConfig(**{**options, "output_dir": str(tmp_path)}))
    from trl.trainer.grpo_config import GRPOConfig

    seen = []
    loss = trl.GRPOTrainer._compute_loss

    def compute_loss(self, model, inputs):
        seen.append(inputs["advantages"].clone())
        return loss(self, model, inputs)

    monkeypatch.setattr(trl.GRPOTrainer, "_compute_loss", compute_loss)
    trainer = run("GRPOTrainer").trainer
    assert trainer.state.global_step == 2
    assert len(seen) == 2 and all(advantages.dim() == 2 for advantages in seen)
    # The process term differs from step to step of a response.
    assert all((row[row != 0].unique().numel() > 1) for row in seen[0][seen[0].abs().sum(1) > 0][:1])
    logged = [row for row in trainer.state.log_history if "loss" in row]
    print(logged)
    assert len(logged) == 2 and all(row["grad_norm"] > 0 for row in logged)


def test_verl_takes_the_estimator(run):
    pytest.importorskip("verl")
    import numpy as np
    from verl import DataProto
    from verl.trainer.ppo.ray_trainer import compute_advantage

    from openrlhf_swap import StepTrace

    example = run("register_adv_est")
    groups = {
        "a": [
            StepTrace(9, True, [-4.0, -1.0, -1.1], [3, 7]),
            StepTrace(5, True, [-4.0, -0.9], [3]),
            StepTrace(6, False, [], []),
        ],
        "b": [StepTrace(4, True, [-2.0, -2.0, -1.5], [0, 2]), StepTrace(8, True, [-3.0, -0.5], [6])],
    }
    rows = [("a", 0), ("b", 0), ("a", 1), ("a", 2), ("b", 1)]  # prompts in any order
    traces = [groups[uid][number] for uid, number in rows]
    data = DataProto.from_dict(
        tensors={
            "token_level_rewards": torch.stack([example.marked_rewards(trace, 10) for trace in traces]),
            "response_mask": torch.tensor([[int(t < trace.length) for t in range(10)] for trace in traces]),
        },
        non_tensors={"uid": np.array([uid for uid, _ in rows], dtype=object)},
    )
    found = compute_advantage(data, "swap").batch["advantages"]
    for row, (uid, number) in zip(found, rows, strict=True):
        expected = swap_advantages(groups[uid], SwapConfig())[number].float()
        torch.testing.assert_close(row[: len(expected)], expected, rtol=1e-5, atol=1e-5)
        assert not row[len(expected) :].any()

"""The trainers of examples/; those for TRL, verl and Molt run where these are installed."""

import functools
import re
import sys
import types
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location

import pytest
import torch
from support.paths import ROOT

from openrlhf_swap import SwapConfig, swap_advantages

TRAINERS = ROOT / "examples" / "trainers"


@pytest.fixture
def run(monkeypatch):
    """Runs an example from the top folder; returns it as a module."""
    monkeypatch.chdir(ROOT)

    def run_file(name):
        spec = spec_from_file_location(name, TRAINERS / f"{name}.py")
        module = module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    return run_file


def test_torch_alone(run, capsys):
    example = run("plain_torch")
    line = r"\d of 8 correct, \d+ tokens each, loss -?\d+\.\d+\n"
    assert re.fullmatch(f"({line}){{2}}", capsys.readouterr().out)
    # The program leaves its last group: advantages of each token, and steps that were scored.
    lengths = [len(response) for response in example.responses]
    assert [len(values) for values in example.advantages] == lengths
    correct = [trace for trace in example.traces if trace.correct]
    assert correct
    for trace in correct:
        assert len(trace.answer_logprobs) == len(trace.step_ends) + 1 > 1
    assert all(parameter.grad is not None for parameter in example.model.parameters())


def test_trl_trains_two_steps(run, tmp_path, monkeypatch):
    trl = pytest.importorskip("trl")
    from trl.trainer.grpo_config import GRPOConfig

    def config(**options):
        return GRPOConfig(**{**options, "output_dir": str(tmp_path)})

    monkeypatch.setattr(trl, "GRPOConfig", config)
    seen = []
    loss = trl.GRPOTrainer._compute_loss

    def compute_loss(self, model, inputs):
        seen.append(inputs["advantages"].clone())
        return loss(self, model, inputs)

    monkeypatch.setattr(trl.GRPOTrainer, "_compute_loss", compute_loss)
    trainer = run("trl_trainer").trainer
    assert trainer.state.global_step == 2
    assert [advantages.dim() for advantages in seen] == [2, 2]
    # The process term differs from step to step of a response.
    first = next(row for row in seen[0] if row.any())
    assert first[first != 0].unique().numel() > 1
    logged = [row for row in trainer.state.log_history if "loss" in row]
    assert len(logged) == 2
    assert all(row["grad_norm"] > 0 for row in logged)


def test_verl_takes_the_estimator(run):
    pytest.importorskip("verl")
    import numpy as np
    from verl import DataProto
    from verl.trainer.ppo.ray_trainer import compute_advantage

    from openrlhf_swap import StepTrace

    example = run("verl_estimator")
    first = [
        StepTrace(9, True, [-4.0, -1.0, -1.1], [3, 7]),
        StepTrace(5, True, [-4.0, -0.9], [3]),
        StepTrace(6, False, [], []),
    ]
    second = [
        StepTrace(4, True, [-2.0, -2.0, -1.5], [0, 2]),
        StepTrace(8, True, [-3.0, -0.5], [6]),
    ]
    groups = {"a": first, "b": second}
    rows = [("a", 0), ("b", 0), ("a", 1), ("a", 2), ("b", 1)]  # prompts in any order
    traces = [groups[uid][number] for uid, number in rows]
    rewards = torch.stack([example.marked_rewards(trace, 10) for trace in traces])
    lengths = torch.tensor([[trace.length] for trace in traces])
    data = DataProto.from_dict(
        tensors={"token_level_rewards": rewards, "response_mask": (torch.arange(10) < lengths) * 1},
        non_tensors={"uid": np.array([uid for uid, _ in rows], dtype=object)},
    )
    found = compute_advantage(data, "swap").batch["advantages"]
    for row, (uid, number) in zip(found, rows, strict=True):
        expected = swap_advantages(groups[uid], SwapConfig())[number].float()
        torch.testing.assert_close(row[: len(expected)], expected, rtol=1e-5, atol=1e-5)
        assert not row[len(expected) :].any()


@dataclass
class MoltSample:
    """A response of a group, as token ids, with its reference answer and its reward."""

    group: str
    prompt: list
    answer: str
    response: list
    reward: float


def molt_samples(tokenizer):
    """Two groups of two responses, whose members are in different experiences."""
    encode = functools.partial(tokenizer.encode, add_special_tokens=False)
    thought = "23 + 4 = 27\n2 + 4 = 6\n"
    close = "</think>\n\n**Final Answer**\n\\boxed{"
    large = encode("What is 123 + 456?")
    small = encode("What is 1 + 2?")
    return [
        MoltSample("a", large, "579", encode(thought + close + "579}"), 1.0),
        MoltSample("b", small, "3", encode("1 + 2 = 3\n" + close + "3}"), 1.0),
        MoltSample("b", small, "3", encode(thought + thought), 0.0),
        MoltSample("a", large, "579", encode(thought + thought + close + "579}"), 1.0),
    ]


def molt_experience(samples, width):
    """Molt's experience of samples, padded on both sides to `width`, prompts on the left."""
    from molt.trainer.algorithm import Experience

    ids = torch.zeros(len(samples), width, dtype=torch.long)
    attended = torch.zeros_like(ids)
    taken = torch.zeros_like(ids)
    left = max(len(sample.prompt) for sample in samples) + 1
    for row, sample in enumerate(samples):
        start = left - len(sample.prompt)
        stop = left + len(sample.response)
        ids[row, start:stop] = torch.tensor(sample.prompt + sample.response)
        attended[row, start:stop] = 1
        taken[row, left:stop] = 1
    return Experience(
        sequences=ids,
        attention_mask=attended,
        action_mask=taken[:, 1:].bool(),
        kl=torch.zeros(len(samples), width - 1),
        rewards=torch.tensor([sample.reward for sample in samples]),
        labels=[sample.answer for sample in samples],
        group_ids=[sample.group for sample in samples],
        rollout_ids=[str(row) for row in range(len(samples))],
        index=list(range(len(samples))),
    )


def molt_strategy():
    """As much of Molt's strategy as its experience maker reads."""
    advantage = types.SimpleNamespace(estimator="dr_grpo", gamma=1.0, lam=1.0, no_whiten=False)
    limits = ("overlong_buffer_len", "stop_properly_penalty_coef", "clip_range")
    args = types.SimpleNamespace(
        algo=types.SimpleNamespace(advantage=advantage),
        reward=types.SimpleNamespace(**dict.fromkeys(limits)),
        rollout=types.SimpleNamespace(n_samples_per_prompt=2),
    )
    return types.SimpleNamespace(args=args)


def test_molt_takes_the_experience_maker(run, tokenizer):
    pytest.importorskip("molt")
    from molt.trainer import rl_trainer
    from molt.trainer.algorithm import FixedKLController

    example = run("molt_maker")
    assert rl_trainer.RemoteExperienceMaker is example.SwapExperienceMaker
    samples = molt_samples(tokenizer)
    width = max(len(sample.prompt) + len(sample.response) for sample in samples) + 3
    controller = FixedKLController(0.0)
    maker = example.SwapExperienceMaker(None, None, controller, molt_strategy(), tokenizer)
    given = [molt_experience(samples[:2], width), molt_experience(samples[2:], width)]
    first, second = maker.compute_advantages_and_returns(given)
    rows = [(first, 0), (first, 1), (second, 0), (second, 1)]
    for group in ([0, 3], [1, 2]):
        traces = []
        for number in group:
            sample = samples[number]
            is_correct = sample.reward > 0
            trace = example.SCORER.trace(sample.prompt, sample.response, sample.answer, is_correct)
            traces.append(trace)
        for number, expected in zip(group, swap_advantages(traces, example.CONFIG), strict=True):
            made, row = rows[number]
            taken = made.action_mask[row]
            ours = made.advantages[row, taken]
            torch.testing.assert_close(ours, expected.float(), rtol=1e-5, atol=1e-5)
            assert not made.advantages[row, ~taken].any()
    # The process term differs from step to step.
    assert first.advantages[0].unique().numel() > 2

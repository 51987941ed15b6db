"""What a method remembers, across a kill: written by the trainer that dies, read by a new one."""

from types import SimpleNamespace

import pytest
import torch
from support.objectives import MARKS, RIGHT, batch, rollout

from openrlhf_swap.integration.driver import trainer
from openrlhf_swap.objectives.registry import build
from openrlhf_swap.runs import guards

STEPS, KILLED_AFTER = 6, 3
OBJECTIVES = {
    "hapo": {},
    "a_dlp": {"target": "0.5"},
    "short_rl": {"tolerance": "5"},
    "lapo": {"first_stage_steps": "2"},
    "aalc": {"monitor_every": "2"},
}


def one_step(objective, step):
    """Rewards of a step as a training asks for them: of two problems, ever shorter and less often right."""
    objective.resume(step)
    if objective.monitor() is not None:
        objective.observe_monitor(batch([rollout(RIGHT, 50, number > step) for number in range(STEPS)]))
    groups = []
    for number, prompt in enumerate(("p", "q")):
        (request,) = objective.sampling(prompt, 3, 900)
        lengths = (500 - 60 * step, 700 - 80 * step + 7 * number, 90 + step)
        rights = (True, True, step + number < 3)
        groups.append(
            [rollout(RIGHT, n, right, request.prompt) for n, right in zip(lengths, rights, strict=True)],
        )
    return objective.rewards(batch(*groups))


def a_trainer(objective, folder):
    """The part of the trainer that keeps an objective's state."""
    made = trainer.TrainerMixin.__new__(trainer.TrainerMixin)
    made._objective, made._folder, made._end_of_thought_set = objective, folder, []
    made._collapse = guards.CollapseGuard()
    made._skipped = guards.SkippedSteps(5)
    made._run_config = SimpleNamespace(rollouts_every=0)
    made.args = SimpleNamespace(ckpt=SimpleNamespace(save_steps=1))
    made.tensorboard_logger = None
    return made


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_killed_run_goes_on_as_if_it_had_not_been(name, tmp_path, monkeypatch):
    file, stock = tmp_path / "states.pt", trainer.BasePPOTrainer
    monkeypatch.setattr(stock, "save_logs_and_checkpoints", lambda self, step, logs, states: torch.save(states, file))
    monkeypatch.setattr(stock, "init_checkpoint_states", lambda self: torch.load(file, weights_only=True))
    monkeypatch.setattr(trainer.ray, "get", lambda refs: refs)
    config = MARKS.replaced(objective=name, options=OBJECTIVES[name])

    never_killed, killed = build(config), build(config)
    expected = [one_step(never_killed, step) for step in range(STEPS)]
    for step in range(KILLED_AFTER):
        assert torch.equal(one_step(killed, step), expected[step])
        a_trainer(killed, tmp_path).save_logs_and_checkpoints(step + 1, {}, {"global_step": step + 1})
    one_step(killed, KILLED_AFTER)  # it dies in this step, which a new process does again

    fresh = build(config)
    a_trainer(fresh, tmp_path).init_checkpoint_states()
    assert (fresh.step, fresh.state_dict()) == (KILLED_AFTER, torch.load(file, weights_only=True)["objective_state"])
    for step in range(KILLED_AFTER, STEPS):
        assert torch.equal(one_step(fresh, step), expected[step])
    assert fresh.state_dict() == never_killed.state_dict()

    # Without its state it would not: the test can fail.
    forgetful = build(config)
    assert not torch.equal(one_step(forgetful, KILLED_AFTER), expected[KILLED_AFTER])


def test_after_a_skipped_step_the_logs_are_written_and_no_checkpoint(tmp_path, monkeypatch, capsys):
    saved, logged = [], []
    stock = lambda self, step, logs, states: saved.append((step, self.args.ckpt.save_steps))  # noqa: E731
    monkeypatch.setattr(trainer.BasePPOTrainer, "save_logs_and_checkpoints", stock)
    made = a_trainer(build(MARKS), tmp_path)
    made.args = SimpleNamespace(ckpt=SimpleNamespace(save_steps=2), logger=SimpleNamespace(logging_steps=1))
    made.wandb_logger = None
    made.tensorboard_logger = SimpleNamespace(log_train=lambda step, logs: logged.append((step, logs["loss"])))
    for step, reason in enumerate((None, "it was not finite", "it was not finite", "again", None, None), 1):
        made._skipped.observe(reason)
        made.save_logs_and_checkpoints(step, {"loss": step / 2}, {})
    assert saved == [(1, 2), (3, 2), (5, 2), (6, 2)]  # with OpenRLHF, which saves every second one
    assert logged == [(2, 1.0), (4, 2.0)]
    assert capsys.readouterr().out.count("no checkpoint is saved after step") == 2


def test_a_checkpoint_of_an_earlier_version_has_two_guards(tmp_path, monkeypatch):
    watch = {"measure": [(0.9, 100.0)] * 10, "recent": [(0.9, 100.0)] * 10}
    fall = {"accuracies": [0.9] * 13, "fallen": False}
    states = {"global_step": 30, "collapse_watch": watch, "sudden_fall": fall}
    monkeypatch.setattr(trainer.BasePPOTrainer, "init_checkpoint_states", lambda self: states)
    monkeypatch.setattr(trainer.ray, "get", lambda refs: refs)
    made = a_trainer(build(MARKS), tmp_path)
    made.init_checkpoint_states()
    warnings = [made._collapse.observe(0.1, 100.0) for _ in range(6)]
    assert [len(found) for found in warnings] == [1, 0, 0, 0, 0, 1]  # at once, and when a mean of ten is below a half

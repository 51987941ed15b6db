"""What a method remembers, across a kill: written by the trainer that dies, read by a new one."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from support.objectives import MARKS, RIGHT, batch, rollout
from support.trainers import make_training_actor, strategy_of

from openrlhf_swap.integration.driver import trainer
from openrlhf_swap.objectives.registry import build

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


class Group:
    """The policy's actors, of whose checkpoint only the trainer's own states are kept."""

    def __init__(self, folder):
        self.file = folder / "_actor" / "states.pt"
        self.file.parent.mkdir()
        self.saved = []

    def async_run_method(self, method_name, client_states=None, tag=None, **_):
        if method_name == "get_checkpoint_states":
            return [torch.load(self.file, weights_only=True)]
        assert method_name == "save_checkpoint"
        self.saved.append(tag)
        torch.save(client_states, self.file)
        return []


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_killed_run_goes_on_as_if_it_had_not_been(name, tmp_path, monkeypatch, arguments):
    group = Group(tmp_path)
    monkeypatch.setattr(trainer.ray, "get", lambda refs: refs)
    config = MARKS.replaced(objective=name, options=OBJECTIVES[name])
    saving = {"ckpt.path": str(tmp_path), "ckpt.save_steps": 1, "ckpt.load_enable": True}
    strategy = strategy_of(arguments, tmp_path, swap=config, **saving)

    def a_trainer(objective):
        """One that asks this objective, which it would have built."""
        with monkeypatch.context() as patch:
            patch.setattr(trainer, "build", lambda _: objective)
            return make_training_actor(strategy, group)

    never_killed, killed = build(config), build(config)
    expected = [one_step(never_killed, step) for step in range(STEPS)]
    for step in range(KILLED_AFTER):
        assert torch.equal(one_step(killed, step), expected[step])
        a_trainer(killed).save_logs_and_checkpoints(step + 1, {}, {"global_step": step + 1})
    one_step(killed, KILLED_AFTER)  # it dies in this step, which a new process does again

    fresh = build(config)
    a_trainer(fresh).init_checkpoint_states()
    (states,) = group.async_run_method("get_checkpoint_states")
    assert (fresh.step, fresh.state_dict()) == (KILLED_AFTER, states["objective_state"])
    for step in range(KILLED_AFTER, STEPS):
        assert torch.equal(one_step(fresh, step), expected[step])
    assert fresh.state_dict() == never_killed.state_dict()

    # Without its state it would not: the test can fail.
    forgetful = build(config)
    assert not torch.equal(one_step(forgetful, KILLED_AFTER), expected[KILLED_AFTER])


def test_after_a_skipped_step_the_logs_are_written_and_no_checkpoint(tmp_path, monkeypatch, arguments, capsys):
    group, logged = Group(tmp_path), []
    monkeypatch.setattr(trainer.ray, "get", lambda refs: refs)
    every_second = {"ckpt.path": str(tmp_path), "ckpt.save_steps": 2, "logger.logging_steps": 1}
    made = make_training_actor(strategy_of(arguments, tmp_path, swap=MARKS, **every_second), group)
    made.tensorboard_logger = SimpleNamespace(log_train=lambda step, logs: logged.append((step, logs["loss"])))
    for step, reason in enumerate((None, "it was not finite", "it was not finite", "again", None, None), 1):
        made._skipped.observe(reason)
        made.save_logs_and_checkpoints(step, {"loss": step / 2}, {})
    assert group.saved == ["global_step6"]  # not 2 and 4
    assert logged == [(step, step / 2) for step in range(1, 7)]
    assert capsys.readouterr().out.count("no checkpoint is saved after step") == 2


def test_an_adapted_kl_coefficient_outlives_a_kill_and_a_fixed_one_is_the_flags(tmp_path, monkeypatch, arguments):
    group = Group(tmp_path)
    monkeypatch.setattr(trainer.ray, "get", lambda refs: refs)
    saving = {"ckpt.path": str(tmp_path), "ckpt.save_steps": 1, "ckpt.load_enable": True, "algo.kl.init_coef": 0.01}

    def made(target):
        return make_training_actor(
            strategy_of(arguments, tmp_path, swap=MARKS, **saving, **{"algo.kl.target": target}), group
        )

    killed = made(0.05)
    killed.kl_ctl.update(0.1, 1000)  # twice the target: by a fifth for each horizon of 10,000 responses
    killed.save_logs_and_checkpoints(1, {}, {"global_step": 1})
    fresh, fixed = made(0.05), made(None)
    for resumed in (fresh, fixed):
        resumed.init_checkpoint_states()
    assert fresh.kl_ctl.value == fresh.experience_maker.kl_ctl.value == pytest.approx(0.01 * (1 + 0.2 * 1000 / 10000))
    assert fixed.kl_ctl.value == 0.01


def test_what_a_critic_has_learned_outlives_a_kill_and_a_batch_of_the_other_half(tmp_path, monkeypatch, arguments):
    """In an asynchronous run a batch brings the state of the sampling objective, which has learned nothing."""
    group = Group(tmp_path)
    monkeypatch.setattr(trainer.ray, "get", lambda refs: refs)
    config = MARKS.replaced(objective="length_critic")
    saving = {"ckpt.path": str(tmp_path), "ckpt.save_steps": 1, "ckpt.load_enable": True}
    strategy = strategy_of(arguments, tmp_path, swap=config, **saving)
    generator = torch.Generator().manual_seed(0)

    def a_batch():
        groups = []
        for _ in range(3):
            lengths = torch.randint(5, 40, (4,), generator=generator).tolist()
            states = [torch.randn(3, 6, generator=generator) for _ in lengths]
            groups.append(
                [
                    replace(rollout("", length), step_ends=(1, 3), states=state)
                    for length, state in zip(lengths, states, strict=True)
                ]
            )
        return batch(*groups)

    batches = [a_batch() for _ in range(3)]
    killed, never_killed, fresh = build(config), build(config), build(config)
    for step, each in enumerate(batches[:2], 1):
        sampling_half = build(config)
        for objective in (killed, never_killed):
            objective.resume(step, sampling_half.state_dict())
            objective.token_advantages(each)
    with monkeypatch.context() as patch:
        patch.setattr(trainer, "build", lambda _: killed)
        make_training_actor(strategy, group).save_logs_and_checkpoints(2, {}, {"global_step": 2})
    with monkeypatch.context() as patch:
        patch.setattr(trainer, "build", lambda _: fresh)
        make_training_actor(strategy, group).init_checkpoint_states()
    expected = never_killed.token_advantages(batches[2])
    assert torch.equal(fresh.token_advantages(batches[2]), expected)
    assert not torch.equal(build(config).token_advantages(batches[2]), expected)

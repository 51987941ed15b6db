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
    """Rewards of a step as a training asks for them: of two problems, ever shorter and less often
    right.
    """
    objective.resume(step)
    if objective.monitor() is not None:
        objective.observe_monitor(
            batch([rollout(RIGHT, 50, number > step) for number in range(STEPS)])
        )
    groups = []
    for number, prompt in enumerate(("p", "q")):
        (request,) = objective.sampling(prompt, 3, 900)
        lengths = (500 - 60 * step, 700 - 80 * step + 7 * number, 90 + step)
        rights = (True, True, step + number < 3)
        groups.append(
            [
                rollout(RIGHT, n, right, request.prompt)
                for n, right in zip(lengths, rights, strict=True)
            ]
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


@pytest.fixture
def group(tmp_path):
    return Group(tmp_path)


@pytest.fixture
def make(group, tmp_path, monkeypatch, arguments):
    """Makes a trainer of these actors that asks this objective, which it would have built."""
    monkeypatch.setattr(trainer.ray, "get", lambda refs: refs)

    def make(objective, **changes):
        saving = {
            "ckpt.path": str(tmp_path),
            "ckpt.save_steps": 1,
            "ckpt.load_enable": True,
            **changes,
        }
        with monkeypatch.context() as patch:
            patch.setattr(trainer, "build", lambda _: objective)
            return make_training_actor(
                strategy_of(arguments, tmp_path, swap=objective.config, **saving), group
            )

    return make


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_killed_run_goes_on_as_if_it_had_not_been(name, group, make):
    config = MARKS.replaced(objective=name, options=OBJECTIVES[name])
    never_killed, killed = build(config), build(config)
    expected = [one_step(never_killed, step) for step in range(STEPS)]
    for step in range(KILLED_AFTER):
        assert torch.equal(one_step(killed, step), expected[step])
        make(killed).save_logs_and_checkpoints(step + 1, {}, {"global_step": step + 1})
    one_step(killed, KILLED_AFTER)  # it dies in this step, which a new process does again

    fresh = build(config)
    make(fresh).init_checkpoint_states()
    (states,) = group.async_run_method("get_checkpoint_states")
    assert (fresh.step, fresh.state_dict()) == (KILLED_AFTER, states["objective_state"])
    for step in range(KILLED_AFTER, STEPS):
        assert torch.equal(one_step(fresh, step), expected[step])
    assert fresh.state_dict() == never_killed.state_dict()

    # Without its state it would not: the test can fail.
    forgetful = build(config)
    assert not torch.equal(one_step(forgetful, KILLED_AFTER), expected[KILLED_AFTER])


def test_after_a_skipped_step_the_logs_are_written_and_no_checkpoint(group, make, capsys):
    logged, made = [], make(build(MARKS), **{"ckpt.save_steps": 2, "logger.logging_steps": 1})
    made.tensorboard_logger = SimpleNamespace(
        log_train=lambda step, logs: logged.append((step, logs["loss"]))
    )
    for step, reason in enumerate(
        (None, "it was not finite", "it was not finite", "again", None, None), 1
    ):
        made._skipped.observe(reason)
        made.save_logs_and_checkpoints(step, {"loss": step / 2}, {})
    assert group.saved == ["global_step6"]  # not 2 and 4
    assert logged == [(step, step / 2) for step in range(1, 7)]
    assert capsys.readouterr().out.count("no checkpoint is saved after step") == 2


def test_an_adapted_kl_coefficient_outlives_a_kill_and_a_fixed_one_is_the_flags(make):
    killed, fresh, fixed = (
        make(build(MARKS), **{"algo.kl.init_coef": 0.01, "algo.kl.target": target})
        for target in (0.05, 0.05, None)
    )
    killed.kl_ctl.update(
        0.1, 1000
    )  # twice the target: by a fifth for each horizon of 10,000 responses
    killed.save_logs_and_checkpoints(1, {}, {"global_step": 1})
    for resumed in (fresh, fixed):
        resumed.init_checkpoint_states()
    assert (
        fresh.kl_ctl.value
        == fresh.experience_maker.kl_ctl.value
        == pytest.approx(0.01 * (1 + 0.2 * 1000 / 10000))
    )
    assert fixed.kl_ctl.value == 0.01


def test_what_a_critic_has_learned_outlives_a_kill_and_a_batch_of_the_other_half(make):
    """In an asynchronous run a batch brings the state of the sampling objective, which has learned
    nothing.
    """
    config = MARKS.replaced(objective="length_critic")
    generator = torch.Generator().manual_seed(0)

    def response(length):
        steps = replace(rollout("", length), step_ends=(1, 3))
        return steps.with_signals(states=torch.randn(3, 6, generator=generator))

    def a_batch():
        groups = torch.randint(5, 40, (3, 4), generator=generator).tolist()
        return batch(*([response(length) for length in group] for group in groups))

    batches = [a_batch() for _ in range(3)]
    killed, never_killed, fresh = build(config), build(config), build(config)
    for step, each in enumerate(batches[:2], 1):
        sampling_half = build(config)
        for objective in (killed, never_killed):
            objective.resume(step, sampling_half.state_dict())
            objective.token_advantages(each)
    make(killed).save_logs_and_checkpoints(2, {}, {"global_step": 2})
    make(fresh).init_checkpoint_states()
    expected = never_killed.token_advantages(batches[2])
    assert torch.equal(fresh.token_advantages(batches[2]), expected)
    assert not torch.equal(build(config).token_advantages(batches[2]), expected)

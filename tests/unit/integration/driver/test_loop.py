"""The loop: steps, skipped steps, checkpoints, evaluations and what outlives a kill."""

import itertools
import math
import signal
from dataclasses import replace

import pytest
import ray
import torch
from support.actors import make_config
from support.loops import Actors, ListedBatches, make_loop, run_args
from support.metric_names import meaning
from support.objectives import MARKS, RIGHT, batch, rollout
from support.running import of_the_run

from openrlhf_swap.errors import ConfigError, NonFiniteError, StoppedBySignal
from openrlhf_swap.files import read_rows
from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.objectives.registry import build
from openrlhf_swap.process.ctrl_c import WARNING, saving_at_warning
from openrlhf_swap.runs import metrics
from openrlhf_swap.runs.checkpoints import BestCheckpoint
from openrlhf_swap.runs.metrics import METRICS

STEPS = 6
KILLED_AFTER = 3  # steps
SIZE = 3
OBJECTIVES = {
    "hapo": {},
    "a_dlp": {"target": "0.5"},
    "short_rl": {"tolerance": "5"},
    "lapo": {"first_stage_steps": "2"},
    "aalc": {"monitor_every": "2"},
}


@pytest.fixture(autouse=True)
def no_ray(monkeypatch):
    monkeypatch.setattr(ray, "get", lambda value, timeout=None: value)
    monkeypatch.setattr(ray, "put", lambda value: value)


def row(*words, **more):
    made = rollout(*words, **more)
    record = {"label": "42", "scores": made.reward, "rollout_log_probs": None}
    return replace(made, record=record)


def groups_of(objective):
    """Two problems, whose responses become ever shorter and less often right; None at the end."""
    step = objective.step
    if step == STEPS:
        return None
    if objective.monitor() is not None:
        shown = [rollout(RIGHT, 50, number > step) for number in range(STEPS)]
        objective.observe_monitor(batch(shown))
    groups = []
    for number, prompt in enumerate(("p", "q")):
        (request,) = objective.sampling(prompt, SIZE, 900)
        lengths = (500 - 60 * step, 700 - 80 * step + 7 * number, 90 + step)
        rights = (True, True, step + number < 3)
        pairs = zip(lengths, rights, strict=True)
        groups.append([row(RIGHT, n, right, request.prompt) for n, right in pairs])
    return groups


@pytest.fixture
def make(arguments, tmp_path):
    """Makes the loop of a run with this objective, its sampler, and the run's arguments."""

    def make(objective, actors, folder="run", evaluations=(), groups=groups_of, **changes):
        changes = {
            "ckpt.save_steps": 1,
            "ckpt.load_enable": True,
            "ckpt.path": str(tmp_path),
            "rollout.n_samples_per_prompt": SIZE,
            "rollout.batch_size": 2,
            "data.max_len": 2000,
            "train.full_determinism_enable": False,
            **changes,
        }
        args = run_args(arguments, tmp_path / folder, **changes)
        sampler = ListedBatches(args, objective, groups, evaluations)
        return make_loop(args, objective, sampler, actors), sampler

    (tmp_path / "_actor").mkdir()
    return make


class Killed(Exception):
    pass


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_killed_run_goes_on_as_if_it_had_not_been(name, make, tmp_path):
    config = MARKS.replaced(objective=name, options=OBJECTIVES[name])

    def run(actors, folder, limit=None):
        objective = build(config)

        def until_killed(objective):
            if objective.step == limit:
                raise Killed
            return groups_of(objective)

        loop, _ = make(objective, actors, folder, groups=until_killed)
        loop.fit()
        return objective

    calm = Actors()
    calm.checkpoint = {}
    expected = run(calm, "calm")
    killed = Actors()
    killed.checkpoint = {}
    with pytest.raises(Killed):
        run(killed, "killed", KILLED_AFTER)
    checkpoint = dict(killed.checkpoint)
    assert checkpoint["global_step"] == KILLED_AFTER
    done = len(killed.updates)
    found = run(killed, "killed")
    assert found.state_dict() == expected.state_dict()
    assert len(killed.updates) == STEPS == 2 * done
    for ours, theirs in zip(killed.updates, calm.updates, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            assert torch.equal(one, other)
    rows = of_the_run(read_rows(tmp_path / "calm" / METRICS))
    assert len(rows) == STEPS
    assert of_the_run(read_rows(tmp_path / "killed" / METRICS)) == rows
    names = {name for row in rows for name in row}
    for name in names - {"step"}:
        assert meaning(name)

    # Without its state it would not: the test can fail.
    forgetful = Actors()
    del checkpoint["objective_state"]
    forgetful.checkpoint = checkpoint
    run(forgetful, "forgetful")
    found = of_the_run(read_rows(tmp_path / "forgetful" / METRICS))
    assert len(found) == KILLED_AFTER
    assert found != rows[KILLED_AFTER:]


def test_the_phases_of_a_step_add_up_to_its_time(make, tmp_path, monkeypatch):
    """By the clock: scoring is a part of a phase, and what lies between the phases counts."""
    seconds = itertools.count()
    monkeypatch.setattr(metrics, "monotonic", lambda: next(seconds))  # a second a look
    objective = build(MARKS.replaced(objective="step_entropy"))
    loop, _ = make(objective, Actors(), **{"ckpt.load_enable": False})
    loop.fit()
    names = ("generation", "make_experience", "ppo_train", "broadcast", "other", "step_total")
    for row in read_rows(tmp_path / "run" / METRICS):
        assert [row[f"timing/{name}"] for name in names] == [1, 1, 1, 1, 5, 9]
        assert row["timing/score"] > 0


@pytest.fixture
def skipping(make):
    """A run whose updates are skipped in some of its steps, and its actors."""

    def run(skipped, evaluations=(), **changes):
        actors = Actors()
        objective = build(MARKS.replaced(objective="grpo"))

        def groups(objective):
            actors.status["swap/skipped_updates"] = int(objective.step + 1 in skipped)
            return groups_of(objective)

        settings = {"ckpt.load_enable": False, "run": {"max_skipped_steps": 3}, **changes}
        loop, _ = make(objective, actors, groups=groups, evaluations=evaluations, **settings)
        return loop, actors

    return run


def test_after_a_skipped_step_no_checkpoint_is_written(skipping, tmp_path, capsys):
    scores = [{"eval_default_pass1": share} for share in (0.9, 0.5, 0.6)]
    changes = {"ckpt.save_steps": 2, "eval.dataset": "x", "eval.steps": 2}
    loop, actors = skipping((2, 3, 4), scores, **changes, run={"max_skipped_steps": 4})
    loop.fit()
    tags = [saved["tag"] for saved in actors.saved]
    assert tags == ["global_step6", "best_global_step6"]  # not after 2 and 4, whatever they scored
    rows = list(read_rows(tmp_path / "run" / METRICS))
    assert [line["swap/skipped_steps"] for line in rows] == [0, 1, 2, 3, 3, 3]
    assert capsys.readouterr().out.count("no checkpoint is saved after step") == 2


def test_a_warning_of_the_time_limit_saves_after_its_step_and_ends(make, tmp_path, capsys):
    """The handler is there for the block alone; before the loop begins it counts as well."""
    actors = Actors()
    changes = {"ckpt.load_enable": False, "ckpt.save_steps": 100}
    objective = build(MARKS.replaced(objective="grpo"))

    def groups(objective):
        if objective.step == 2:
            signal.raise_signal(WARNING)
        return groups_of(objective)

    loop, _ = make(objective, actors, groups=groups, **changes)
    before = signal.getsignal(WARNING)
    with saving_at_warning(), pytest.raises(StoppedBySignal):
        loop.fit()
    assert [saved["tag"] for saved in actors.saved] == ["global_step3"]
    assert len(list(read_rows(tmp_path / "run" / METRICS))) == 3
    assert "SIGUSR1: the run saves after this step and ends" in capsys.readouterr().out
    assert signal.getsignal(WARNING) == before
    loop, _ = make(objective, Actors(), folder="again", **changes)  # of another run in the process
    loop.fit()


@pytest.mark.parametrize(
    ("skipped", "message"),
    [((2, 3, 4), "3 steps in a row were skipped"), ((6,), "the run ended with 1 skipped")],
)
def test_a_run_that_makes_no_steps_any_more_ends(skipping, skipped, message):
    loop, _ = skipping(skipped)
    with pytest.raises(NonFiniteError, match=message):
        loop.fit()


def test_rewards_that_are_not_finite_skip_the_update(make, tmp_path, capsys):
    class Broken(Objective):
        def rewards(self, batch):
            if self.step == 2:
                raise NonFiniteError("answer_logprobs[0] is nan")
            return super().rewards(batch)

    actors = Actors()
    objective = Broken(make_config(objective="test_loop:Broken"))
    loop, sampler = make(objective, actors, **{"ckpt.load_enable": False})
    loop.fit()
    assert len(actors.updates) == STEPS - 1 == sampler.updates
    assert "step 2 was skipped, because answer_logprobs[0] is nan" in capsys.readouterr().out


@pytest.mark.parametrize(("step", "evaluated"), [(4, True), (8, False), (6, False)])
def test_an_evaluation_that_was_interrupted_is_made_up_for(make, tmp_path, step, evaluated):
    """After the engines got the checkpoint's weights; at step 8 its line is there."""
    actors = Actors()
    actors.checkpoint = {"global_step": step}
    objective = build(MARKS.replaced(objective="grpo"))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "evaluations.jsonl").write_text('{"step": 8, "eval_a_pass1": 0.1}\n')
    scores = [{"eval_a_pass1": 0.5}]
    changes = {"eval.dataset": "x", "eval.steps": 4}
    loop, sampler = make(objective, actors, evaluations=scores, **changes)
    loop.resume()
    assert sampler.evaluated == ([(step, 1)] if evaluated else [])
    assert [saved["tag"] for saved in actors.saved] == [f"best_global_step{step}"] * evaluated


@pytest.mark.parametrize(
    ("asked", "key", "before"),
    [
        ("", "eval_c_pass1", 0.2),
        ("eval_c_pass1", "eval_c_pass1", 0.2),
        ("eval_a/b_pass1", "eval_a/b_pass1", -math.inf),  # 0.2 was the other metric's
    ],
)
def test_the_best_checkpoint_goes_by_the_metric_of_the_flag_also_after_a_resume(asked, key, before):
    best = BestCheckpoint(asked)
    best.resume({"best_eval_metric_key": "eval_c_pass1", "best_eval_metric_value": 0.2})
    assert best.key == key
    assert best.value == before
    logs = {"eval_a/b_pass1": 0.5, "eval_c_pass1": 0.25}
    assert best.observe(logs)
    assert best.value == logs[key]
    assert not best.observe({key: logs[key] - 0.1})
    assert best.value == logs[key]
    assert not BestCheckpoint("none").observe(logs)
    with pytest.raises(
        ConfigError, match=r"--ckpt\.best_metric_key is 'no', .* use one of eval_a/b"
    ):
        BestCheckpoint("no").observe(logs)

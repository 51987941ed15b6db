import json
import pickle
from types import SimpleNamespace

import pytest
import ray
from support.trainers import make_generate_actor, make_rollout_batch, make_training_actor, strategy_of

from openrlhf_swap.config import SwapConfig
from openrlhf_swap.integration.driver import async_trainer, trainer
from openrlhf_swap.integration.generation import sampling
from openrlhf_swap.objectives.registry import build


def test_a_batch_keeps_what_it_was_drawn_under_on_its_way():
    sent = pickle.loads(pickle.dumps(make_rollout_batch(["sample"], {"stage": 2}, 7)))
    assert (sent, sent.objective_state, sent.updates) == (["sample"], {"stage": 2}, 7)
    assert not async_trainer.RolloutBatch()


@pytest.fixture
def objective():
    """Stages of two steps."""
    return build(SwapConfig(objective="thinkprune", options={"limits": "300,200,100", "stage_steps": "2"}))


def make_generator(monkeypatch, objective, updates):
    """Draws a batch a call by the real way, from an engine that answers with the limit that it was given."""
    monkeypatch.setattr(async_trainer, "weight_updates", lambda _: updates.pop(0))
    stock = sampling.SamplesGenerator
    drawn = lambda self, **_: ([objective.sampling("p", 1, 320)[0].max_new_tokens], None, 1, False)  # noqa: E731
    monkeypatch.setattr(stock, "generate_samples", drawn)
    args = SimpleNamespace(train=SimpleNamespace(full_determinism_enable=False))
    strategy = SimpleNamespace(args=args)
    return async_trainer._BatchGenerator(stock(strategy, None, None, None, []), objective, None)


def test_stages_follow_the_batches_drawn_and_the_trainer_takes_the_state_of_its_batch(
    monkeypatch, objective, arguments, tmp_path
):
    generator = make_generator(monkeypatch, objective, [0, 0, 1, 2])
    batches = [generator.generate_samples()[0] for _ in range(4)]
    assert [list(batch) for batch in batches] == [[300], [300], [200], [200]]
    assert [batch.objective_state["stage"] for batch in batches] == [0, 0, 1, 1]

    # The trainer is three updates on when it gets the first batch of the second stage, and five at the last one.
    seen, its_own = [], build(objective.config)
    monkeypatch.setattr(trainer, "build", lambda _: its_own)
    actor = make_training_actor(strategy_of(arguments, tmp_path))
    step = lambda self, samples, step: seen.append(its_own.limit) or ({}, step + 1)  # noqa: E731
    monkeypatch.setattr(trainer.TrainerMixin, "train_step", step)
    monkeypatch.setattr(async_trainer, "weight_updates", lambda _: 3)
    assert actor.train_step(batches[2], 2) == ({"swap/batch_age": 2}, 3)
    assert actor.train_step(batches[1], 3) == ({"swap/batch_age": 3}, 4)
    assert seen == [200, 300]


def test_a_generator_goes_on_after_the_last_batch_of_a_checkpoint(
    monkeypatch, objective, arguments, tmp_path, prompts_file
):
    monkeypatch.setattr(async_trainer, "build", lambda _: objective)
    strategy = strategy_of(arguments, tmp_path, prompts_file)
    killed, resumed = make_generate_actor(strategy), make_generate_actor(strategy)
    drawing = iter(killed.prompts_dataloader)
    seen = [next(drawing) for _ in range(3)]
    position = killed.prompts_dataloader.state_dict()
    resumed.load_state_dict({"data_loader_state_dict": position, "global_step": 4, "objective_state": {"stage": 1}})
    assert (objective.step, objective.limit) == (4, 200)
    following = list(resumed.prompts_dataloader)
    assert following == list(drawing) and len(seen) + len(following) == 64
    generator = make_generator(monkeypatch, objective, [1])
    assert generator.generate_samples()[0] == [100]


def test_the_best_checkpoint_bears_the_step_of_the_weights_that_it_holds(monkeypatch, arguments, tmp_path, capsys):
    saved = []
    monkeypatch.setattr(ray, "get", lambda asked: asked)
    group = SimpleNamespace(async_run_method=lambda **asked: saved.append(asked) or [])
    actor = make_training_actor(strategy_of(arguments, tmp_path), group)
    # Two updates were made while the weights of step 4 were evaluated, and three in the worse evaluation of step 8.
    for evaluated, held, score in ((4, 6, 0.5), (8, 11, 0.4)):
        actor.save_best_checkpoint({"eval_default_pass1": score}, evaluated, {"global_step": held})
    (checkpoint,) = saved
    assert (checkpoint["tag"], checkpoint["client_states"]["global_step"]) == ("best_global_step6", 6)
    told = "[swap] best checkpoint: the weights after step 6; its score was measured after step 4\n"
    assert [line for line in capsys.readouterr().out.splitlines(True) if "best" in line] == [told]
    rows = [json.loads(line) for line in (tmp_path / "evaluations.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [4, 8]

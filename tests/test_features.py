"""The update itself, on the real actors: features of OpenRLHF against the plain run, and what must not happen."""

import copy
import os
import subprocess
from dataclasses import dataclass

import pytest
import torch
from actors import changed, make_config, make_experiences, makers, running_actors
from task import problems, prompt, shortest_trace

from openrlhf_swap import checkpoints
from openrlhf_swap.integration import random_state

pytestmark = pytest.mark.slow
UPDATE = {"actor.adam.lr": 1e-3, "train.micro_batch_size": 4}


def made_by_one_actor(actor_group, tokenizer, responses):
    """Sixteen responses in four micro-batches with SWAP's advantages."""
    _, swap_class = makers()
    actor_group[1].args.rollout.micro_batch_size = 4
    maker, made = make_experiences(swap_class, actor_group, tokenizer, responses, config=make_config())
    assert maker.metrics["swap/adv_process_absmean"] > 0
    assert len(made) == 4
    return made


@pytest.fixture(scope="module")
def experiences(actor_group, tokenizer, responses):
    return made_by_one_actor(actor_group, tokenizer, responses)


@pytest.fixture(scope="module")
def equally_long(actor_group, tokenizer, responses):
    """Responses of one length: for others the logged loss depends on how they were put into micro-batches.

    (OpenRLHF weights a micro-batch's loss by its tokens a second time when it logs it; what it trains on is right.)
    """
    chosen = [problem for problem, _ in zip(problems(13), range(40), strict=False) if len(problem.answer) == 3][:4]
    made = []
    for number, response in enumerate(responses):
        problem = chosen[number // 4]
        head = tokenizer(prompt(problem), add_special_tokens=False)["input_ids"]
        tail = tokenizer(shortest_trace(problem), add_special_tokens=False)["input_ids"]
        reward = float(number % 4 != 3)
        made.append(
            {
                **response,
                "prompt": prompt(problem),
                "label": problem.answer,
                "observation_tokens": head + tail,
                "action_ranges": [(len(head), len(head) + len(tail))],
                "reward": reward,
                "scores": reward,
            }
        )
    assert len({len(response["observation_tokens"]) for response in made}) == 1
    return made_by_one_actor(actor_group, tokenizer, made)


@dataclass
class Update:
    """What one update did: the logged metrics, and by how much it moved the log-probability of every action."""

    loss: float
    gradient_norm: float
    moved: torch.Tensor


def run_update(actors, experiences):
    import ray

    group, _ = actors
    before = log_probs(group, experiences)
    ray.get(group.async_run_method_batch("append", experience=copy.deepcopy(experiences)), timeout=300)
    status = ray.get(group.async_run_method("fit"), timeout=300)[0]
    assert status["swap/skipped_updates"] == 0
    return Update(status["policy_loss"], status["actor_grad_norm"], log_probs(group, experiences) - before)


def log_probs(group, experiences):
    import ray

    names = ("sequences", "action_mask", "attention_mask")
    inputs = {name: [getattr(batch, name) for batch in experiences] for name in names}
    results = ray.get(group.async_run_method_batch("forward", **inputs), timeout=300)
    batches = [batch for rank in results for batch in rank]
    return torch.cat([b[e.action_mask.bool()] for b, e in zip(batches, experiences, strict=True)])


@pytest.fixture(scope="module")
def plain(ray_session, arguments, equally_long, experiences):
    """One actor, ZeRO-2, no features."""
    with running_actors(changed(arguments, UPDATE)) as actors:
        return run_update(actors, equally_long), run_update(actors, experiences)


FEATURES = {
    "zero_1_ema_and_gradient_checkpointing": (
        {"ds.zero_stage": 1, "train.enable_ema": True, "actor.gradient_checkpointing_enable": True},
        1,
    ),
    "zero_3": ({"ds.zero_stage": 3}, 1),
    "dynamic_batch": ({"train.dynamic_batch_enable": True, "train.max_tokens_per_gpu": 500}, 1),
    "two_actors": ({"actor.num_gpus_per_node": 2}, 2),
    "four_actors": ({"actor.num_gpus_per_node": 4}, 4),
}


@pytest.mark.parametrize("name", FEATURES)
def test_a_feature_does_not_change_the_update(
    name, ray_session, arguments, equally_long, experiences, plain, tmp_path
):
    """The same sixteen responses give the same loss, gradient and step, up to bfloat16."""
    import ray

    changes, ranks = FEATURES[name]
    with running_actors(changed(arguments, {**UPDATE, **changes, "ckpt.path": str(tmp_path)}), ranks) as actors:
        updates = run_update(actors, equally_long), run_update(actors, experiences)
        saving = actors[0].async_run_method("save_checkpoint", tag="global_step2", client_states={"global_step": 2})
        ray.get(saving, timeout=300)
    for ours, expected in zip(updates, plain, strict=True):
        print(name, ours.loss, ours.gradient_norm, expected.loss, expected.gradient_norm)
        assert expected.moved.abs().mean() > 0.02  # far above what bfloat16 does to the same weights
        assert torch.corrcoef(torch.stack([ours.moved, expected.moved]))[0, 1] > 0.95
        assert ours.gradient_norm == pytest.approx(expected.gradient_norm, rel=0.05)
    if name != "dynamic_batch":  # logs its loss on another scale
        assert updates[0].loss == pytest.approx(plain[0].loss, abs=2e-3)

    # What is saved is complete, and can be loaded as data.
    assert checkpoints.newest(tmp_path) == "global_step2"
    random_state.forbid_pickles()
    files = sorted((tmp_path / "_actor" / "global_step2").glob("*.pt"))
    assert len(files) == 1 + 2 * ranks
    for file in files:
        assert torch.serialization.get_unsafe_globals_in_checkpoint(file) == []


def test_lora_trains_its_adapters(ray_session, arguments, experiences):
    with running_actors(changed(arguments, {**UPDATE, "ds.lora.rank": 4, "actor.adam.lr": 1e-2})) as actors:
        update = run_update(actors, experiences)
    assert update.gradient_norm > 0
    assert update.moved.abs().mean() > 0.01


def test_a_batch_that_is_not_finite_changes_nothing(ray_session, arguments, experiences, tmp_path):
    """And a checkpoint that does not fit on the disk leaves the one before it as it was."""
    import ray

    small = tmp_path / "small"
    small.mkdir()
    with running_actors(changed(arguments, {**UPDATE, "ckpt.path": str(small)})) as actors:
        group, _ = actors
        before = log_probs(group, experiences)
        broken = copy.deepcopy(experiences)
        broken[1].advantages *= float("nan")
        ray.get(group.async_run_method_batch("append", experience=broken), timeout=300)
        assert ray.get(group.async_run_method("fit"), timeout=300)[0]["swap/skipped_updates"] == 1
        assert torch.equal(log_probs(group, experiences), before)
        # The next batch trains as if nothing had been.
        assert run_update(actors, experiences).moved.abs().mean() > 0.02

        def save(tag):
            ray.get(group.async_run_method("save_checkpoint", tag=tag, client_states={"global_step": 1}), timeout=300)

        mounted = (
            os.geteuid() == 0
            and not subprocess.run(
                ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(small)], check=False
            ).returncode
        )
        if not mounted:
            pytest.skip("only root can mount the small disk")
        try:
            save("global_step1")  # 12 MB
            assert checkpoints.newest(small) == "global_step1"
            with pytest.raises(ray.exceptions.RayTaskError) as caught:
                save("global_step2")
            message = str(caught.value.cause)
            assert message.startswith(f"checkpoint global_step2 cannot be written to --ckpt.path {small} (")
            assert message.endswith("start again with --ckpt.load_enable to go on from global_step1")
            assert [folder.name for folder in (small / "_actor").glob("global_step*")] == ["global_step1"]
            assert checkpoints.recover(small).tag == "global_step1"
        finally:
            subprocess.run(["umount", "-l", str(small)], check=True)

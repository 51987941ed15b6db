"""The update itself, on the real actors: features of OpenRLHF against the plain run."""

import copy
import os
import shutil
import subprocess
from dataclasses import dataclass
from itertools import islice

import pytest
import ray
import torch
from support.actors import changed, learn_from, make_config, response_to, running_actors
from transformers import AutoModelForCausalLM

from openrlhf_swap.config import RunConfig
from openrlhf_swap.integration.policy.safe_loading import forbid_pickles
from openrlhf_swap.quickstart.addition import problems, prompt, shortest_trace
from openrlhf_swap.runs import checkpoints

pytestmark = pytest.mark.slow
UPDATE = {"actor.adam.lr": 1e-3, "train.micro_batch_size": 4, "rollout.micro_batch_size": 4}


def made_by(actors, tokenizer, responses):
    """Sixteen responses in four micro-batches with SWAP's advantages."""
    learned = learn_from(actors, tokenizer, responses, make_config())
    assert learned.metrics["swap/adv_process_absmean"] > 0
    assert len(learned.experiences) == 4
    return learned.experiences


def equally_long_responses(tokenizer):
    """Sixteen responses of one length.

    For others the logged loss depends on how they were put into micro-batches, because OpenRLHF
    weights a micro-batch's loss by its tokens a second time when it logs it.
    """
    drawn = islice(problems(13), 40)
    chosen = [problem for problem in drawn if len(problem.answer) == 3][:4]
    made = []
    for problem in chosen:
        text = shortest_trace(problem)
        for number in range(4):
            made.append(response_to(tokenizer, prompt(problem), problem.answer, text, number != 3))
    assert len({len(response["observation_tokens"]) for response in made}) == 1
    return made


@pytest.fixture(scope="module")
def half_wrong(responses):
    """Responses of which the first eight are incorrect, so that the first rank scores nothing."""
    wrong = [{**response, "reward": 0.0, "scores": 0.0} for response in responses[:8]]
    return wrong + responses[8:]


@dataclass
class Marked:
    """The answer's log-probabilities and the advantages of each response."""

    answer_logprobs: list
    advantages: list


def marked_by(actors, tokenizer, responses):
    learned = learn_from(actors, tokenizer, responses, make_config())
    answer_logprobs = [rollout.answer_logprobs for rollout in learned.rollouts]
    return Marked(answer_logprobs, [advantages for advantages, _ in learned.rows])


def assert_marked_alike(found, expected):
    for ours, theirs in zip(found.answer_logprobs, expected.answer_logprobs, strict=True):
        assert ours == pytest.approx(theirs, rel=0.05, abs=0.1)
    for ours, theirs in zip(found.advantages, expected.advantages, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0.1)


@dataclass
class Update:
    """The metrics of an update, and how far it moved the log-probability of every action."""

    loss: float
    gradient_norm: float
    moved: torch.Tensor


def fit(group, experiences):
    ray.get(group.async_run_method_batch("append", experience=experiences), timeout=300)
    return ray.get(group.async_run_method("fit"), timeout=300)


def run_update(actors, experiences):
    group, _ = actors
    before = log_probs(group, experiences)
    status = fit(group, copy.deepcopy(experiences))[0]
    assert status["swap/skipped_updates"] == 0
    moved = log_probs(group, experiences) - before
    return Update(status["policy_loss"], status["actor_grad_norm"], moved)


def assert_skips_what_is_not_finite(group, experiences):
    """No actor changes a weight if one of them has a NaN in one micro-batch."""
    before = log_probs(group, experiences)
    broken = copy.deepcopy(experiences)
    broken[1].advantages *= float("nan")
    statuses = fit(group, broken)
    assert [status["swap/skipped_updates"] for status in statuses] == [1] * len(statuses)
    # Every actor reports the largest peak of all.
    assert len({status["memory/policy_peak_gib"] for status in statuses}) == 1
    assert torch.equal(log_probs(group, experiences), before)


def log_probs(group, experiences):
    """The log-probabilities of all actions of the experiences."""
    names = ("sequences", "action_mask", "attention_mask")
    inputs = {name: [getattr(batch, name) for batch in experiences] for name in names}
    results = ray.get(group.async_run_method_batch("forward", **inputs), timeout=300)
    batches = [batch for rank in results for batch in rank]
    found = []
    for batch, experience in zip(batches, experiences, strict=True):
        found.append(batch[experience.action_mask.bool()])
    return torch.cat(found)


@dataclass
class Plain:
    """What the plain run makes of responses: two batches, and the update by each of them."""

    equally_long: list
    experiences: list
    marked: Marked
    updates: list[Update]


@pytest.fixture(scope="module")
def plain(ray_session, arguments, tokenizer, responses, half_wrong):
    """One actor, ZeRO-2, no features, and all logits at once, as in OpenRLHF."""
    changes = {**UPDATE, "swap_run": RunConfig(logits_chunk=0)}
    with running_actors(changed(arguments, changes)) as actors:
        equally_long = made_by(actors, tokenizer, equally_long_responses(tokenizer))
        experiences = made_by(actors, tokenizer, responses)
        marked = marked_by(actors, tokenizer, half_wrong)
        updates = [run_update(actors, batch) for batch in (equally_long, experiences)]
    return Plain(equally_long, experiences, marked, updates)


FEATURES = {
    "zero_1_with_dynamic_batches": {
        "ds.zero_stage": 1,
        "ds.packing_samples": True,  # as OpenRLHF does with dynamic batches in any case
        "train.dynamic_batch_enable": True,
        "train.max_tokens_per_gpu": 500,
        "rollout.max_tokens_per_gpu": 500,
        "ckpt.save_hf": True,
        "actor.gradient_checkpointing_enable": True,
    },
    "two_actors": {"actor.num_gpus_per_node": 2},
    "zero_3": {"ds.zero_stage": 3},
}
# Updates of ZeRO-3 are seen in test_scoring_ranks.py and test_gpu_path.py.
ON_REQUEST = {"zero_3"} if "TEST_SLOW" not in os.environ else set()


@pytest.mark.parametrize("name", sorted(FEATURES.keys() - ON_REQUEST))
def test_a_feature_does_not_change_the_update(
    name, ray_session, arguments, tokenizer, half_wrong, plain, tmp_path
):
    """Sixteen responses give the same advantages, loss, gradient and step, up to bfloat16."""
    ranks = FEATURES[name].get("actor.num_gpus_per_node", 1)
    changes = {**UPDATE, **FEATURES[name], "ckpt.path": str(tmp_path)}
    with running_actors(changed(arguments, changes), ranks) as actors:
        marked = marked_by(actors, tokenizer, half_wrong)
        assert_skips_what_is_not_finite(actors[0], plain.experiences)
        updates = [run_update(actors, batch) for batch in (plain.equally_long, plain.experiences)]
        saving = actors[0].async_run_method(
            "save_checkpoint", tag="global_step2", client_states={"global_step": 2}
        )
        ray.get(saving, timeout=300)
    scored = [logprobs for logprobs in marked.answer_logprobs if logprobs]
    assert len(scored) == sum(response["reward"] for response in half_wrong) > 0
    assert_marked_alike(marked, plain.marked)
    # The second update starts where the first one ended, which bfloat16 lets differ a little.
    for ours, expected, tolerance in zip(updates, plain.updates, (0.02, 0.1), strict=True):
        # This is far above what bfloat16 does to the same weights.
        assert expected.moved.abs().mean() > 0.02
        assert torch.corrcoef(torch.stack([ours.moved, expected.moved]))[0, 1] > 0.95
        assert ours.gradient_norm == pytest.approx(expected.gradient_norm, rel=tolerance)
    if "train.dynamic_batch_enable" not in FEATURES[name]:  # these log it on another scale
        assert updates[0].loss == pytest.approx(plain.updates[0].loss, abs=2e-3)

    # What is saved is complete, and can be loaded as data.
    assert checkpoints.newest(tmp_path) == "global_step2"
    forbid_pickles()
    files = sorted((tmp_path / "_actor" / "global_step2").glob("*.pt"))
    assert len(files) == 1 + 2 * ranks
    for file in files:
        assert torch.serialization.get_unsafe_globals_in_checkpoint(file) == []
    if "ckpt.save_hf" in FEATURES[name]:
        exported = AutoModelForCausalLM.from_pretrained(tmp_path / "global_step2_hf")
        assert exported.dtype == torch.bfloat16


def test_an_update_that_compares_with_its_own_log_probabilities(ray_session, arguments, plain):
    """Zeros in the place of the old ones give the plain run's first update, up to bfloat16.

    Its second one compares with log-probabilities from before the first.
    """
    changes = {**UPDATE, "swap_run": RunConfig(logits_chunk=0, reuse_logprobs=True)}
    unread = copy.deepcopy(plain.equally_long)
    for experience in unread:
        experience.action_log_probs.zero_()
    with running_actors(changed(arguments, changes)) as actors:
        update = run_update(actors, unread)
    expected = plain.updates[0]
    assert update.loss == pytest.approx(expected.loss, abs=2e-3)
    assert update.gradient_norm == pytest.approx(expected.gradient_norm, rel=0.02)
    assert torch.corrcoef(torch.stack([update.moved, expected.moved]))[0, 1] > 0.99


@pytest.fixture
def small_disk(tmp_path):
    """A folder on a disk of 16 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False).returncode:
        yield None  # only root can mount it
        return
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_lora_trains_its_adapters_and_a_checkpoint_that_does_not_fit_leaves_the_one_before(
    ray_session, arguments, tokenizer, half_wrong, plain, small_disk
):
    changes = {**UPDATE, "ds.lora.rank": 4, "actor.adam.lr": 1e-2}
    if small_disk:
        changes["ckpt.path"] = str(small_disk)
    with running_actors(changed(arguments, changes)) as actors:
        assert_marked_alike(marked_by(actors, tokenizer, half_wrong), plain.marked)
        update = run_update(actors, plain.experiences)
        assert update.gradient_norm > 0
        assert update.moved.abs().mean() > 0.01
        if small_disk:
            assert_the_checkpoint_before_stays(actors[0], small_disk)


def assert_the_checkpoint_before_stays(group, disk):
    def save(tag):
        states = {"global_step": 1}
        saving = group.async_run_method("save_checkpoint", tag=tag, client_states=states)
        ray.get(saving, timeout=300)

    save("global_step1")
    room = shutil.disk_usage(disk).free
    assert checkpoints.newest(disk) == "global_step1"
    filler = disk / "filler"
    filler.write_bytes(b"0" * (room - 2**20))
    with pytest.raises(ray.exceptions.RayTaskError) as caught:
        save("global_step2")
    message = str(caught.value.cause)
    assert message.startswith(f"checkpoint global_step2 cannot be written to --ckpt.path {disk} (")
    assert message.endswith("--ckpt.load_enable to resume from global_step1")
    assert checkpoints.newest(disk) == "global_step1"
    assert checkpoints.recover(disk)[0] == "global_step1"  # deletes the half of the other one
    left = [folder.name for folder in (disk / "_actor").glob("global_step*")]
    assert left == ["global_step1"]

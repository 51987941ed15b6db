"""The sampler with the real rollout actor and grader; a few lines stand for vLLM and Ray."""

import asyncio
from types import SimpleNamespace

import pytest
import ray
from openrlhf.utils.agent import SingleTurnAgentExecutor
from support.actors import CLOSE, changed, make_config
from support.loops import run_args

from openrlhf_swap.config import RunConfig
from openrlhf_swap.integration.driver.sampler import Sampler
from openrlhf_swap.integration.engine.actor import SwapRolloutActor
from openrlhf_swap.objectives.registry import build
from openrlhf_swap.rewards.openrlhf_reward import reward_func
from openrlhf_swap.rollouts.reader import StepReader

THOUGHT = "ones: 1+3+0=04\nwait ones: 1+3+0=04\ntens: 2+1+0=03\nhundreds: 1+1+0=02\n"
PROMPTS = {
    "<|user|>What is 121 + 113?<|assistant|><think>\n": "234",
    "<|user|>What is 5?<|assistant|><think>\n": "5",
}
GROUP = 3


class Engine(SwapRolloutActor):
    """The rollout actor on an engine that thinks `THOUGHT`, and then answers 234, or at times 7."""

    def __init__(self, tokenizer, max_length, said=None):
        self.asked = []
        self._tokenizer = tokenizer
        self._max_length = max_length
        self._budget = None
        self._old_thoughts = None
        self._said = said
        self.executor = SingleTurnAgentExecutor(None)
        self.executor.reward_endpoints = ["in this process"]
        self.executor.reward_func = reward_func

    async def generate(self, ids, params, multi_modal_data=None):
        text = self._tokenizer.decode(ids)
        self.asked.append((text, params.max_tokens, params.seed))
        answer = "7}" if params.seed and params.seed % 2 else "234}"
        if self._said:
            said = self._said(text, len(self.asked))
        elif text.endswith("{"):
            said = answer + "<|end|>"
        else:
            said = ("" if "</think>" in text else THOUGHT) + CLOSE + answer
        new = self._tokenizer(said, add_special_tokens=False)["input_ids"][: params.max_tokens]
        output = SimpleNamespace(token_ids=new, finish_reason="stop", logprobs=None)
        return SimpleNamespace(outputs=[output])


class Answer:
    """A call's reference, whose value is there."""

    def __init__(self, value):
        self.value = value


class Loader(list):
    """OpenRLHF's loader of rows, which keeps its place."""

    @property
    def dataset(self):
        return [(*source, *text, *label, None) for source, text, label, _ in self]

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state):
        self.first = state["place"]

    def __iter__(self):
        begun = getattr(self, "first", 0)
        self.first = 0
        for number in range(begun, len(self)):
            self.place = number + 1
            yield self[number]


def loader_of(prompts):
    rows = [(["data"], [text], [label], [None]) for text, label in prompts.items()]
    return Loader(rows)


@pytest.fixture
def make(arguments, tokenizer, monkeypatch):
    """Makes a sampler of an objective, and the engine that it asks."""
    monkeypatch.setattr(ray, "wait", lambda refs, timeout: (refs[-1:], refs[:-1]))  # the last first
    monkeypatch.setattr(ray, "get", lambda refs: [ref.value for ref in refs])

    def make(objective, prompts=PROMPTS, max_len=200, new_tokens=150, said=None, **changes):
        changes = {
            "swap": objective.config,
            "rollout.n_samples_per_prompt": GROUP,
            "rollout.batch_size": 2,
            "rollout.max_new_tokens": new_tokens,
            "rollout.temperature": 0.7,
            "eval.n_samples_per_prompt": GROUP,
            "eval.temperature": 0.7,
            "data.max_len": max_len,
            "train.full_determinism_enable": True,
            "train.seed": 3,
            **changes,
        }
        args = changed(run_args(arguments, "."), changes)
        reader = StepReader(
            tokenizer, objective.config.end_of_thought, *objective.config.segmentation
        )
        engine = Engine(tokenizer, max_len, said)

        def respond(*requests):
            return Answer(asyncio.run(SwapRolloutActor.respond(engine, *requests)))

        handle = SimpleNamespace(respond=SimpleNamespace(remote=respond))
        loader = loader_of(prompts)
        return Sampler(args, loader, loader_of(prompts), [handle], objective, reader), engine

    return make


START = {"episode": 0, "total_consumed_prompts": 0, "data_loader_state_dict": {}}


@pytest.fixture
def drawn(make):
    """The first batch of an objective: its rollouts, its metrics, and what the engine was asked."""

    def draw(objective):
        sampler, engine = make(objective)
        batch = next(sampler.batches(START))
        first, second = batch.groups
        assert len(first) == len(second) == GROUP
        return [*first, *second], batch.metrics, engine.asked

    return draw


def vsrm():
    options = {
        "words": "wait,tens",
        "first_characters": "5",
        "apart_characters": "5",
        "answers": "4",
    }
    return build(make_config(objective="vsrm", options=options))


def test_graded_continuations_change_no_trained_token(drawn, tokenizer):
    plain, *_ = drawn(build(make_config(objective="grpo")))
    rollouts, metrics, asked = drawn(vsrm())
    for ours, theirs in zip(rollouts, plain, strict=True):
        assert ours.response_ids == theirs.response_ids
        assert ours.reward == theirs.reward
        assert ours.truncated == theirs.truncated

    # Two cuts and the end of the thought, each asked four times after the closed thought.
    first = rollouts[0]
    other = rollouts[3]
    cuts = ["ones: 1+3+0=04\n", "ones: 1+3+0=04\nwait ones: 1+3+0=04\n", THOUGHT]
    for text, (kept, accuracy) in zip(cuts, first.probes, strict=True):
        assert tokenizer.decode(first.response_ids[:kept]) == text
        seeds = {seed for said, _, seed in asked if said == f"{first.prompt}{text}</think>"}
        assert len(seeds) == 4
        assert accuracy == sum(seed % 2 == 0 for seed in seeds) / 4
    assert [accuracy for _, accuracy in other.probes] == [0, 0, 0]  # its answer is 5
    # "</think>" is there; "\n\n", the heading, the box, three digits or one, and "}".
    least = len(tokenizer(CLOSE[8:] + "7}", add_special_tokens=False)["input_ids"])
    most = len(tokenizer(CLOSE[8:] + "234}", add_special_tokens=False)["input_ids"])
    assert 12 * least <= first.metadata["continued_tokens"] <= 12 * most
    assert metrics["swap/continued_tokens"] > 0
    assert metrics["timing/continuations"] >= 0


def test_draws_can_be_repeated_and_differ_from_cut_to_cut(drawn):
    _, _, asked = drawn(vsrm())
    _, _, again = drawn(vsrm())
    assert sorted(asked) == sorted(again)
    seeds = {seed for text, _, seed in asked if text.endswith("</think>")}
    # Problems, cuts, answers; the responses of a problem are alike here.
    assert len(seeds) == 2 * 3 * 4


def prompts_of(batch):
    """The prompt of each group of a batch."""
    return [group[0].prompt for group in batch.groups]


def test_dropped_groups_are_replaced_in_the_order_of_the_prompts(make, capsys):
    """Of these mean scores those of 0 and 1 are dropped."""
    means = (0, 1, 0.2, 0.3, 1, 0.4, 0.5, 0, 0.6)
    prompts = {f"{number}: {mean}?": str(mean) for number, mean in enumerate(means)}
    changes = {
        "algo.dynamic_filtering_enable": True,
        "algo.dynamic_filtering_range": (0.0, 1.0),
        "rollout.n_samples_per_prompt": 2,
    }
    sampler, engine = make(build(make_config(objective="grpo")), prompts, **changes)
    engine.executor.reward_func = lambda queries, given, labels: {"rewards": float(labels[0])}
    first, second = sampler.batches(START)
    assert prompts_of(first) == ["2: 0.2?", "3: 0.3?"]
    assert first.metrics["dynamic_filtering_pass_rate"] == 50
    assert first.position["data_loader_state_dict"] == {"place": 4}
    assert prompts_of(second) == ["5: 0.4?", "6: 0.5?"]
    assert second.metrics["dynamic_filtering_pass_rate"] == pytest.approx(200 / 3)
    assert second.position["data_loader_state_dict"] == {"place": 7}
    assert "the last 1 prompts of this episode do not fill a batch" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "end"),
    [
        ({"swap_run": RunConfig(training_steps=5)}, ", and the run ends after step 1 of 5"),
        ({"train.num_episodes": 2}, ""),
    ],
)
def test_a_run_says_that_the_filter_left_nothing_to_train_on(make, capsys, changes, end):
    filtering = {
        "algo.dynamic_filtering_enable": True,
        "algo.dynamic_filtering_range": (0.0, 1.0),
    }
    prompts = {"one?": "5", "two?": "5"}
    sampler, engine = make(build(make_config(objective="grpo")), prompts, **filtering, **changes)
    batches = sampler.batches(START)
    engine.executor.reward_func = lambda queries, given, labels: {"rewards": 0.5}
    next(batches)
    engine.executor.reward_func = lambda queries, given, labels: {"rewards": 1.0}  # all solved
    assert list(batches) == []
    said = capsys.readouterr().out
    assert f"in episode 1, so this episode trained nothing{end}: take" in said


def test_a_prompt_counts_in_each_of_its_data_sources(make):
    """Of two sources that share a prompt each has the share of its own two rows."""
    sampler, engine = make(build(make_config(objective="grpo")))
    shared, other = PROMPTS
    rows = [("a", shared, "0"), ("a", other, "0"), ("b", shared, "1"), ("b", other, "1")]
    loaded = [([source], [text], [label], [None]) for source, text, label in rows]
    sampler._evaluation_prompts = loaded
    engine.executor.reward_func = lambda queries, given, labels: {"rewards": float(labels[0])}
    metrics = sampler.evaluate(1)
    assert metrics["eval_a_pass1"] == 0
    assert metrics["eval_b_pass1"] == 1
    assert metrics["eval_num_samples"] == 4 * GROUP


@pytest.mark.parametrize(("rows", "steps"), [(5, 3), (9, 3), (4, 4), (1, 0)])
def test_a_run_of_so_many_steps_passes_over_its_data_as_often_as_they_take(make, rows, steps):
    prompts = {f"{number}?": "5" for number in range(rows)}
    run = RunConfig(training_steps=steps or 3)  # one row gives no step
    sampler, _ = make(build(make_config(objective="grpo")), prompts, swap_run=run)
    batches = list(sampler.batches(START))
    assert len(batches) == steps
    for number, batch in enumerate(batches, 1):
        assert batch.objective_step == number
        assert batch.position["episode"] == (number - 1) // (rows // 2)
        # A run that goes on from here ends at the same step.
        objective = build(make_config(objective="grpo"))
        objective.resume(number)
        again, _ = make(objective, prompts, swap_run=run)
        assert len(list(again.batches(batch.position))) == steps - number


def test_sampling_goes_on_where_a_checkpoint_was(make):
    prompts = {f"{number}?": "5" for number in range(5)}
    objective = build(make_config(objective="grpo"))

    def batches_from(position):
        sampler, _ = make(objective, prompts, **{"train.num_episodes": 2})
        return list(sampler.batches(position))

    batches = batches_from(START)
    whole = [prompts_of(batch) for batch in batches]
    assert whole == [["0?", "1?"], ["2?", "3?"]] * 2
    for number, batch in enumerate(batches, 1):
        assert batch.position["total_consumed_prompts"] == 2 * number
        rest = batches_from(batch.position)
        assert [prompts_of(batch) for batch in rest] == whole[number:]

"""The sampler with the real rollout actor and grader; a few lines stand for vLLM and Ray."""

import asyncio
from types import SimpleNamespace

import pytest
import ray
from openrlhf.utils.agent import SingleTurnAgentExecutor
from support.actors import CLOSE, changed, make_config
from support.loops import run_args

from openrlhf_swap.config import RunConfig
from openrlhf_swap.errors import CompatibilityError, ConfigError, DataError, ObjectiveError
from openrlhf_swap.flags.configuration import configure
from openrlhf_swap.integration.driver.sampler import Drawn, Part, Sampler
from openrlhf_swap.integration.engine.actor import SwapRolloutActor
from openrlhf_swap.objectives.base import Continuation, Objective, SamplingRequest
from openrlhf_swap.objectives.registry import OBJECTIVES, build
from openrlhf_swap.rewards.openrlhf_reward import reward_func
from openrlhf_swap.rollouts.rollout import Rollout, StepReader

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
        begun, self.first = getattr(self, "first", 0), 0
        for number in range(begun, len(self)):
            self.place = number + 1
            yield self[number]


def loader_of(prompts):
    return Loader([(["data"], [text], [label], [None]) for text, label in prompts.items()])


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

    def draw(objective, **changes):
        sampler, engine = make(objective, **changes)
        batch = next(sampler.batches(START))
        assert [len(group) for group in batch.groups] == [GROUP, GROUP]
        return [rollout for group in batch.groups for rollout in group], batch.metrics, engine.asked

    return draw


def vsrm(**more):
    options = {
        "words": "wait,tens",
        "first_characters": "5",
        "apart_characters": "5",
        "answers": "4",
        **more,
    }
    return build(make_config(objective="vsrm", options=options))


def test_graded_continuations_change_no_trained_token(drawn, tokenizer):
    plain, *_ = drawn(build(make_config(objective="grpo")))
    rollouts, metrics, asked = drawn(vsrm())
    for ours, theirs in zip(rollouts, plain, strict=True):
        assert ours.response_ids == theirs.response_ids
        assert (ours.reward, ours.truncated) == (theirs.reward, theirs.truncated)

    # Two cuts and the end of the thought, each asked four times after the closed thought.
    first, other = rollouts[0], rollouts[3]
    cuts = ["ones: 1+3+0=04\n", "ones: 1+3+0=04\nwait ones: 1+3+0=04\n", THOUGHT]
    assert [tokenizer.decode(first.response_ids[:kept]) for kept, _ in first.probes] == cuts
    for text, (_, accuracy) in zip(cuts, first.probes, strict=True):
        seeds = {seed for said, _, seed in asked if said == f"{first.prompt}{text}</think>"}
        assert accuracy == sum(seed % 2 == 0 for seed in seeds) / 4 and len(seeds) == 4
    assert [accuracy for _, accuracy in other.probes] == [0, 0, 0]  # its answer is 5
    # "</think>" is there; "\n\n", the heading, the box, three digits or one, and "}".
    ends = [tokenizer(CLOSE[8:] + e, add_special_tokens=False)["input_ids"] for e in ("7}", "234}")]
    total = first.metadata["continued_tokens"]
    assert 12 * len(ends[0]) <= total <= 12 * len(ends[1])
    assert metrics["swap/continued_tokens"] > 0 and metrics["timing/continuations"] >= 0


def test_nothing_to_cut_asks_for_nothing(drawn):
    _, metrics, asked = drawn(vsrm(first_characters="500"))
    assert len(asked) == 2 * GROUP
    assert metrics["swap/continued_tokens"] == 0


def test_joining_continuations_are_trained_on(drawn, tokenizer):
    options = {"shares": "20,60", "phrase": CLOSE, "answer_tokens": "9"}
    seedless = {"train.full_determinism_enable": False}
    objective = build(make_config(objective="jet", options=options))
    rollouts, _, asked = drawn(objective, **seedless)
    found = [tokenizer.decode(rollout.response_ids) for rollout in rollouts]
    assert found[0] == THOUGHT + CLOSE + "234}<|end|>"  # jet puts the end token there
    for text, share in zip(found[1:3], (0.2, 0.6), strict=True):
        kept, _, behind = text.partition("</think>")
        assert THOUGHT.startswith(kept) and abs(len(kept) - share * len(found[0])) < 8
        assert behind == CLOSE[8:] + "234}<|end|>"
    assert [rollout.reward for rollout in rollouts] == [1, 1, 1, 0, 0, 0]
    assert {rollout.prompt for rollout in rollouts[:3]} == {next(iter(PROMPTS))}
    kept = [rollout.metadata["kept"] for rollout in rollouts[:3]]
    assert kept[0] == len(rollouts[0].response_ids) - 1 and kept[1] < kept[2]
    assert {tokens for text, tokens, _ in asked if text.endswith("{")} == {9}


def test_draws_can_be_repeated_and_differ_from_cut_to_cut(drawn):
    asked = [sorted(drawn(vsrm())[2]) for _ in range(2)]
    assert asked[0] == asked[1]
    seeds = {seed for text, _, seed in asked[0] if text.endswith("</think>")}
    # Problems, cuts, answers; the responses of a problem are alike here.
    assert len(seeds) == 2 * 3 * 4


def test_less_is_kept_where_the_context_is_full(drawn, tokenizer):
    prompt, bridge, thought = (
        len(tokenizer(text, add_special_tokens=False)["input_ids"])
        for text in (next(iter(PROMPTS)), CLOSE, THOUGHT)
    )
    options = {"shares": "50,99", "phrase": CLOSE, "answer_tokens": "6"}
    objective = build(make_config(objective="jet", options=options))
    limit = prompt + thought + bridge + 5
    seedless = {"train.full_determinism_enable": False}
    rollouts, _, asked = drawn(objective, max_len=limit, new_tokens=limit - prompt, **seedless)
    # The whole response has 4 tokens behind its box, and jet's end token. At 99% of it, one token
    # has room behind another box; the end token behind that is beyond the context, and is dropped.
    lengths = [len(rollout.response_ids) for rollout in rollouts[:3]]
    assert lengths[::2] == [limit - prompt, limit - prompt]
    first = next(iter(PROMPTS))
    boxes = [n for text, n, _ in asked if text.startswith(first) and text.endswith("{")]
    assert boxes == [6, 1]
    with pytest.raises(ConfigError, match=r"--data\.max_len is \d+, which leaves no room for what"):
        drawn(objective, max_len=prompt + bridge, new_tokens=bridge)


def test_a_prompt_that_the_objective_lengthens_is_not_cut(make, tokenizer):
    longest = max(len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in PROMPTS)
    objective = build(make_config(objective="autothink"))
    sampler, engine = make(objective, max_len=longest + 99, new_tokens=99)
    sampler.evaluate(1)
    for prompt in PROMPTS:
        asked = objective.eval_prompt(prompt)
        room = longest + 99 - len(tokenizer(asked, add_special_tokens=False)["input_ids"])
        assert {tokens for text, tokens, _ in engine.asked if text == asked} == {min(99, room)}
    assert any(tokens < 99 for _, tokens, _ in engine.asked)


def test_an_evaluation_continues_nothing_and_asks_as_the_objective_asks(make):
    sampler, engine = make(vsrm(), **{"train.full_determinism_enable": False})
    metrics = sampler.evaluate(1)
    assert len(engine.asked) == 2 * GROUP == metrics["eval_num_samples"]
    assert metrics["eval_data_pass1"] == 0.5
    objective = build(make_config(objective="autothink").replaced(start_of_thought="<think>"))
    sampler, engine = make(objective)
    sampler.evaluate(1)
    assert {text for text, *_ in engine.asked} == {prompt + "...\n" for prompt in PROMPTS}


def test_an_evaluation_counts_verdicts_and_rewards_only_without_them(make):
    for verdict, counted in ((0.0, 0.0), (1.0, 1.0), (None, 0.9)):
        sampler, engine = make(vsrm())
        logs = {} if verdict is None else {"swap/graded_correct": verdict}
        engine.executor.reward_func = lambda *_, logs=logs: {"rewards": 0.9, "extra_logs": logs}
        assert sampler.evaluate(1)["eval_data_pass1"] == pytest.approx(counted)


def test_the_engines_keep_beginnings_only_where_something_is_continued():
    names = ("vsrm", "jet", "vsrm_scores", "swap")
    runs = {name: configure(["--swap.objective", name], on_cpu=False) for name in names}
    keeping = [name for name, run in runs.items() if run.args.vllm.enable_prefix_caching]
    assert keeping == ["vsrm", "jet"]


class Short(Objective):
    """Leaves its groups incomplete."""

    continues = "join"

    def continuations(self, rollout, reader):
        return [Continuation(1, "", 5)] if rollout.answer == "234" else []


def test_a_group_of_another_size_is_refused(drawn):
    with pytest.raises(ConfigError, match=r"a group with 6 responses, but --rollout\.n_samples_"):
        drawn(Short(make_config(objective="test_sampler:Short")))
    with pytest.raises(ObjectiveError, match="keeps -1 tokens of the response; use at least 0"):
        Continuation(-1, "", 9)


class TwoParts(Objective):
    """Asks twice for the same text, with other forced tokens behind the prompt in one part."""

    def sampling(self, prompt, count, max_new_tokens):
        forced = SamplingRequest(prompt, 1, max_new_tokens, "ones", 0.25)
        return [SamplingRequest(prompt, count - 1, max_new_tokens, "", 0.75), forced]


def test_a_part_stays_beside_its_responses(drawn, tokenizer):
    rollouts, _, asked = drawn(TwoParts(make_config(objective="test_sampler:TwoParts")))
    found = [(r.metadata["part"], r.metadata["chance"], r.metadata["forced"]) for r in rollouts]
    assert found == [(0, 0.75, 0), (0, 0.75, 0), (1, 0.25, 1)] * 2
    begun = [tokenizer.decode(rollout.response_ids).startswith("onesones") for rollout in rollouts]
    assert begun == [False, False, True] * 2
    assert {rollout.prompt for rollout in rollouts} == set(PROMPTS)
    assert len(asked) == 6


def test_a_forced_beginning_that_merges_with_the_prompt_is_refused(make):
    sampler, _ = make(build(make_config(objective="grpo")))
    part = Part(0, SamplingRequest("p", 1, 9, "ones"))
    merged = Rollout("pones", "4", [1], [5, 6], 1.0)
    with pytest.raises(CompatibilityError, match="the tokenizer merges 'ones' with the prompt"):
        sampler.finish(Drawn(part, merged))


def scored(*means):
    """Prompts by the mean score of their groups of two, and an engine that gives it."""
    prompts = {f"{number}: {mean}?": str(mean) for number, mean in enumerate(means)}
    return prompts, lambda queries, given, labels: {"rewards": float(labels[0])}


@pytest.fixture
def filtered(make):
    """An episode of prompts with the filter: its batches' prompts, their rates, and the rounds."""

    def run(*means, low=0.0, high=1.0):
        prompts, grade = scored(*means)
        changes = {
            "algo.dynamic_filtering_enable": True,
            "algo.dynamic_filtering_range": (low, high),
            "rollout.n_samples_per_prompt": 2,
        }
        objective = build(make_config(objective="grpo"))
        sampler, engine = make(objective, prompts, **changes)
        engine.executor.reward_func = grade
        batches = list(sampler.batches(START))
        kept = [[group[0].answer for group in batch.groups] for batch in batches]
        rates = [batch.metrics["dynamic_filtering_pass_rate"] for batch in batches]
        return kept, rates, [batch.position["data_loader_state_dict"] for batch in batches]

    return run


def test_dropped_groups_are_replaced_in_the_order_of_the_prompts(filtered, capsys):
    kept, rates, places = filtered(0, 1, 0.2, 0.3, 1, 0.4, 0.5, 0, 0.6)
    assert kept == [["0.2", "0.3"], ["0.4", "0.5"]]
    assert rates == [50.0, pytest.approx(200 / 3)]
    assert places == [{"place": 4}, {"place": 7}]
    assert "the last 1 prompts of this episode do not fill a batch" in capsys.readouterr().out


def test_the_range_is_a_setting_whose_ends_are_excluded(filtered):
    kept, *_ = filtered(0.25, 0.5, 0.75, 0.3, low=0.25, high=0.75)
    assert kept == [["0.5", "0.3"]]


def test_an_episode_without_a_batch_ends_in_an_error(filtered):
    with pytest.raises(DataError, match="fewer than 2 prompts had a mean score between 0 and 1: "):
        filtered(0, 1, 0.5, 1, 1)


@pytest.mark.parametrize(("rows", "steps"), [(5, 3), (9, 3), (4, 4), (1, 0)])
def test_a_run_of_so_many_steps_passes_over_its_data_as_often_as_they_take(make, rows, steps):
    prompts = {f"{number}?": "5" for number in range(rows)}
    run = RunConfig(training_steps=steps or 3)  # one row gives no step
    sampler, _ = make(build(make_config(objective="grpo")), prompts, swap_run=run)
    batches = list(sampler.batches(START))
    assert [batch.objective_step for batch in batches] == list(range(1, steps + 1))
    a_pass = rows // 2
    assert [batch.position["episode"] for batch in batches] == [n // a_pass for n in range(steps)]
    for number, batch in enumerate(batches, 1):  # a run that goes on ends at the same step
        objective = build(make_config(objective="grpo"))
        objective.resume(number)
        again, _ = make(objective, prompts, swap_run=run)
        assert len(list(again.batches(batch.position))) == steps - number


def test_sampling_goes_on_where_a_checkpoint_was(make):
    prompts = {f"{number}?": "5" for number in range(5)}
    objective = build(make_config(objective="grpo"))

    def run(position, **changes):
        sampler, _ = make(objective, prompts, **{"train.num_episodes": 2, **changes})
        batches = list(sampler.batches(position))
        return [[group[0].prompt for group in batch.groups] for batch in batches], batches

    whole, batches = run(START)
    assert whole == [["0?", "1?"], ["2?", "3?"]] * 2
    for number, batch in enumerate(batches, 1):
        assert batch.position["total_consumed_prompts"] == 2 * number
        assert run(batch.position)[0] == whole[number:]


def test_objectives_that_learn_from_every_group_are_known():
    drops = {name for name in OBJECTIVES if not build(make_config(objective=name)).needs_all_groups}
    assert drops == {"grpo", "dr_grpo", "dler", "decs", "grpo_lead", "sas", "step_entropy"}


@pytest.mark.parametrize(
    ("name", "group", "passes"),
    [
        # Both correct, one cut off, or with a thought that never closes: dler trains on 1 and 0,
        # grpo on 1 and 1.
        ("dler", [("a</think>4", 1, False), ("b4", 1, True)], True),
        ("grpo", [("a</think>4", 1, False), ("b4", 1, True)], False),
        # Of two that it trains on as 0 nothing is learned, though the grader's have spread.
        ("dler", [("a</think>4", 0, False), ("b4", 1, False)], False),
        # GRPO-LEAD drops groups without a correct answer.
        ("grpo_lead", [("a</think>\\boxed{5}", 0, False), ("b4", 0, False)], False),
        ("grpo_lead", [("a</think>\\boxed{4}", 1, False), ("b4", 0, False)], True),
    ],
)
def test_the_filter_goes_by_the_rewards_that_training_uses(make, tokenizer, name, group, passes):
    changes = {"algo.dynamic_filtering_enable": True, "algo.dynamic_filtering_range": (0.0, 1.0)}
    sampler, _ = make(build(make_config(objective=name)), **changes)
    rollouts = [
        Rollout(
            "p",
            "4",
            tokenizer(text, add_special_tokens=False)["input_ids"],
            [5],
            float(score),
            truncated,
            record={"scores": float(score)},
        )
        for text, score, truncated in group
    ]
    assert sampler._passes(rollouts) == passes

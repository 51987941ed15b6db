"""Second generations by the real generator, rollout actor and grader; a few lines stand for vLLM
and Ray.
"""

import asyncio
import zlib
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from support.actors import CLOSE, make_config

from openrlhf_swap.errors import ConfigError, ObjectiveError
from openrlhf_swap.flags.configuration import configure
from openrlhf_swap.integration.generation import sampling
from openrlhf_swap.integration.generation.rollout_actor import SwapRolloutActor
from openrlhf_swap.integration.generation.sampling import ContinuationRequest
from openrlhf_swap.objectives.base import Continuation, Objective
from openrlhf_swap.objectives.registry import build
from openrlhf_swap.rewards.openrlhf_reward import reward_func
from openrlhf_swap.rollouts.rollout import Rollout, StepReader

THOUGHT = "ones: 1+3+0=04\nwait ones: 1+3+0=04\ntens: 2+1+0=03\nhundreds: 1+1+0=02\n"
PROMPTS = {
    "<|user|>What is 121 + 113?<|assistant|><think>\n": "234",
    "<|user|>What is 5?<|assistant|><think>\n": "5",
}
GROUP = 3


class Actor(SwapRolloutActor):
    """The rollout actor on an engine that thinks `THOUGHT`, and after a closed thought answers 234,
    or 7 at times.
    """

    def __init__(self, tokenizer):
        from openrlhf.utils.agent import SingleTurnAgentExecutor

        self.tokenizer, self.asked = tokenizer, []
        self.executor = SingleTurnAgentExecutor(None)
        self.executor.reward_endpoints, self.executor.reward_func = ["in this process"], reward_func

    async def generate(self, ids, params, multi_modal_data=None):
        text = self.tokenizer.decode(ids)
        self.asked.append((text, params.max_tokens, params.seed))
        answer = "7}" if params.seed and params.seed % 2 else "234}"
        said = (
            answer + "<|end|>"
            if text.endswith("{")
            else ("" if "</think>" in text else THOUGHT) + CLOSE + answer
        )
        new = self.tokenizer(said, add_special_tokens=False)["input_ids"][: params.max_tokens]
        return SimpleNamespace(
            outputs=[SimpleNamespace(token_ids=new, finish_reason="stop", logprobs=None)]
        )


class Ref:
    """A call of the actor, done when it is asked for."""

    def __init__(self, call):
        self.value = asyncio.run(call)


class Queue:
    """Ray, as far as the generator knows it."""

    @staticmethod
    def wait(pending, timeout):
        return pending[-1:], pending[:-1]  # the last prompt is done first

    @staticmethod
    def get(refs):
        return [ref.value for ref in refs]


@pytest.fixture
def drawn(tokenizer, monkeypatch):
    """A function that draws a step of an objective: its samples, and the actor."""

    def draw(objective, seed=None, max_len=200, new_tokens=150, evaluating=False):
        actor = Actor(tokenizer)
        if seed is not None:
            actor.seed_samples(seed)
        engine = SimpleNamespace(
            continue_rollouts=SimpleNamespace(
                remote=lambda *args: Ref(actor.continue_rollouts(*args))
            )
        )
        reader = StepReader(
            tokenizer, objective.config.end_of_thought, *objective.config.segmentation
        )
        args = SimpleNamespace(
            rollout=SimpleNamespace(n_samples_per_prompt=GROUP, batch_size=2),
            data=SimpleNamespace(max_len=max_len),
            swap_run=SimpleNamespace(generation_timeout=9.0),
        )
        stock = sampling.SamplesGenerator(
            SimpleNamespace(args=args), None, None, tokenizer, [engine]
        )
        generator = sampling.SwapSamplesGenerator(stock, objective, reader)

        def first(prompts, labels, n_samples_per_prompt=GROUP, **kwargs):
            params = sampling.SamplingParams(max_tokens=kwargs["max_new_tokens"])
            common = {"sampling_params": params, "max_length": max_len, "hf_tokenizer": tokenizer}
            calls = [
                actor.generate_responses(prompt, label, **common, num_samples=n_samples_per_prompt)
                for prompt, label in zip(prompts, labels, strict=True)
            ]
            return [Ref(call) for call in calls]

        generator._dispatch_prompts_to_vllm, generator._evaluating = first, evaluating
        monkeypatch.setattr(sampling, "ray", Queue)
        rows = iter([("", [prompt], [answer], [None]) for prompt, answer in PROMPTS.items()])
        options = {"max_new_tokens": new_tokens, "max_len": max_len, "temperature": 0.7}
        samples, consumed, _ = generator._generate_vllm(rows, 2, False, **options)
        assert (consumed, len(samples)) == (2, 2 * GROUP)
        return samples, actor, reader

    return draw


def texts(samples, tokenizer):
    """What each is trained on."""
    return [
        tokenizer.decode(sample.sequences[0, 1:][sample.action_mask[0].bool()])
        for sample in samples
    ]


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
    plain, *_ = drawn(build(make_config(objective="grpo")), seed="3")
    objective = vsrm()
    samples, actor, _ = drawn(objective, seed="3")
    for ours, theirs in zip(samples, plain, strict=True):
        for name in ("sequences", "action_mask", "attention_mask", "rewards", "truncated"):
            assert torch.equal(getattr(ours, name), getattr(theirs, name))

    # Two cuts and the end of the thought, each asked four times after the closed thought.
    first, other = samples[0].rollout, samples[3].rollout
    cuts = ["ones: 1+3+0=04\n", "ones: 1+3+0=04\nwait ones: 1+3+0=04\n", THOUGHT]
    assert [tokenizer.decode(first.response_ids[:kept]) for kept, _ in first.probes] == cuts
    prompt = first.prompt
    for text, (_, accuracy) in zip(cuts, first.probes, strict=True):
        seeds = [seed for asked, _, seed in actor.asked if asked == f"{prompt}{text}</think>"]
        assert accuracy == sum(seed % 2 == 0 for seed in set(seeds)) / 4
        assert len(set(seeds)) == 4
    assert [accuracy for _, accuracy in other.probes] == [
        0,
        0,
        0,
    ]  # the other problem's answer is 5
    # "</think>" is there; "\n\n", the heading, the box, three digits or one, and "}".
    tokens = [
        len(tokenizer(CLOSE[8:] + end, add_special_tokens=False)["input_ids"])
        for end in ("7}", "234}")
    ]
    total = samples[0].info["swap/continued_tokens"].item()
    assert 12 * tokens[0] <= total <= 12 * tokens[1] and total == int(total)
    assert samples[0].info["timing/continuations"] >= 0


def test_nothing_to_cut_asks_for_nothing(drawn):
    samples, actor, _ = drawn(vsrm(first_characters="500"))
    assert len(actor.asked) == 2 * GROUP
    assert samples[0].info["swap/continued_tokens"].item() == 0


def test_joining_continuations_are_trained_on(drawn, tokenizer):
    options = {"shares": "20,60", "phrase": CLOSE, "answer_tokens": "9"}
    objective = build(make_config(objective="jet", options=options))
    samples, actor, _ = drawn(objective)
    found = texts(samples, tokenizer)
    assert found[0] == THOUGHT + CLOSE + "234}<|end|>"  # jet puts the end token there
    for text, share in zip(found[1:3], (0.2, 0.6), strict=True):
        kept, _, behind = text.partition("</think>")
        assert THOUGHT.startswith(kept) and abs(len(kept) - share * len(found[0])) < 8
        assert behind == CLOSE[8:] + "234}<|end|>"
    assert [sample.rewards.item() for sample in samples] == [1, 1, 1, 0, 0, 0]
    assert {sample.prompts[0] for sample in samples[:3]} == {next(iter(PROMPTS))}
    kept = [sample.rollout.metadata["kept"] for sample in samples[:3]]
    assert kept[0] == samples[0].action_mask.sum() - 1 and kept[1] < kept[2]
    assert {tokens for text, tokens, _ in actor.asked if text.endswith("{")} == {9}


def test_draws_can_be_repeated_and_differ_from_cut_to_cut(drawn, tokenizer):
    asked = [sorted(drawn(vsrm(), seed="1")[1].asked) for _ in range(2)]
    assert asked[0] == asked[1]
    seeds = {seed for text, _, seed in asked[0] if text.endswith("</think>")}
    assert (
        len(seeds) == 2 * 3 * 4
    )  # problems, cuts, answers; the responses of a problem are alike here
    actor = Actor(tokenizer)
    actor.seed_samples("1")
    ids = tokenizer("a{", add_special_tokens=False)["input_ids"]
    prefix = Rollout("a", "1", ids[1:], ids[:1], 0.0, record={"label": "1"})
    params = sampling.SamplingParams(max_tokens=1)
    request = ContinuationRequest(0, Continuation(0, "{", 8), prefix)
    (((whole,),)) = asyncio.run(actor.continue_rollouts([request], params, 99, tokenizer))
    assert actor.asked == [("a{", 8, zlib.crc32(f"1:0:a:{ids}".encode()))]
    assert (whole.prompt, whole.prompt_ids) == ("a", ids[:1])
    assert tokenizer.decode(whole.response_ids) in ("{7}<|end|>", "{234}<|end|>")


def test_less_is_kept_where_the_context_is_full(drawn, tokenizer):
    prompt = len(tokenizer(next(iter(PROMPTS)), add_special_tokens=False)["input_ids"])
    bridge = len(tokenizer(CLOSE, add_special_tokens=False)["input_ids"])
    objective = build(
        make_config(
            objective="jet", options={"shares": "50,99", "phrase": CLOSE, "answer_tokens": "6"}
        )
    )
    limit = prompt + len(tokenizer(THOUGHT, add_special_tokens=False)["input_ids"]) + bridge + 5
    samples, actor, _ = drawn(objective, max_len=limit, new_tokens=limit - prompt)
    # The whole response has 4 tokens behind its box, and jet's end token. At 99% of it, one token
    # has room behind another box; the end token behind that is beyond the context, and is dropped.
    lengths = [int(sample.action_mask.sum()) for sample in samples[:3]]
    assert lengths[::2] == [limit - prompt, limit - prompt]
    boxes = [
        tokens
        for text, tokens, _ in actor.asked
        if text.startswith(next(iter(PROMPTS))) and text.endswith("{")
    ]
    assert boxes == [6, 1]
    with pytest.raises(
        ConfigError, match=r"--data\.max_len is \d+, which leaves no room for what jet adds to"
    ):
        drawn(objective, max_len=prompt + bridge, new_tokens=bridge)


def test_a_prompt_that_the_objective_lengthens_is_not_cut(drawn, tokenizer):
    longest = max(
        len(tokenizer(prompt, add_special_tokens=False)["input_ids"]) for prompt in PROMPTS
    )
    objective = build(make_config(objective="autothink"))
    _, actor, _ = drawn(objective, max_len=longest + 99, new_tokens=99)
    for prompt in PROMPTS:
        asked = objective.eval_prompt(prompt)
        room = longest + 99 - len(tokenizer(asked, add_special_tokens=False)["input_ids"])
        assert {tokens for text, tokens, _ in actor.asked if text == asked} == {min(99, room)}
    assert any(tokens < 99 for _, tokens, _ in actor.asked)


def test_an_evaluation_continues_nothing_and_asks_as_the_objective_asks(drawn):
    samples, actor, _ = drawn(vsrm(), evaluating=True)
    assert len(actor.asked) == len(samples) == 2 * GROUP
    objective = build(make_config(objective="autothink").replaced(start_of_thought="<think>"))
    samples, actor, _ = drawn(objective, evaluating=True)
    assert {text for text, *_ in actor.asked} == {prompt + "...\n" for prompt in PROMPTS}
    # OpenRLHF looks the data source up by the prompt of its own.
    assert [sample.prompts[0] for sample in samples] == [
        prompt for prompt in PROMPTS for _ in range(GROUP)
    ]
    assert [sample.rewards.item() for sample in samples] == [1] * GROUP + [0] * GROUP


@pytest.mark.parametrize(("verdict", "counted"), [(False, 0.0), (True, 1.0), (None, 0.9)])
def test_an_evaluation_counts_verdicts_and_rewards_only_without_them(
    drawn, monkeypatch, verdict, counted
):
    generate = Actor.generate_responses

    async def partly(self, *args, **kwargs):
        return [
            replace(rollout, reward=0.9, graded_correct=verdict)
            for rollout in await generate(self, *args, **kwargs)
        ]

    monkeypatch.setattr(Actor, "generate_responses", partly)
    samples, *_ = drawn(vsrm(), evaluating=True)
    assert [sample.rewards.item() for sample in samples] == pytest.approx([counted] * 2 * GROUP)


def test_the_engines_keep_beginnings_only_where_something_is_continued():
    names = ("vsrm", "jet", "vsrm_scores", "swap")
    runs = {name: configure(["--swap.objective", name], on_cpu=False) for name in names}
    assert [name for name, run in runs.items() if run.args.vllm.enable_prefix_caching] == [
        "vsrm",
        "jet",
    ]


class Short(Objective):
    """Leaves its groups incomplete."""

    continues = "join"

    def continuations(self, rollout, reader):
        return [Continuation(1, "", 5)] if rollout.answer == "234" else []


def test_a_group_of_another_size_is_refused(drawn):
    with pytest.raises(
        ConfigError, match=r"a group with 6 responses, but --rollout\.n_samples_per_prompt is 3"
    ):
        drawn(Short(make_config(objective="test_continuations:Short")))


def test_a_continuation_of_less_than_nothing_is_refused():
    with pytest.raises(ObjectiveError, match="keeps -1 tokens of the response; use at least 0"):
        Continuation(-1, "", 9)

"""Every objective against numbers worked out by hand from its formula; the working is in the comments."""

import json
import random

import pytest
import torch
from support.objectives import MARKS, READER, RIGHT, UNBOXED, assert_rows, batch, objective, rollout

from openrlhf_swap import SwapConfig
from openrlhf_swap.errors import ConfigError, DataError
from openrlhf_swap.objectives.group_rewards import is_right
from openrlhf_swap.objectives.lc_r1 import first_right_answer
from openrlhf_swap.objectives.registry import OBJECTIVES
from openrlhf_swap.rewards.answers import SUFFIX
from openrlhf_swap.rollouts.rollout import prompt_key

OPENED = "p<think>\n"  # a prompt whose thought the chat template opens


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_can_be_built_and_saves_a_state_that_it_reads(name):
    method, again = objective(name), objective(name)
    if method.state_dict():
        method.rewards(batch([rollout(RIGHT, length, length < 60) for length in (50, 55, 70)]))
    again.resume(0, json.loads(json.dumps(method.state_dict())))
    assert again.state_dict() == method.state_dict()
    scored = ("swap", "step_only", "no_penalty", "static_penalty", "uniform_penalty", "vsrm_scores", "attnpo")
    assert method.scores_steps == (name in scored)


def test_outcome_only():
    # Right: 100, 200, 400; median 200. P = (400 - 200)/200 = 1 for the third, so r = 1, 1, 0; wrong: 0.
    group = [rollout(length=n) for n in (100, 200, 400)] + [rollout(length=900, correct=False)]
    assert_rows(objective("outcome_only").rewards(batch(group)), [[1, 1, 0, 0]])


def test_thinkprune_lowers_its_limit_in_prompt_and_engine():
    method = objective("thinkprune", limits="40,30", stage_steps=2)
    prompt = f"<u>{method.rewrite_problem('1+1?', random.Random(0))}<a>"
    assert prompt == "<u>1+1? The output of the assistant should be within 40 tokens.<a>"
    limits = []
    for step in range(5):
        method.step = step
        (sampling,) = method.sampling(prompt, 4, 64)
        assert sampling.prompt == prompt.replace("40", str(sampling.max_new_tokens))
        limits.append(sampling.max_new_tokens)
    assert limits == [40, 40, 30, 30, 30]
    # The reward is plain correctness.
    assert_rows(method.rewards(batch([rollout(length=5), rollout(length=9, correct=False)])), [[1, 0]])


def test_laser():
    # L_T = 50, bonus .5: right and short 1.5; right and long 1; wrong, formatted -.5; unformatted -1, right or not.
    group = [
        rollout(RIGHT, 50),
        rollout(RIGHT, 51),
        rollout(RIGHT, 50, correct=False),
        rollout(UNBOXED, 50),
        rollout("cut off", 50, correct=False),
        rollout("two#thoughts" + RIGHT, 50),
    ]
    assert_rows(objective("laser", target_length=50).rewards(batch(group)), [[1.5, 1, -0.5, -1, -1, -1]])


def monitored(name="laser_d", **options):
    """A LASER-D that has seen a monitoring set: one easy, one medium and no hard problem, ten responses each."""
    method = objective(name, shortest=20, longest=100, grid=10, monitor_every=3, **options)
    assert method.monitor() == (500, 8)
    # Easy (9 of 10 right): two of ten responses within 30. int(0.2 * 5) = 1: 30 is the shortest that suffices
    # (within 20: none).
    easy = [rollout(length=30) for _ in range(2)] + [rollout(length=80) for _ in range(7)]
    easy.append(rollout(length=80, correct=False))
    # Medium (5 of 10 right): int(share * 2) >= 1 needs half of all responses, right or wrong: five within 47, so 50.
    medium = [rollout(length=47, correct=False) for _ in range(5)] + [rollout(length=90) for _ in range(5)]
    method.observe_monitor(batch(easy, medium))
    return method


def test_laser_d_chooses_targets_by_difficulty():
    method = monitored()
    assert method.metrics() == {"swap/laser_d_target_high": 30.0, "swap/laser_d_target_medium": 50.0}
    # Three of three right: easy, target 30. One of three: medium, target 50. None: hard; no target is known, so the
    # longest response of the batch (200) stands in, which changes nothing without a right answer.
    easy = [rollout(RIGHT, n) for n in (30, 31, 200)]
    medium = [rollout(RIGHT, 50), rollout(RIGHT, 20, correct=False), rollout(UNBOXED, 20)]
    hard = [rollout(RIGHT, 20, correct=False) for _ in range(3)]
    rewards = method.rewards(batch(easy, medium, hard))
    assert_rows(rewards, [[1.5, 1, 1], [1.5, -0.5, -1], [-0.5, -0.5, -0.5]])


def test_laser_d_thresholds_of_coverage():
    method = objective("laser_d", shortest=10, longest=10, grid=1)
    # (expected right, share within 10): 5 x .20 = 1 accepts, 5 x .19 does not; 2 x .5 accepts, 2 x .49 does not;
    # 1 x .999 does not.
    for expected_right, within, accepted in ((5, 200, True), (5, 190, False), (2, 500, True), (2, 490, False)):
        lengths = torch.tensor([10] * within + [99] * (1000 - within))
        assert (method._choose(lengths, expected_right) == 10) == accepted
    assert method._choose(torch.tensor([10] * 999 + [99]), 1) is None
    assert method._choose(torch.tensor([], dtype=torch.int64), 5) is None
    # 10, 20, and no further than 25.
    assert objective("laser_d", shortest=10, longest=25, grid=10)._choose(torch.tensor([24]), 5) == 25
    assert objective("laser_d", shortest=10, longest=25, grid=10)._choose(torch.tensor([26]), 5) is None
    with pytest.raises(ConfigError, match=r"--swap.laser_d.shortest is 4096, .longest 2048; use shortest <= longest"):
        objective("laser_d", longest=2048)


def test_laser_d_keeps_its_targets_in_the_checkpoint():
    first = monitored()
    second = objective("laser_d", shortest=20, longest=100, grid=10, monitor_every=3)
    second.resume(0, json.loads(json.dumps(first.state_dict())))
    assert second.metrics() == first.metrics()
    assert second.monitor() is None  # not twice before the same step
    second.step = 2
    assert second.monitor() is None
    second.step = 3
    assert second.monitor() is not None


def test_laser_de_lets_wrong_answers_explore():
    # Easy group, target 30: wrong, formatted and longer earns 0.5 -> 0; at 30 it does not.
    group = [rollout(RIGHT, 30) for _ in range(6)]
    group += [rollout(RIGHT, 31, correct=False), rollout(RIGHT, 30, correct=False)]
    assert_rows(monitored("laser_de").rewards(batch(group)), [[1.5] * 6 + [0.0, -0.5]])


EXACT = "q Think for 1000 tokens.<a>"
MAXIMUM = "q Think for maximum 1000 tokens.<a>"


def test_l1_exact():
    # n = 1000, alpha = .0003, L = 1300: 300 tokens off cost .09: right .91, wrong -.09. L = 700 the same.
    group = [rollout(RIGHT, 1300, prompt=EXACT), rollout(RIGHT, 1300, prompt=EXACT, correct=False)]
    group.append(rollout(RIGHT, 700, prompt=EXACT))
    # A thought that never closes is wrong, whatever it boxes.
    group.append(rollout("\\boxed{42}", 700, prompt=EXACT))
    assert_rows(objective("l1_exact").rewards(batch(group)), [[0.91, -0.09, 0.91, -0.09]])


def test_l1_max():
    # n = 1000, slope 1/1000, delta .5: L = 800 -> .7, 1200 -> .3, 1500 -> 0, 1600 -> clipped: 0, 400 -> clipped: 1;
    # wrong -> 0. A row with an exact budget is scored as L1-Exact.
    lengths = (800, 1200, 1500, 1600, 400)
    group = [rollout(RIGHT, n, prompt=MAXIMUM) for n in lengths]
    group.append(rollout(RIGHT, 800, prompt=MAXIMUM, correct=False))
    group.append(rollout(RIGHT, 1300, prompt=EXACT))
    group.append(rollout("\\boxed{42}", 800, prompt=MAXIMUM))
    assert_rows(objective("l1_max").rewards(batch(group)), [[0.7, 0.3, 0, 0, 1, 0, 0.91, 0]])


def test_l1_draws_a_budget_once_a_row():
    method = objective("l1_exact", shortest=10, longest=20, instruction=" Box it.")
    texts = {method.rewrite_problem("q", random.Random(seed)) for seed in range(200)}
    assert texts == {f"q Box it. Think for {n} tokens." for n in range(10, 21)}
    # The instruction takes the place of the one of openrlhf_swap.prepare.
    again = {method.rewrite_problem("q" + SUFFIX, random.Random(seed)) for seed in range(200)}
    assert again == texts
    both = objective("l1_max", shortest=10, longest=20, instruction="")
    maximum = sum("maximum" in both.rewrite_problem("q", random.Random(seed)) for seed in range(400))
    assert 150 < maximum < 250


@pytest.mark.parametrize(
    ("prompt", "text", "right"),
    [
        (OPENED, "a</think>b", True),
        (OPENED, "a", False),
        (OPENED, "a</think>b</think>c", False),
        (OPENED, "<think>a</think>b", False),
        # Where the chat template does not open the thought, the model does: once.
        ("p", "<think>\na</think>b", True),
        ("p", "\n<think>a</think>b", True),
        ("p", "a</think>b", True),
        ("p", "<think><think>a</think>b", False),
        ("p", "<think>a</think>b<think>", False),
    ],
)
def test_adaptthink_counts_a_thought_in_its_place_only(prompt, text, right):
    assert is_right(True, prompt, text, MARKS) == right
    assert not is_right(False, prompt, text, MARKS)


def test_lc_r1_rewards():
    # Worked vector of the reference: R = 2, 2, 1, 0 with L = 500, 1000, 1500, 2000. The longest right one has 1000:
    # l = 1 - L/1000 = .5, 0, -.5, -1 (up to the code's 1e-4), so R + l = 2.5, 2, .5, -1.
    group = [
        rollout(RIGHT, 500),
        rollout(RIGHT, 1000),
        rollout(RIGHT, 1500, correct=False),
        rollout("no end", 2000, correct=False),
    ]
    rewards = objective("lc_r1").rewards(batch(group))
    torch.testing.assert_close(rewards, torch.tensor([[2.5, 2, 0.5, -1]]).double(), rtol=0, atol=1e-6)
    # Nothing right: no length reward.
    assert_rows(objective("lc_r1").rewards(batch([group[2], group[3]])), [[1, 0]])


def test_lc_r1_does_not_count_the_end_token():
    # 11 and 21 tokens with it: 1 - 10/20 = .5 and 0; without it the second one has 21: 1 - 10/21.
    short, long, cut = (rollout(tail, length) for tail, length in (("#$", 11), ("#$", 21), ("#", 21)))
    assert_rows(objective("lc_r1").rewards(batch([short, long])), [[2.5, 2]], 1e-4)
    assert_rows(objective("lc_r1").rewards(batch([short, cut])), [[3 - 10 / 21, 2]], 1e-4)


def test_lc_r1_cuts_a_right_thought_after_the_answer():
    method = objective("lc_r1")
    cut = rollout("so it is 42. Let me check again.#\\boxed{42}")
    # The first sentence with 42 ends after 12 characters; the thought has 32.
    cut = method.edit(cut, READER)
    assert READER.text(cut.response_ids) == "so it is 42.</think>\\boxed{42}"
    sampled = [
        rollout("no number here.#\\boxed{42}"),
        rollout("so it is 42. Or not.#\\boxed{7}", correct=False),
    ]
    silent, wrong = (method.edit(one, READER) for one in sampled)
    assert [one.response_ids for one in (silent, wrong)] == [one.response_ids for one in sampled]
    assert sampled[0].metadata == {}  # what was sampled stays as it is
    # At `</think>`: 1 - 12/32.0001 for the cut one, index 12; -1 for the silent one, index 15; nothing if wrong.
    term = method.token_advantages(batch([cut, silent, wrong]))
    expected = torch.zeros_like(term)
    expected[0, 0, 12] = 1 - 12 / 32.0001
    expected[0, 1, 15] = -1
    torch.testing.assert_close(term, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("thought", "kept"),
    [("x = 42\nmore", "x = 42\n"), ("142 and 42.5 are not it", ""), ("42", "42"), ("Is 42 it? Yes.", "Is 42 it?")],
)
def test_the_first_right_answer(thought, kept):
    ids = [ord(c) for c in thought]
    assert first_right_answer(ids, "$42$", READER) == len(kept)


@pytest.fixture
def reference_file(tmp_path):
    path = tmp_path / "reference.jsonl"
    path.write_text(json.dumps({"key": prompt_key("p"), "accuracy": 0.75}) + "\n")
    return path


def test_adaptthink_rewards(reference_file):
    # Reference accuracy .75, bonus .05. No thinking: right .3, wrong -.7. Thinking: right .25, wrong -.75. A second
    # `</think>`, or a `<think>`, makes a response wrong.
    method = objective("adaptthink", reference=reference_file)
    group = [
        rollout("#\\boxed{42}", prompt=OPENED, part=0),
        rollout("#\\boxed{1}", prompt=OPENED, correct=False, part=0),
        rollout(RIGHT, prompt=OPENED, part=1),
        rollout(RIGHT, prompt=OPENED, correct=False, part=1),
        rollout("#" + RIGHT, prompt=OPENED, part=0),
        rollout("<think>" + RIGHT, prompt=OPENED, part=1),
    ]
    assert_rows(method.rewards(batch(group)), [[0.3, -0.7, 0.25, -0.75, -0.7, -0.75]])
    assert method.normaliser == "none"


def test_adaptthink_samples_both_ways_with_their_probabilities(reference_file):
    method = objective("adaptthink", reference=reference_file, no_thinking_tokens=100)
    without, thinking = method.sampling("p", 16, 400)
    assert (without.count, without.forced, without.max_new_tokens, without.chance) == (8, "</think>", 100, 0.5)
    # The template leaves the thought to the model: it is opened in the prompt, for an evaluation as well.
    assert without.prompt == thinking.prompt == method.eval_prompt("p") == OPENED
    assert method.sampling(OPENED, 16, 400)[0].prompt == OPENED
    assert (thinking.count, thinking.forced, thinking.max_new_tokens, thinking.chance) == (8, "Alright", 400, 0.5)
    free = objective("adaptthink", reference=reference_file, thinking_start="", no_thinking_share=0.25)
    assert [(part.forced, part.chance) for part in free.sampling("p", 16, 400)] == [("</think>", 0.25), ("", 0.75)]


def test_adaptthink_needs_an_accuracy_for_every_prompt(reference_file):
    method = objective("adaptthink", reference=reference_file)
    method.check_prompts(["p"])
    with pytest.raises(DataError, match="lacks 1 of 2 prompts"):
        method.check_prompts(["p", "q"])


def test_a_step_objective_is_asked_of_the_public_function_only():
    from openrlhf_swap import StepTrace, swap_advantages

    with pytest.raises(ConfigError, match=r"--swap\.objective is laser"):
        swap_advantages([StepTrace(3, True, [0.0], [])], SwapConfig(objective="laser"))

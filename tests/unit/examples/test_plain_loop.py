"""The loop in one process: its sampler beside the model, arms by hand, a short training."""

import json
import math
import sys
from copy import deepcopy
from itertools import islice

import loop_runs
import plain_loop
import pytest
import torch
from arms import arm_limit, arm_rewards, arm_settings, arm_signals
from plain_loop import RESPONSES, Loop, loop_of
from sampling import sample
from world import CLOSE, rendered

from openrlhf_swap import StepTrace, SwapConfig
from openrlhf_swap.algorithm.batch import StepBatch
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.files import read_rows


@pytest.fixture(scope="module")
def loop():
    return Loop("columns", step_price="weights")


def test_sampled_scores_are_the_models_own(loop):
    model = deepcopy(loop.model).float()
    problems = islice(loop.world.problems(4), 6)
    prompts = [loop.reader.ids(rendered(problem.question)) for problem in problems]
    end, pad = loop.tokenizer.eos_token_id, loop.tokenizer.pad_token_id
    torch.manual_seed(0)
    responses, scores = sample(model, prompts, end, pad, max_tokens=60)
    assert any(response[-1] == end for response in responses)
    for prompt, response, own in zip(prompts, responses, scores, strict=True):
        assert end not in response[:-1] and (response[-1] == end or len(response) == 60)
        with torch.no_grad():
            logits = model(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]
        expected = logits.log_softmax(-1).gather(-1, torch.tensor(response)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(own), expected, rtol=0, atol=1e-4)


def test_steps_are_redundant_if_all_of_their_lines_are(loop):
    problem = loop.world.from_question("Fill B1C2C3C4C5C6")
    # A step has at least three tokens: the verification's first line has one, and takes the next
    # along.
    text = "B1>7\nwait B1>7\nC2>0\nlet me verify\nB1>7\nC3>0\n" + CLOSE
    response = loop.reader.ids(text)
    ends = loop.reader.step_ends(response)
    trace = StepTrace(len(response), True, [-1.0] * (len(ends) + 1), ends)
    found = loop.redundant_steps([problem], [response], StepBatch.from_traces([[trace]]))
    assert found[0, 0].tolist() == [False, True, False, True, False]


# Gains 1, 0, 0 and 1, 0; redundant are the last step of the first response and of the other.
GROUP = StepBatch.from_traces(
    [[StepTrace(30, True, [-3, -2, -2, -2], [4, 9, 19]), StepTrace(10, True, [-3, -2, -2], [3, 7])]]
)
REDUNDANT = torch.tensor([[[False, False, True], [False, True, False]]])
E1 = 1 / (1 + math.e)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("oracle", [[0, 0, 1], [0, 1, 0]]),
        ("anti", [[0.5, 0.5, 0], [1, 0, 0]]),
        ("uniform", [[1 / 3] * 3, [0.5, 0.5, 0]]),
        ("tau1", [None, [E1, 1 - E1, 0]]),
    ],
)
def test_weights_by_labels_by_hand(kind, expected):
    arm = f"weights.{kind}"
    weights = arm_signals(arm, SwapConfig(**arm_settings(arm)), GROUP, REDUNDANT).weights[0]
    for row, wanted in zip(weights.tolist(), expected, strict=True):
        assert wanted is None or row == pytest.approx(wanted)


def test_the_cheap_baselines_by_hand():
    # Half are correct, the longest of them has 40 tokens: 1 - .2 * 1/2 * L/40.
    group = [StepTrace(40, True), StepTrace(20, True), StepTrace(10, False), StepTrace(80, False)]
    batch = StepBatch.from_traces([group])
    assert arm_rewards("pass_rate_penalty", batch).tolist() == [pytest.approx([0.9, 0.95, 0, 0])]
    assert [arm_limit(arm) for arm in ("grpo_limit80", "grpo", "weights.oracle")] == [80, 320, 320]


def test_a_step_is_needed_where_a_later_one_copies_it():
    loop = Loop("columns", reads_need=True, **arm_settings("reward.need"))
    problems = [problem for problem in islice(loop.world.problems(1), 1) for _ in range(RESPONSES)]
    torch.manual_seed(0)
    prompts, responses = loop.respond(problems)
    batch = loop.batch(problems, prompts, responses)
    needed = batch.signals["need"]
    assert needed.shape == batch.step_mask.shape
    assert needed[batch.step_mask].max() > 0.5


def lesson_of(arm, **settings):
    """What the arm learns from the same responses to one problem."""
    loop = loop_of("words", arm, settings)
    problems = [problem for problem in islice(loop.world.problems(1), 1) for _ in range(RESPONSES)]
    torch.manual_seed(0)
    return loop, problems, loop.lesson(arm, problems)


@pytest.mark.parametrize(("name", "arm"), [("swap", "steps.tau1"), ("grpo", "grpo")])
def test_an_objective_of_the_package_is_the_arm_of_the_same_arithmetic(name, arm):
    settings = {"process_weight": 0.3, "step_discount": 0.5}
    _, _, of_objective = lesson_of(f"objective.{name}", **settings)
    _, _, of_arm = lesson_of(arm, **settings)
    assert of_objective.responses == of_arm.responses
    torch.testing.assert_close(of_objective.advantages, of_arm.advantages, rtol=0, atol=1e-5)
    assert of_arm.advantages.any()


def test_objectives_get_their_limit_their_monitoring_set_and_entropies():
    loop, problems, lesson = lesson_of("objective.thinkprune")
    assert max(map(len, lesson.responses)) <= 100 and lesson.numbers["swap/thinkprune_limit"] == 100
    *_, lesson = lesson_of("objective.laser_d")
    assert lesson.numbers["swap/laser_d_target_high"] < 320
    loop, problems, lesson = lesson_of("objective.step_entropy")
    right = list(map(loop.correct, problems, lesson.responses))
    # Four of five steps of a correct response teach nothing, all tokens of the others do.
    for response, correct, row in zip(lesson.responses, right, lesson.advantages, strict=True):
        taught = float((row[: len(response)] != 0).double().mean())
        assert 0 < taught < 0.7 if correct else taught == 1
    *_, lesson = lesson_of("objective.lc_r1")
    lost = [len(a) - len(b) for a, b in zip(lesson.responses, lesson.trained, strict=True)]
    assert min(lost) == 0 and max(lost) > 0


@pytest.mark.parametrize("name", ["adaptthink", "l1_exact", "vsrm", "length_critic", "hapo"])
def test_what_needs_the_stack_is_refused(name):
    with pytest.raises(ConfigError, match=f"--arms has objective.{name}"):
        loop_of("words", f"objective.{name}", {})


def test_a_run_writes_its_steps_and_is_not_repeated(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(plain_loop, "HELD_OUT", 4)
    monkeypatch.setattr(plain_loop, "PROMPTS", 2)
    words = "plain_loop --world columns --arms reward.need --steps 2 --discount 0 --output"
    monkeypatch.setattr(sys, "argv", [*words.split(), str(tmp_path)])
    plain_loop.main()
    file = tmp_path / "columns-reward.need+gamma0-0.3-25-1.jsonl"
    rows = list(map(json.loads, file.read_text().splitlines()))
    assert [row["step"] for row in rows] == [0, 1, None]
    assert all(0 <= row["accuracy"] <= 1 and row["tokens"] > 10 for row in rows)
    capsys.readouterr()
    plain_loop.main()
    assert capsys.readouterr().out == ""


def test_many_runs_have_a_line_each_and_go_on_after_a_kill(tmp_path, monkeypatch, capsys):
    words = "loop_runs --worlds words --arms grpo --gammas 0 1 --thetas 1 --seeds 1 2 --output"
    monkeypatch.setattr(sys, "argv", [*words.split(), str(tmp_path)])
    monkeypatch.setattr(loop_runs, "train_run", acted)
    monkeypatch.setattr(loop_runs, "get_context", lambda _: None)  # forks know the acted run
    file = tmp_path / "runs.jsonl"
    file.write_text(json.dumps(acted(next(four_runs()))) + '\n{"world": "wo')
    loop_runs.main()
    assert capsys.readouterr().out.startswith(f"3 runs to go, 1 in {file}")
    assert {loop_runs.settings_of(row) for row in read_rows(file)} == set(four_runs())
    assert loop_runs.table(file).count("| words   | grpo") == 2


def four_runs():
    for seed in (1, 2):
        for gamma in (0.0, 1.0):
            yield loop_runs.Run("words", "grpo", gamma, 1.0, seed, *loop_runs.TRAININGS["words"])


def acted(run):
    return {**vars(run), **dict.fromkeys(loop_runs.MEASURES, 1.0)}

"""The study of the signals of a real model's thoughts: arithmetic by hand and the slow way."""

from itertools import product

import numpy as np
import pytest
from support.paths import ROOT

from studies.real_model import signal_table
from studies.real_model.chosen_thoughts import choose
from studies.real_model.deletion import Thought, beginnings, owners_of, requests_of
from studies.real_model.signals import SIGNALS, states_result
from studies.real_model.truth import SAMPLES, KnownThought, keep, read_kept, rounded

ROW = {
    "step_ends": [9, 29, 39],
    "steps": ["A plan.", "4 x 5 = 20", "So 20 - 6 = 14."],
    "answer_logprobs": [-2.0, -3.0, -6.0, -1.0],
    "gains": [0.0, 0.0, 1.0],
    "local_gains": [-1.0, -3.0, 5.0],
    "entropy": [0.5, 0.25, 0.1],
    "need_1": [0.1, 0.2, 0.3],
    "need_2": [0.2, 0.3, 0.3],
    "need_4": [0.5, 1.0, 2.0],
    "need_0": [0.5, 1.0, 2.0],
    "correct": [[0, 1, 0, 0], [1, 0, 0, 1], [1, 1, 1, 1], [1, 1, 1, 1]],
    "tokens": [[60, 40, 50, 50], [50, 50, 50, 50], [25, 15, 20, 20], [9, 11, 10, 10]],
}


def test_each_signal_by_hand():
    found = {name: signal(ROW) for name, signal in SIGNALS.items()}
    assert found["gain, two steps ahead"] == [1.0, 2.0, 5.0]
    assert found["best-so-far gain, two steps ahead"] == [1.0, 1.0, 1.0]
    assert found["gain between results"] == [-4.0, -4.0, 5.0]
    assert found["need per token"] == pytest.approx([0.05, 0.05, 0.2])
    assert found["best-so-far gain + need"] == [0.5, 1.0, 3.0]
    assert found["length"] == [10, 20, 10]
    assert found["early position"] == [0, -1, -2]
    assert all(len(values) == 3 for values in found.values())


@pytest.mark.parametrize(
    ("step", "is_result"),
    [
        (r"\[ 2 \times 30 = 60 \text{ sheets/week} \]", True),
        (r"the cost is 3 * 2 = \$6.", True),
        (r"= -1,200.50", True),
        (r"\[ x = 30 \times 2 \]", False),
        (r"we have x = 12/4", False),
        ("Calculate the number of sheets for 4 weeks.", False),
    ],
)
def test_a_step_states_a_result(step, is_result):
    assert states_result(step) is is_result


def test_the_truth_of_each_step_by_hand():
    thought = KnownThought.of(ROW)
    # V is 1/4, 1/2, 1, 1, and R is 50, 50, 20, 10.
    assert thought.necessity.tolist() == [0.25, 0.5, 0.0]
    first, second = thought.halves
    assert first.tolist() == [0.0, 0.5, 0.0]
    assert second.tolist() == [0.5, 0.5, 0.0]
    assert thought.wasted.tolist() == [10.0, -10.0, 0.0]


def test_a_thought_is_continued_from_each_of_its_beginnings():
    parts = beginnings([5, 6, 7, 8, 9], [1, 3])
    assert parts == [[], [5, 6], [5, 6, 7, 8]]
    thoughts = [Thought({}, [1, 2], parts), Thought({}, [3], parts[:1])]
    requests = requests_of(thoughts, samples=8, max_tokens=100)
    assert [prompt for prompt, _ in requests] == [[1, 2], [1, 2, 5, 6], [1, 2, 5, 6, 7, 8], [3]]
    assert [options["max_tokens"] for _, options in requests] == [100, 98, 96, 100]
    assert {options["n"] for _, options in requests} == {8}
    assert [number for _, number in owners_of(thoughts)] == [0, 1, 2, 0]


def test_one_thought_of_each_problem_is_chosen():
    thoughts = {name: [{"id": name, "sample": n} for n in range(3)] for name in "abcdef"}
    chosen = choose(thoughts, 4, seed=1)
    assert len({row["id"] for row in chosen}) == 4
    # Fewer are a part of more, so that a study can be made longer.
    assert choose(thoughts, 6, seed=1)[0]["id"] == chosen[0]["id"]
    assert choose(thoughts, 4, seed=1) == chosen


def slow_auc(values, needed):
    """Over all pairs of a needed and another step."""
    pairs = list(product(values[needed], values[~needed]))
    return sum((more > less) + (more == less) / 2 for more, less in pairs) / len(pairs)


@pytest.fixture
def thoughts():
    """Signals with ties, and truths, of thoughts of 3 to 6 steps."""
    random = np.random.default_rng(3)
    sizes = random.integers(3, 7, size=12)
    values = [random.integers(0, 5, size).astype(float) for size in sizes]
    truth = [random.integers(-2, 4, size) / 8 for size in sizes]
    return values, truth


def test_auc_is_that_of_all_pairs(thoughts):
    values, truth = thoughts
    needed = [each >= 0.25 for each in truth]
    auc = signal_table.Auc(values, needed)
    twice = np.ones(len(values))
    twice[0] = 2
    one, doubled = auc.of(np.stack([np.ones(len(values)), twice]))
    assert one == pytest.approx(slow_auc(np.concatenate(values), np.concatenate(needed)))
    more_values = np.concatenate([values[0], *values])
    more_needed = np.concatenate([needed[0], *needed])
    assert doubled == pytest.approx(slow_auc(more_values, more_needed))


def slow_ranks(values):
    """By counting: the values below each one, and half of those that equal it."""
    return [sum((other < one) + (other == one) / 2 for other in values) for one in values]


def test_rank_correlation_is_a_mean_over_thoughts(thoughts):
    values, truth = thoughts
    each = []
    for value, true in zip(values, truth, strict=True):
        if np.ptp(true) and np.ptp(value):
            each.append(np.corrcoef(slow_ranks(value), slow_ranks(true))[0, 1])
        elif np.ptp(true):
            each.append(0.0)
    found = signal_table.RankCorrelation(values, truth).of(np.ones((1, len(values))))
    assert found == pytest.approx([np.mean(each)])


def test_partial_correlation_is_that_of_the_residuals(thoughts):
    values, truth = thoughts
    columns = []
    for value, true in zip(values, truth, strict=True):
        places = np.arange(len(true), dtype=float)
        columns.append(np.stack([signal_table.ranks(each) for each in (value, true, places)]))
    signal, true, place = np.concatenate(columns, axis=1)
    rest = [each - (each @ place) / (place @ place) * place for each in (signal, true)]
    expected = np.corrcoef(*rest)[0, 1]
    found = signal_table.PartialCorrelation(values, truth).of(np.ones((1, len(values))))
    assert found == pytest.approx([expected])


def test_the_share_of_a_penalty_on_needed_steps():
    values = [np.log([1.0, 2.0, 4.0])]
    # exp(-value) is 1, 1/2, 1/4.
    assert signal_table.share_on_needed(values, [np.array([0.0, 0.5, 0.0])]) == pytest.approx(2 / 7)


def test_kept_rows_come_back(tmp_path):
    rows = [{"id": "a", "need": [0.1234567, 1.0]}]
    path = tmp_path / "kept.jsonl.gz"
    keep([{name: rounded(value) for name, value in row.items()} for row in rows], path)
    assert read_kept(path) == [{"id": "a", "need": [0.12346, 1.0]}]


def test_the_page_has_the_table_of_the_kept_rows():
    page = (ROOT / "docs" / "method" / "signals.md").read_text(encoding="utf-8")
    thoughts = [KnownThought.of(row) for row in read_kept(SAMPLES["second"])]
    assert signal_table.summary(thoughts) in " ".join(page.split())
    judge = signal_table.Judge(thoughts)
    assert judge.table() in page
    assert judge.tests().endswith("corrected: entropy 0.001, need, 4 steps 0.802")
    assert "entropy p = .001, need p = .80." in page


def test_a_signal_is_tested_against_the_local_gain():
    """One that is right everywhere, and one that is the local gain, which is wrong everywhere."""
    random = np.random.default_rng(5)
    thoughts = []
    for _ in range(20):
        truth = random.permutation([0.0, 0.0, 0.5, 0.5])
        signals = {"entropy": truth, "need, 4 steps": -truth, "gain": -truth}
        thoughts.append(KnownThought(truth, (truth, truth), truth, signals))
    found = signal_table.Judge(thoughts, draws=50).tests()
    assert found.endswith("entropy 0.000, need, 4 steps 1.000")

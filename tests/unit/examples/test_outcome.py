import json
import re
from math import inf

import pandas
import pytest
from operations import Operation, Problem
from outcome import (
    BASE,
    batches_left,
    changes,
    costs,
    keep,
    measure,
    overview,
    page,
    planned_share,
    tables,
)
from support.paths import POLICY, ROOT
from support.tables import cells_of
from thoughts import Sentence, response_of, shortest

from openrlhf_swap.errors import DataError
from openrlhf_swap.files import write_rows, write_text
from openrlhf_swap.flags.configuration import configure

PROBLEMS = {
    "chains": Problem("chains", "What is 2 + 3 + 4?", (Operation(2, "+", 3), Operation(5, "+", 4))),
    "legs": Problem("legs", "How many?", (Operation(3, "*", 8), Operation(24, "+", 1))),
}
SHORT = {task: shortest(problem) for task, problem in PROBLEMS.items()}
CHECKED = [
    "2 + 3 = 6.",
    "Wait, let me check: 2 + 3 = 5, not 6.",
    "Let me think.",
    "Well.",
    "5 + 4 = 9.",
]
LONG = {"chains": response_of([Sentence(text, "") for text in CHECKED], 9), "legs": SHORT["legs"]}


def evaluation(folder, responses, correct, tokens):
    """An evaluation of one sample a problem, as `eval run` leaves it."""
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"suffix": ""}))
    for task, problem in PROBLEMS.items():
        row = {"id": "0", "problem": problem.question, "answer": str(problem.answer)}
        write_rows(folder / f"{task}.problems.jsonl", [row])
        sample = {"id": "0", "sample": 0, "text": responses[task], "tokens": tokens[task]}
        write_rows(folder / f"{task}.samples.jsonl", [sample])
        write_rows(
            folder / f"{task}.grades.jsonl", [{"id": "0", "sample": 0, "correct": correct[task]}]
        )
    return folder


@pytest.fixture
def held_out(tmp_path):
    paths = [tmp_path / f"{task}.jsonl" for task in PROBLEMS]
    for path, problem in zip(paths, PROBLEMS.values(), strict=True):
        write_rows(path, [problem.row()])
    return paths


@pytest.fixture
def folders(tmp_path):
    before = evaluation(
        tmp_path / "base", LONG, {"chains": True, "legs": False}, {"chains": 90, "legs": 50}
    )
    right, tokens = dict.fromkeys(PROBLEMS, True), {"chains": 30, "legs": 40}
    return before, evaluation(tmp_path / "run" / "evaluation", SHORT, right, tokens)


@pytest.fixture
def runs(folders, held_out, tokenizer):
    return {
        name: measure(folder, held_out, tokenizer)
        for name, folder in zip((BASE, "swap"), folders, strict=True)
    }


def test_a_response_is_a_row_of_what_is_kept(runs, tmp_path):
    keep(tmp_path / "kept.csv.gz", runs)
    kept = pandas.read_csv(tmp_path / "kept.csv.gz")
    assert kept[["policy", "task", "response", "accuracy", "tokens"]].to_numpy().tolist() == [
        [BASE, "chains", 0, 100, 90],
        [BASE, "legs", 0, 0, 50],
        ["swap", "chains", 0, 100, 30],
        ["swap", "legs", 0, 100, 40],
    ]
    assert kept.loc[0, ["essential", "useful", "redundant", "other"]].tolist() == [2, 1, 1, 1]


def test_tables_by_hand(runs, tokenizer):
    base = runs[BASE]
    assert base["accuracy"] == {"chains": [100.0], "legs": [0.0]}
    assert [
        base[label]["chains"][0] for label in ("essential", "useful", "redundant", "other")
    ] == [2, 1, 1, 1]
    needed = len(tokenizer(SHORT["chains"], add_special_tokens=False)["input_ids"])
    assert base["times needed"]["chains"] == pytest.approx([90 / needed])
    _, first, second = cells_of(overview(runs))
    assert first[:3] == ["warm-up", "50.0 (0.0 to 100.0)", "70.0 (50.0 to 90.0)"]
    assert first[4:8] == ["2.00", "0.50", "0.50", "0.50"]
    assert second[0] == "swap"
    _, *rows = cells_of(changes(runs))
    assert [row[1] for row in rows] == ["chains", "legs", "all"]
    assert rows[0][2:4] == ["+0.0 (+0.0 to +0.0)", "-60.0 (-60.0 to -60.0)"]
    assert rows[2][2:4] == ["+50.0 (+0.0 to +100.0)", "-35.0 (-60.0 to -10.0)"]
    assert rows[2][6] == "-0.50 (-1.00 to +0.00)"


def test_the_other_methods_are_compared_with_grpo_on_the_same_problems(runs):
    before, after = runs.values()
    assert "Differences" not in tables({BASE: before, "swap": after})
    assert "Differences" not in tables({BASE: before, "grpo": after})
    since_base, since_grpo = tables({BASE: before, "grpo": after, "swap": before}).split(
        "Differences from grpo:"
    )
    assert since_base.count("| grpo ") == 1 + 3 and "Changes since the warm-up:" in since_base
    _, *rows = cells_of(since_grpo)
    assert [row[0] for row in rows] == ["swap"] * 3
    assert rows[2][2:4] == ["-50.0 (-100.0 to +0.0)", "+35.0 (+10.0 to +60.0)"]


def test_a_task_without_samples_is_told(folders, held_out, tokenizer):
    (folders[0] / "legs.grades.jsonl").unlink()
    with pytest.raises(DataError, match="no graded samples of some task"):
        measure(folders[0], held_out, tokenizer)


def test_the_page_shows_the_same_problems_before_and_after(folders, tmp_path):
    path = page(*folders, POLICY, tmp_path, {"notes": ["told"], "tables": [], "charts": []})
    text = path.read_text(encoding="utf-8")
    assert path.stat().st_size < 300_000
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])
    assert data["names"] == [BASE, "run"]
    assert [[len(column) for column in problem["columns"]] for problem in data["problems"]] == [
        [1, 1],
        [1, 1],
    ]


def test_costs_leave_out_the_first_step_and_skipped_ones():
    def row(step, **times):
        return {"step": step, **{f"timing/{name}": value for name, value in times.items()}}

    times = {
        "generation": 10.0,
        "score": 5.0,
        "ppo_train": 30.0,
        "broadcast": 1.0,
        "step_total": 50.0,
    }
    slow = {name: 100 * value for name, value in times.items()}
    text = costs([row(1, **slow), row(2, **times), row(3)], 4.25)
    parts = "generate 10.0, score 5.0, update 30.0, sync 1.0"
    assert text == f"50.0 s a step ({parts}); scoring is 10% of it; at most 4.2 GiB"
    assert costs([], 1.0) == "no step was measured; at most 1.0 GiB"


def test_the_plan_is_asked_about_responses_as_they_were(tmp_path):
    words = f"--actor.model_name_or_path {POLICY} --data.prompt_dataset x.jsonl --data.input_key problem"
    words += " --data.label_key answer --swap.step_tokens 8 --data.max_len 512 --rollout.max_new_tokens 320"
    configuration = configure([*words.split(), "--swap.output_dir", str(tmp_path)], on_cpu=True)
    write_text(tmp_path / "run.yaml", json.dumps({"flags": configuration.dump()}))

    def share(right):
        return planned_share(
            tmp_path, [{"length/mean": 140.0, "swap/accuracy": right}, {"step": 2}]
        )

    assert share(0.0) == 0 < share(0.5) < share(1.0) < 0.5


def test_what_is_left_is_read_from_the_bar(tmp_path):
    log = tmp_path / "train.log"
    bar = "Train step of epoch 0:  40%|████      | 12/40 [05:30<04:43, 15.73s/it, lr=2e-4]"
    for text, left in (
        ("Train step of epoch 0:   0%|          | 0/30 [00:00<?, ?it/s]", 30),
        ("x" * 9000 + f"\r{bar}\r\n", 28),
        ("nothing yet", inf),
    ):
        log.write_text(text)
        assert batches_left(log) == left


RESULTS = ROOT / "examples" / "smollm2" / "results"


def rows_of(text, *names):
    """The cells of the table's rows with one of these words in the first two cells."""
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line[:1] == "|"
    ]
    return [row for row in cells if set(names) & set(row[:2])]


def test_the_tables_that_are_shown_are_means_of_the_kept_responses():
    kept = pandas.read_csv(RESULTS / "responses.csv.gz")
    trained = [
        method + seed for method in ("grpo", "length_critic", "swap") for seed in ("", "_43", "_44")
    ]
    policies = (BASE, *trained)
    assert kept.groupby("policy").size().to_dict() == dict.fromkeys(policies, 480)
    means = kept.groupby("policy").mean(numeric_only=True)
    page = (RESULTS.parent / "README.md").read_text(encoding="utf-8")
    of_this_warm_up = page[page.index("| as it is now |") : page.index("| never answered early |")]
    in_page = {
        row[1].replace("before training", BASE): row
        for row in rows_of(of_this_warm_up, "as it is now", "")
    }
    report = (RESULTS / "report.md").read_text(encoding="utf-8")
    in_report = {row[0]: row for row in rows_of(report.split("\n\n")[0], *means.index)}
    assert set(in_page) == set(in_report) == set(policies)
    for policy, of in means.iterrows():
        shown, reported = in_page[policy], in_report[policy]
        assert shown[3].startswith(f"{of.accuracy:.1f}% (") and reported[1].startswith(
            f"{of.accuracy:.1f} ("
        )
        assert shown[4].startswith(f"{of.tokens:.1f} (") and reported[2].startswith(
            f"{of.tokens:.1f} ("
        )
        counts = [f"{of[name]:.2f}" for name in ("essential", "useful", "redundant")]
        assert shown[5:8] == reported[4:7] == counts
    accuracies = kept.pivot(index=["task", "response"], columns="policy", values="accuracy")
    since_base, from_grpo = report.split("Changes since the warm-up:")[1].split(
        "Differences from grpo:"
    )
    for text, reference, others in (
        (since_base, BASE, [name for name in means.index if name != BASE]),
        (from_grpo, "grpo", [name for name in means.index if name not in (BASE, "grpo")]),
    ):
        printed = {(row[0], row[1]): float(row[2].split(" ")[0]) for row in rows_of(text, *others)}
        for policy in others:
            change = accuracies[policy] - accuracies[reference]
            expected = {**change.groupby("task").mean(), "all": change.mean()}
            assert {task: printed[policy, task] for task in expected} == pytest.approx(
                expected, abs=0.051
            )

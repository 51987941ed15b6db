import json
import math
import random
import shutil
import sys
import threading
import time
from queue import SimpleQueue
from statistics import fmean

import pandas as pd
import psutil
import pytest
import yaml

from openrlhf_swap.data.benchmarks import Problem
from openrlhf_swap.errors import ConfigError, DataError
from openrlhf_swap.evaluation import run as evaluation
from openrlhf_swap.files import read_rows, write_rows
from openrlhf_swap.flags.configuration import configure
from openrlhf_swap.flags.rules import check_flags, check_objective
from studies.real_model import trainings
from studies.real_model.data import write_held_out
from studies.real_model.scoreboard import Rows, collect, read_kept, table_of
from studies.real_model.settings import BASE, SETTINGS, Run, read_size
from studies.real_model.trainings import (
    EVALUATE,
    TRAIN,
    Deadline,
    Ended,
    Progress,
    Study,
    evaluation_folder,
    evaluation_words,
    length_limit,
    run_before,
    training_words,
)

SIZES = list(yaml.safe_load(SETTINGS.read_text(encoding="utf-8"))["sizes"])
# In the place of `openrlhf-swap`: writes down what it is asked for, and fails as FAILS says.
PROGRAM = """
import json, os, sys
words = sys.argv[1:]
with open(os.environ["CALLS"], "a") as calls:
    print(json.dumps(words), file=calls)
fails = os.environ.get("FAILS", "")
sys.exit(1 if fails and any(word.endswith(fails) for word in words) else 0)
"""


@pytest.mark.parametrize("name", SIZES)
def test_the_commands_of_every_arm_take_their_flags(name, tmp_path, monkeypatch):
    """Both parsers and all rules that are checked before anything starts."""
    monkeypatch.chdir(trainings.ROOT)
    size = read_size(name)
    write_lengths(tmp_path, size, range(1, 101))
    for run in size.runs():
        words = training_words(size, size.arm_of(run), run, tmp_path)
        configuration = configure(words, on_cpu=not name.startswith("gpu"))
        check_flags(configuration)
        check_objective(configuration)
        assert configuration.run.output_dir == str(tmp_path / "runs" / run.name)
        assert configuration.args.train.seed == run.seed
        assert configuration.args.train.batch_size == (
            size.flags.get("rollout.batch_size", 8)
            * size.flags.get("rollout.n_samples_per_prompt", 8)
        )
        args = evaluation.parse_flags(evaluation_words(size, size.model, run, tmp_path))
        assert args.suffix == size.suffix and len(args.benchmarks) == len(size.held_out)


def test_the_limit_is_the_percentile_of_the_bases_lengths(tmp_path):
    size = read_size("tiny")
    write_lengths(tmp_path, size, [100, 400, 200, 301, 500])
    assert length_limit(size, 75, tmp_path) == 400
    assert length_limit(size, 50, tmp_path) == 301
    assert length_limit(size, 60, tmp_path) == 341  # 301 + .4 x 99 = 340.6


def write_lengths(output, size, lengths):
    folder = evaluation_folder(output, Run(BASE))
    folder.mkdir(parents=True)
    rows = [{"id": str(number), "tokens": length} for number, length in enumerate(lengths)]
    write_rows(folder / f"{next(iter(size.held_out))}.samples.jsonl", rows)


def test_held_out_problems_are_the_first_of_all_problems_in_a_seeded_order(tmp_path):
    size = read_size("tiny")
    problems = [Problem(str(number), f"{number} + 1", str(number + 1)) for number in range(40)]
    write_held_out(tmp_path, "sums", problems, 15, size)
    order = list(range(40))
    random.Random(84).shuffle(order)
    rows = list(read_rows(tmp_path / "held_out" / "sums.jsonl"))
    assert [row["id"] for row in rows] == [str(number) for number in order[:15]]
    with pytest.raises(ConfigError, match="use at most 40"):
        write_held_out(tmp_path, "sums", problems, 41, size)


@pytest.fixture
def study(tmp_path, monkeypatch):
    """A study of two arms whose commands end at once; `study(until)` begins or resumes it."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    monkeypatch.setattr(trainings, "PROGRAM", [sys.executable, str(program)])
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    output = tmp_path / "study"
    (output / "logs").mkdir(parents=True)
    size = read_size("tiny")
    write_lengths(output, size, [10, 20])

    def start(until=math.inf):
        (tmp_path / "calls").write_text("", encoding="utf-8")
        slots = SimpleQueue()
        slots.put(0)
        progress = Progress(output / "progress.jsonl")
        Study(size, output, Deadline(until), progress, slots).do_missing()
        lines = (tmp_path / "calls").read_text(encoding="utf-8").splitlines()
        called = [called_for(json.loads(line)) for line in lines]
        return called, list(read_rows(output / "progress.jsonl"))

    return start


def called_for(words):
    """The stage and the run of a command."""
    if words[0] == "train":
        (folder,) = (word for word in words if word.startswith("--swap.output_dir="))
        return TRAIN, folder.rpartition("/")[2]
    folder = words[words.index("--output") + 1]
    return EVALUATE, folder.removesuffix("/evaluation").rpartition("/")[2]


def test_a_study_does_only_what_is_missing(study, monkeypatch):
    monkeypatch.setenv("FAILS", "grpo_84/evaluation")
    called, lines = study()
    assert called == [
        (EVALUATE, "base"),
        (TRAIN, "grpo_84"),
        *[(EVALUATE, "grpo_84")] * 3,
        (TRAIN, "limit_84"),
        (EVALUATE, "limit_84"),
    ]
    faults = [line["stage"] for line in lines if line["fault"]]
    assert faults == [EVALUATE] * 3 and "ended with status 1" in lines[2]["fault"]
    assert (lines[1]["arm"], lines[1]["seed"], lines[1]["fault"]) == ("grpo", 84, None)
    monkeypatch.delenv("FAILS")
    assert study()[0] == [(EVALUATE, "grpo_84")]
    assert study()[0] == []


def test_a_limit_waits_for_the_base_in_vain(study, monkeypatch):
    monkeypatch.setenv("FAILS", "study/base")
    called, lines = study()
    assert (TRAIN, "limit_84") not in called
    assert lines[-1]["arm"] == "limit" and "evaluation of the base" in lines[-1]["fault"]


def test_nothing_begins_that_would_not_end_before_the_deadline(study):
    called, lines = study(until=time.time() + 100)  # an evaluation needs 60, a training 120 more
    assert called == [(EVALUATE, "base")]
    assert [line["fault"] is None for line in lines] == [True, False, False]
    assert "not begun" in lines[1]["fault"]


def test_what_took_longer_than_expected_counts(tmp_path):
    progress = Progress(tmp_path / "progress.jsonl")
    for seconds, fault in ((100.0, None), (70.0, None), (900.0, "stopped by SIGTERM")):
        progress.add(Ended("grpo", 84, TRAIN, "", None, seconds, fault))
    study = Study(read_size("tiny"), tmp_path, Deadline(math.inf), progress, SimpleQueue())
    assert study.expected(TRAIN) == 100
    assert study.expected(EVALUATE) == 60  # the guess


def test_a_command_gets_sigterm_at_the_deadline_and_sigkill_if_it_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(trainings, "GRACE_SECONDS", 1.0)
    script = tmp_path / "stays.sh"
    script.write_text(
        "trap 'echo got it' TERM\nsleep 1000 &\necho $! up\nwhile :; do sleep .1; done\n"
    )
    log = tmp_path / "log"
    deadline = Deadline(time.time() + 1000)

    def stop_when_up():
        while not log.exists() or "up" not in log.read_text():
            time.sleep(0.05)
        deadline.bring_forward()

    stopper = threading.Thread(target=stop_when_up)
    stopper.start()
    fault = run_before(["bash", str(script)], log, deadline, 5.0, tmp_path)
    stopper.join()
    assert fault == "stopped by SIGTERM"
    assert "got it" in log.read_text()
    child = int(log.read_text().split()[0])
    while psutil.pid_exists(child) and psutil.Process(child).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.05)


def rows_of(run, answers):
    """Responses by hand: problem -> (correct, tokens) of each sample."""
    rows = []
    for problem, samples in answers.items():
        for number, (correct, tokens) in enumerate(samples):
            row = {"run": run, "benchmark": "own", "problem": problem, "sample": number}
            rows.append({**row, "correct": correct, "tokens": tokens, "truncated": tokens >= 400})
    return rows


def runs_of(*names):
    rows = []
    for name in names:
        arm, _, seed = name.partition("_")
        row = {"run": name, "arm": arm, "seed": int(seed) if seed else None, "steps": 3}
        rows.append({**row, "seconds": 120.0 if seed else 0.0, "fault": None})
    return pd.DataFrame(rows).astype({"seed": "Int64"})


def cells(table):
    """The cells of each row of a Markdown table, without the header."""
    lines = [line for line in table.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_scoreboard_by_hand():
    base = {"p": [(True, 100), (False, 300)], "q": [(False, 400), (False, 400)]}
    grpo = {"p": [(True, 100), (True, 200)], "q": [(False, 300), (True, 200)]}
    again = {"p": [(True, 100), (True, 100)], "q": [(True, 100), (True, 100)]}
    responses = rows_of("base", base) + rows_of("grpo_1", grpo) + rows_of("grpo_2", again)
    responses += rows_of("swap_1", {"p": [(False, 10)], "q": [(False, 20)]})
    runs = runs_of("base", "grpo_1", "grpo_2", "swap_1", "needed_1")
    rows = Rows(runs, pd.DataFrame(responses), pd.DataFrame())
    found = {(row[0], row[1]): row[2:] for row in cells(table_of(rows))}
    # Resampling two problems gives their lower, their mean or their higher value.
    assert found["base", ""][:5] == ["25.0 (0.0 to 50.0)", "300", "100", "367", "50.0"]
    assert found["grpo", "1"][:5] == ["75.0 (50.0 to 100.0)", "200", "167", "300", "0.0"]
    # Both seeds: p has 4 of 4 correct, q 3 of 4; tokens 125 and 175.
    assert found["grpo", "all"][:2] == ["87.5 (75.0 to 100.0)", "150"]
    assert found["grpo", "1"][5:7] == ["+50.0 (+50.0 to +50.0)", "-100 (-150 to -50)"]
    assert found["grpo", "1"][7:9] == ["", ""]
    # A collapsed run stays: less GRPO of both seeds, p -100 and q -75 points.
    assert found["swap", "1"][0] == "0.0 (0.0 to 0.0)"
    assert found["swap", "1"][7:9] == ["-87.5 (-100.0 to -75.0)", "-135 (-155 to -115)"]
    assert found["swap", "1"][2:4] == ["", "15"]
    assert found["needed", "1"] == [*[""] * 9, "2"]


def test_the_p_values_are_of_exact_sign_tests_with_holms_correction():
    """Of eight problems GRPO solves seven more, and swap six more and one less."""
    right, wrong = [(True, 9)], [(False, 9)]
    problems = "abcdefgh"
    answers = {
        "base": dict.fromkeys(problems, wrong) | {"h": right},
        "grpo_1": dict.fromkeys(problems, right),
        "swap_1": dict.fromkeys(problems, right) | {"g": wrong, "h": wrong},
    }
    responses = [row for run, each in answers.items() for row in rows_of(run, each)]
    table = table_of(Rows(runs_of(*answers), pd.DataFrame(responses), pd.DataFrame()))
    # Seven of seven: 2/128, times three. Six of seven: 2 * 8/128, times two. None of two: 1/2.
    said = "grpo less base 0.047, swap less base 0.250, swap less grpo 0.500"
    assert f"p of the differences in accuracy, corrected: {said}\n" in table


def test_intervals_are_those_of_a_slow_bootstrap():
    draw = random.Random(5)
    problems = [str(number) for number in range(60)]
    answers = {}
    for run, chance in (("base", 0.3), ("grpo_1", 0.5)):
        answers[run] = {
            problem: [(draw.random() < chance, draw.randrange(50, 500)) for _ in range(2)]
            for problem in problems
        }
    responses = [row for run, each in answers.items() for row in rows_of(run, each)]
    rows = Rows(runs_of("base", "grpo_1"), pd.DataFrame(responses), pd.DataFrame())
    found = {row[0]: row[2:] for row in cells(table_of(rows))}
    differences = []
    for problem in problems:
        before, after = (answers[run][problem] for run in ("base", "grpo_1"))
        differences.append(
            100 * (fmean(correct for correct, _ in after) - fmean(correct for correct, _ in before))
        )
    means = sorted(fmean(draw.choices(differences, k=60)) for _ in range(4000))
    mean, low, high = numbers_in(found["grpo"][5])
    assert mean == pytest.approx(fmean(differences), abs=0.06)
    assert low == pytest.approx(means[100], abs=1.5)
    assert high == pytest.approx(means[3900], abs=1.5)


def numbers_in(cell):
    """The numbers of `mean (low to high)`."""
    mean, _, interval = cell.partition(" (")
    low, high = interval.strip(")").split(" to ")
    return float(mean), float(low), float(high)


def test_the_kept_rows_give_the_same_table(asked, tmp_path):
    output = tmp_path / "study"
    output.mkdir()
    settings = json.loads((asked / "run.json").read_text())
    settings["graders"] = {"own": {"name": "math", "sha256": "1234"}}
    (asked / "run.json").write_text(json.dumps(settings))
    run = Run("swap", 7)
    for target in (Run(BASE), run):
        shutil.copytree(asked, evaluation_folder(output, target))
    steps = [{"step": 1, "swap/accuracy": 0.25, "length/mean": 80.0}]
    write_rows(output / "runs" / run.name / "metrics.jsonl", steps)
    progress = Progress(output / "progress.jsonl")
    progress.add(Ended(BASE, None, EVALUATE, "2026-01-01", "abc", 10.0, None))
    progress.add(Ended("swap", 7, TRAIN, "2026-01-02", "abc", 60.0, "ended with status 1"))
    progress.add(Ended("swap", 7, TRAIN, "2026-01-03", "abc", 120.0, None))
    progress.add(Ended("swap", 7, EVALUATE, "2026-01-04", "abc", 20.0, None))
    progress.add(Ended("grpo", 7, TRAIN, "2026-01-05", "abc", 30.0, "stopped by SIGTERM"))
    rows = collect(output)
    about = rows.runs.set_index("run").loc["swap_7"]
    assert (about["started"], about["seconds"], about["steps"]) == ("2026-01-02", 180.0, 1)
    assert len(about["model_sha256"]) == 64 and about["graders"] == "1234"
    rows.write(tmp_path / "results")
    again = read_kept(tmp_path / "results")
    assert table_of(again) == table_of(rows)
    pd.testing.assert_frame_equal(again.responses, rows.responses)
    assert "grpo_7, 0 steps: train stopped by SIGTERM" in table_of(again)
    with pytest.raises(ConfigError, match="which lacks runs"):
        read_kept(tmp_path)

    settings["graders"]["own"]["sha256"] = "5678"
    (evaluation_folder(output, run) / "run.json").write_text(json.dumps(settings))
    with pytest.raises(DataError, match="base and swap_7 were graded by different graders"):
        collect(output)

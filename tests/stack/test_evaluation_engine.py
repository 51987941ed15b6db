"""An evaluation with the real engine."""

import json

import pytest
import ray
from support.paths import POLICY
from support.running import words
from support.scripts import python

from openrlhf_swap.evaluation import generate, run
from openrlhf_swap.evaluation.samples import SampleFiles
from openrlhf_swap.files import read_rows

pytestmark = pytest.mark.slow


def evaluation_words(problems, output):
    return words(
        f"-m openrlhf_swap eval run --model {POLICY} --benchmarks {problems} --output {output} "
        "--samples 4 --temperature 1 --top-p 1 --max-tokens 320 --max-model-len 400"
    )


def test_an_interrupted_evaluation_resumes_to_the_same_file(tmp_path, prompts_file):
    problems = prompts_file.read_text().splitlines()[:15]
    problems.append(json.dumps({"problem": "What is 1 + 1?" * 200, "answer": "2"}))
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("\n".join(problems) + "\n")
    command = evaluation_words(prompts, tmp_path / "run")
    assert python(*command).returncode == 0
    path = SampleFiles(tmp_path / "run", "prompts").path("samples")
    rows = list(read_rows(path))
    assert len(rows) == 16 * 4
    # The last problem does not fit the context: empty responses, counted as cut off.
    for row in rows[-4:]:
        assert row["text"] == ""
        assert row["truncated"]
    assert all(row["tokens"] > 0 for row in rows[:-4])

    # Killed in the middle of a line; how a row gets into the file is seen in test_files.py.
    whole = path.read_text()
    written = whole.splitlines(keepends=True)[:30]
    path.write_text("".join(written) + '{"id": ')
    grades = SampleFiles(tmp_path / "run", "prompts").path("grades")
    grades.unlink()
    done = python(*command)
    assert done.returncode == 0
    assert "[evaluation] 30 of 64 samples already generated" in done.stdout
    # Nothing stands below the table.
    assert done.stdout.splitlines()[-1].startswith("run ")
    assert done.stderr == ""
    assert path.read_text() == whole
    assert len(list(read_rows(grades))) == 16 * 4


def test_several_engines_share_the_samples_and_an_error_of_one_is_raised(tmp_path, monkeypatch):
    class EvaluationEngine:
        """Stands in for an engine: a response is its problem.

        The class is defined in the test, so that Ray sends it to the actors.
        """

        def __init__(self, model, **options):
            pass

        def sample(self, requests, settings):
            for request in requests:
                if request.text == "fails":
                    raise ValueError("no memory")
                row = {"id": request.id, "sample": request.sample, "text": request.text}
                yield request.benchmark, {**row, "tokens": 1}

    monkeypatch.setattr(generate, "EvaluationEngine", EvaluationEngine)
    monkeypatch.setattr(generate, "is_cpu_build", lambda: True)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    SampleFiles(tmp_path, "own").path("samples").write_text('{"unfinished')
    args = run.parse_flags(["--model", str(POLICY), "--output", str(tmp_path), "--engines", "2"])
    requests = []
    for name in ("own", "other"):
        requests += [generate.SampleRequest(name, "p", number, "1") for number in range(5)]
    generate.sample(args, requests, 10)
    for name in ("own", "other"):
        rows = read_rows(SampleFiles(tmp_path, name).path("samples"))
        assert sorted(row["sample"] for row in rows) == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="no memory"):
        generate.sample(args, [*requests, generate.SampleRequest("own", "q", 0, "fails")], 11)
    ray.shutdown()

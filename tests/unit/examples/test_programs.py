"""Environments for agents, the quickstart's page, and the launcher of sweeps."""

import asyncio
import json
import random
import re
import runpy
from statistics import fmean, stdev
from types import SimpleNamespace

import pytest
import run_sweep
from addition import CLOSE, Addition, overthinking_trace, shortest_trace
from before_after import write_page
from evaluate import write_traces
from support.paths import POLICY, ROOT
from support.tables import cells_of

from openrlhf_swap.command import run_command
from openrlhf_swap.files import to_line, write_rows, write_text


@pytest.fixture
def play(tokenizer):
    """Makes an agent's response from the texts of its turns."""
    from vllm import SamplingParams

    def play(path, label, *actions):
        texts = iter(actions)

        async def generate(*_, **__):
            text = next(texts)
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            output = SimpleNamespace(token_ids=ids, text=text, finish_reason="stop")
            return SimpleNamespace(outputs=[output])

        engine, prompt = SimpleNamespace(generate=generate), "<|user|>?<|assistant|><think>\n"
        agent = runpy.run_path(str(path))["AgentExecutor"]()
        given = (prompt, label, SamplingParams(), 999, tokenizer, engine)
        response = asyncio.run(agent.execute(*given))
        assert next(texts, None) is None
        start = response["action_ranges"][0][0]
        text = tokenizer.decode(response["observation_tokens"][start:])
        return text, response["reward"], response["extra_logs"]

    return play


def test_the_environment_on_the_page_works_as_printed(play, tmp_path):
    page = (ROOT / "docs" / "use" / "agents.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "lookup.py").write_text(code)
    _, reward, logs = play(tmp_path / "lookup.py", "42", "look up b", "look up c", "so 42")
    assert (reward, logs) == (1.0, {"calls": 2})
    assert play(tmp_path / "lookup.py", "42", "17")[1:] == (0.0, {"calls": 0})


def test_the_quickstart_ends_with_a_page(tmp_path):
    (tmp_path / "train").mkdir()
    swap = {"step_tokens": 8, "max_steps": 25, "newline_patience": 2.0, "close_template": CLOSE}
    write_text(tmp_path / "train" / "swap_config.json", to_line({"swap": swap}))
    metrics = [{"step": n, "swap/accuracy": 0.5, "length/mean": 100.0 - n} for n in (1, 2)]
    write_rows(tmp_path / "train" / "metrics.jsonl", metrics)
    problem, rng = Addition(478, 356), random.Random(0)
    asked = [{"problem": problem.question, "answer": problem.answer}]
    long = [overthinking_trace(problem, rng) for _ in range(3)]
    for name, texts in (("base", long), ("trained", [shortest_trace(problem)] * 3)):
        responses = [
            {"text": text.removesuffix("<|end|>"), "tokens": len(text), "correct": True}
            for text in texts
        ]
        write_traces(tmp_path / f"{name}.traces.jsonl", asked, [responses])
    means = {"accuracy": 0.8, "tokens": 100.0, "redundant": 7.0, "essential": 3.0}
    seconds = dict.fromkeys(("generate", "score", "update", "sync", "total"), 1.0)
    summary = {"base": means, "trained": means | {"tokens": 40.0}, "seconds": seconds}
    page = write_page({"base": POLICY, "trained": POLICY}, summary, tmp_path)
    data = json.loads(re.search(r'id="data">(.*?)</script>', page.read_text(), re.DOTALL)[1])
    (shown,) = data["problems"]
    assert shown["text"] == [problem.question]
    assert data["summary"]["tables"][0]["rows"][1] == ["tokens a response", "100.0", "40.0", "-60%"]
    before, after = shown["columns"]
    longest = max(before, key=lambda one: one["tokens"])
    assert sum(step["penalty"] for step in longest["steps"]) > 0
    assert after[0]["curve"][-1] > after[0]["curve"][0] + 1  # it has computed the answer
    # The credits of the short side of what the page opens with, from its numbers. Three equal
    # responses: nobody pays a penalty, and the group's steps are these, three times.
    short = data["idea"]["sides"][1]["steps"]
    assert [step["text"] for step in short] == shortest_trace(problem).splitlines()[:3]
    for credit, names, later in (("paper", ["gain"], 1), ("own", ["gain", "need"], 0)):
        rewards = [sum(step[name] for name in names) for step in short]
        mean, deviation = fmean(rewards), stdev(3 * rewards)
        normalised = [(reward - mean) / deviation for reward in rewards]
        expected = [own + later * sum(normalised[k + 1 :]) for k, own in enumerate(normalised)]
        assert [step[credit] for step in short] == pytest.approx(expected, abs=2e-3)


TRAIN = """bash -c "printf x >> {output}/runs; [[ {output} != *x_3/seed_2 ]]" """
VALUE = r"printf '{\"value\": %d}' $((2 + {seed}))"
EVALUATE = f'bash -c "{VALUE} > {{output}}/result.json"'


def test_a_sweep_runs_everything_once_and_makes_a_table(tmp_path, capsys):
    rows = [{"name": f"x={x}", "train": ["--x", str(x)]} for x in (2, 3)]
    write_text(tmp_path / "rows.json", json.dumps(rows))
    words = ["--configurations", str(tmp_path / "rows.json"), "--output", str(tmp_path / "sweep")]
    words += ["--seeds", "1", "2", "--train", TRAIN, "--evaluate", EVALUATE]
    assert run_command(run_sweep.main, [*words, "--only", "x=2", "--evaluate", "false"]) == 1
    assert "evaluate failed with status 1" in capsys.readouterr().out
    for _ in range(2):  # x=3, seed 2 fails: the rest is done, and it is the only one to run again
        assert run_command(run_sweep.main, words) == 1
    runs = {path.parent.parent.name + path.parent.name: path for path in tmp_path.rglob("runs")}
    assert {name: path.read_text() for name, path in runs.items()} == {
        "x_2seed_1": "x",
        "x_2seed_2": "x",
        "x_3seed_1": "x",
        "x_3seed_2": "xx",
    }
    # Values 2 + seed over seeds 1 and 2: mean 3.5, deviation .707.
    table = cells_of((tmp_path / "sweep" / "table.md").read_text())
    assert table == [["", "seeds", "value"], ["x=2", "2", "3.500 ± 0.707"], ["x=3", "1", "3.000"]]

"""Environments for agents: the calculator, a game, and the one on the page; and what the calculator
showed.
"""

import asyncio
import importlib.util
import re
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from support.paths import ROOT, STUDIES
from support.tables import corrected_by_hand, tables_in

PAGE = "use/agents.md"
RESULTS = "../examples/agents/README.md"


def load(path: Path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def play(tokenizer):
    """What an agent's response to a prompt becomes when its turns are these texts."""
    from vllm import SamplingParams

    def play(module, label, *actions):
        texts = iter(actions)

        async def generate(prompt_ids, *_, **__):
            text = next(texts)
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            return SimpleNamespace(
                outputs=[SimpleNamespace(token_ids=ids, text=text, finish_reason="stop")]
            )

        engine, prompt = SimpleNamespace(generate=generate), "<|user|>?<|assistant|><think>\n"
        executor = module.AgentExecutor()
        response = asyncio.run(
            executor.execute(prompt, label, SamplingParams(), 999, tokenizer, engine)
        )
        assert next(texts, None) is None
        start = response["action_ranges"][0][0]
        return (
            tokenizer.decode(response["observation_tokens"][start:]),
            response["reward"],
            response["extra_logs"],
        )

    return play


def test_the_calculator_answers_calls_and_grades_the_rest(play):
    calculator = load(ROOT / "examples" / "agents" / "calculator.py")
    calls = ["ones: 7+6+0=", "wait ones: 7+6+0=", "tens: 4+3+1="]
    text, reward, logs = play(calculator, "83", *calls, "</think>\n\n\\boxed{83}")
    assert text == "ones: 7+6+0=13\nwait ones: 7+6+0=13\ntens: 4+3+1=08\n</think>\n\n\\boxed{83}"
    assert (reward, logs) == (1.0, {"calls": 3, "useless_calls": 1})
    assert play(calculator, "84", "\\boxed{83}")[1:] == (0.0, {"calls": 0, "useless_calls": 0})


def test_a_game_of_textarena_gives_hints(play):
    pytest.importorskip("textarena")
    game = load(ROOT / "examples" / "agents" / "guess_number.py")
    text, reward, logs = play(game, "83", "\\boxed{90}", "\\boxed{80}", "\\boxed{83}")
    lower, higher = (
        game.NEXT_TURN.format(f"The target number is {hint}.") for hint in ("lower", "higher")
    )
    assert text == f"\\boxed{{90}}{lower}\\boxed{{80}}{higher}\\boxed{{83}}"
    assert (reward, logs) == (1.0, {"wrong_guesses": 2})
    # The third wrong guess ends it, and so do two turns without one; a near miss earns nothing.
    assert play(game, "83", "\\boxed{1}", "\\boxed{2}", "\\boxed{82}")[1:] == (
        0.0,
        {"wrong_guesses": 3},
    )
    text, *rest = play(game, "83", "\\boxed{82}", "hmm", "\\boxed{82}")
    assert "invalid move" in text and rest == [0.0, {"wrong_guesses": 1}]


def test_the_environment_on_the_page_works_as_printed(play, tmp_path):
    (code,) = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs" / PAGE).read_text(encoding="utf-8"), re.DOTALL
    )
    assert len(code.splitlines()) <= 35
    (tmp_path / "lookup.py").write_text(code)
    lookup = load(tmp_path / "lookup.py")
    text, reward, logs = play(lookup, "42", "look up b", "look up c", "so 42")
    assert (
        text
        == "look up b<|user|>42<|assistant|><think>\nlook up c<|user|>unknown<|assistant|><think>\nso 42"
    )
    assert (reward, logs) == (1.0, {"calls": 2})
    assert play(lookup, "42", "17")[1:] == (0.0, {"calls": 0})


def test_the_tables_on_the_page_are_what_pandas_and_scipy_make_of_the_runs(stats):
    """The file has swap/accuracy, length/mean, calls and useless_calls of each run's metrics.jsonl."""
    runs = pd.read_csv(STUDIES / "results" / "agents.csv")
    runs.accuracy *= 100
    measures = ["accuracy", "tokens", "calls", "useless_calls"]
    ends = runs[runs.step > 13].groupby(["objective", "seed"])[measures].mean()
    of = {name: ends.loc[name] for name in ("grpo", "uniform_penalty", "swap")}
    assert all(list(values.index) == [1, 2, 3, 4, 5] for values in of.values())
    shown = {"first step": runs[runs.step == 1], **of}
    _, *rows = tables_in(RESULTS, "| accuracy, % | tokens")[0]
    for name, *cells in rows:
        values = shown.pop(name)
        assert cells == [
            f"{values[each].mean():.1f} ({values[each].std():.1f})" for each in measures
        ]
    assert not shown
    _, *rows = tables_in(RESULTS, "| accuracy, points; p")[0]
    pairs = [name.split(" - ") for name, *_ in rows]
    assert len(pairs) == 3
    for column, each in enumerate(("accuracy", "tokens", "calls")):
        tests = {f"{a} - {b}": stats.ttest_rel(of[a][each], of[b][each]) for a, b in pairs}
        corrected = corrected_by_hand({name: test.pvalue for name, test in tests.items()})
        for name, *cells in rows:
            low, high = tests[name].confidence_interval()
            mean, half, p = (
                (low + high) / 2,
                (high - low) / 2,
                f"{corrected[name]:.3f}".removeprefix("0"),
            )
            p = {"1.000": "1", ".000": "<.001"}.get(p, p)
            assert cells[column] == f"{mean:+.1f} ± {half:.1f}; {p}"

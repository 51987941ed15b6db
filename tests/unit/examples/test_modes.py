"""The rows that teach a policy what L1, HBPO, AutoThink and Thinkless ask of it."""

import json
import random
import re

import pytest
from make_policy import SKIPPED, build_tokenizer, row_of_modes
from support.paths import ROOT
from world import CLOSE, NAMES, load

BUDGETS = {" Think for N tokens.", " Think for maximum N tokens.", "I will answer the question with N tokens"}
ELLIPSIS, PLAIN = "...\n", ""


@pytest.mark.parametrize("name", NAMES)
def test_rows_of_modes_ask_as_the_methods_do(name):
    world, rng = load(name), random.Random(0)
    problem = next(world.problems(0))
    thoughts: dict[str, list[str]] = {}
    for _ in range(2000):
        given, response = row_of_modes(world, problem, rng)
        assert given.startswith(f"<|user|>{problem.question}")
        question, opening = given.removeprefix(f"<|user|>{problem.question}").split("<|assistant|><think>\n")
        thought, answer = response.split(CLOSE)
        assert answer.endswith("}<|end|>")
        assert ("essential" in world.label_lines(problem.question, thought)) == bool(thought)
        thoughts.setdefault(re.sub(r"\d+", "N", question + opening), []).append(thought)
    assert set(thoughts) == BUDGETS | {ELLIPSIS, PLAIN}
    for asked, found in thoughts.items():
        # 2,000 rows: 400 of a kind, four standard errors are 0.092 of a share of 0.3.
        assert abs(len(found) - 400) < 80
        assert all(found) if asked in BUDGETS else abs(1 - SKIPPED - sum(map(bool, found)) / len(found)) < 0.1


@pytest.mark.parametrize("name", NAMES)
def test_where_a_policy_may_choose_one_token_says_what_it_chose(name):
    # Thinkless's marks: the first token of a response is one of two.
    world, rng = load(name), random.Random(0)
    tokenizer = build_tokenizer(world)
    firsts = set()
    for problem, _ in zip(world.problems(0), range(300), strict=False):
        given, response = row_of_modes(world, problem, rng)
        if given.endswith(f"{problem.question}<|assistant|><think>\n"):
            firsts.add(tokenizer.decode(tokenizer(response, add_special_tokens=False)["input_ids"][0]))
    assert firsts == {world.THINK, "</think>"}


@pytest.mark.parametrize("name", ["addition", "decomposition"])
def test_the_rows_name_the_worlds_own_mark(name):
    rows = json.loads((ROOT / "examples" / "worlds" / "objectives" / f"{name}.json").read_text())
    thinkless = next(row for row in rows if row["name"] == "thinkless")
    assert load(name).THINK in thinkless["train"]

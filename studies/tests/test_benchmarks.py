"""A benchmark of stages that nobody watches, and the scores that another one compares."""

import json
import sys
from types import SimpleNamespace

import torch
from support.families import WORDS, build
from support.prefix_scores import score_shared_prefix
from support.scripts import make_tool

from studies.benchmarks import beside_trl, policy_step

OURS = """
for word; do [[ "$previous" == --swap.output_dir ]] && mkdir -p "$word" && cd "$word"; previous="$word"; done
for step in 1 2 3; do echo "{\\"step\\": $step, \\"timing/step_total\\": $step}"; done > metrics.jsonl
[[ "$PWD" == */grpo ]] && sleep 600 || echo out of memory
[[ "$PWD" != */swap ]]
"""  # noqa: E501


def test_a_stage_that_fails_or_hangs_leaves_its_steps_and_the_others_go_on(tmp_path, monkeypatch):
    """Ours with swap ends with an error, with grpo it hangs, and TRL works."""
    environment = tmp_path / "trl" / "bin"
    environment.mkdir(parents=True)
    make_tool(environment / "python", """for s in 4 5; do echo 'TRIAL {"step": '$s'}'; done""")
    monkeypatch.setattr(sys, "executable", str(make_tool(tmp_path / "python", OURS)))
    output = tmp_path / "out"
    words = ["--output", str(output), "--environment", str(tmp_path / "trl"), "--limit", "2"]
    assert beside_trl.main(words) == 1
    results = json.loads((output / "results.json").read_text())
    stages = results["stages"]
    assert [stage["fault"] and stage["fault"].split(";")[0] for stage in stages.values()] == [
        "ended with status 1",
        "cut off after 2 s",
        None,
    ]
    assert [len(stage["steps"]) for stage in stages.values()] == [3, 3, 2]
    assert stages["swap"]["steps"][2]["step"] == 3 and results["prompts"] == 16
    assert "out of memory" in (output / "swap.log").read_text()  # nothing is deleted


def test_the_policys_step_compares_its_scores_with_those_of_a_pass_per_prefix(monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: "cpu")
    responses = policy_step.Responses(1, context=130, steps=3, vocabulary=WORDS)
    model = build("qwen2")
    engine = torch.nn.Module()
    engine.module = model
    policy = SimpleNamespace(actor=SimpleNamespace(actor=SimpleNamespace(model=engine)))
    scores = score_shared_prefix(model, responses.sequences, responses.mask, [responses.request])
    scored = [SimpleNamespace(signals=[{"answer_logprobs": scores[0]}])]
    assert policy_step.beside_per_prefix(policy, responses, scored) < 1e-5

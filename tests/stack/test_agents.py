"""Agents in the real actors, and in a whole run whose environment fails and that is resumed."""

from pathlib import Path

import pytest
import torch
from support.actors import CLOSE, MEMBERS, learn_from, make_config, stock_rows
from support.disturbing import errors
from support.paths import POLICY, ROOT
from support.running import SMALL_STEPS, of_the_run, run_training, start_training, words
from support.slow_advantages import slow_advantages
from transformers import AutoModelForCausalLM

from openrlhf_swap.files import read_rows
from openrlhf_swap.scoring.answer import answer_branch, score_per_prefix

pytestmark = pytest.mark.slow
CALCULATOR = str(ROOT / "examples" / "agents" / "calculator.py")
FLAGS = [
    *SMALL_STEPS,
    *words(f"--train.agent_func_path {CALCULATOR} --swap.steps turns --data.max_samples 48"),
    *words("--ckpt.save_steps 1 --ckpt.load_enable --train.full_determinism_enable"),
    *words("--swap.rollouts_every 1 --actor.adam.lr 3e-4"),
]
FAILS = """
import sys
from pathlib import Path
sys.path.append({folder!r})
import calculator
from calculator import AgentExecutor

answer = calculator.Calculator.step


async def step(self, state, **more):
    if Path({checkpoint!r}).exists() and Path({fault!r}).exists():
        raise LookupError(1)
    return await answer(self, state)


calculator.Calculator.step = step
"""


def test_turns_earn_what_a_forward_for_each_prefix_says(
    actor_group, arguments, monkeypatch, tokenizer, responses
):
    """Rows of two turns, padded and scored in the policy's own forward; with theta = 0 stock GRPO,
    bit for bit.
    """
    monkeypatch.setattr(arguments.rollout, "micro_batch_size", 3)
    seen = tokenizer("13\n08\n", add_special_tokens=False)["input_ids"]
    agents, cuts = [], []
    for response in responses:
        ids, ((start, end),) = response["observation_tokens"], response["action_ranges"]
        cut = (start + end) // 2
        cuts.append(cut - start)
        ranges = [(start, cut), (cut + len(seen), end + len(seen))]
        agents.append(
            {
                **response,
                "observation_tokens": ids[:cut] + seen + ids[cut:],
                "action_ranges": ranges,
            }
        )
    stock = stock_rows(actor_group, tokenizer, agents)
    zero = learn_from(actor_group, tokenizer, agents, make_config(process_weight=0.0)).rows
    assert all(
        torch.equal(ours[0], expected[0]) for ours, expected in zip(zero, stock, strict=True)
    )

    learned = learn_from(actor_group, tokenizer, agents, make_config())
    rollouts, ours = learned.rollouts, learned.rows
    model = AutoModelForCausalLM.from_pretrained(POLICY, dtype=torch.bfloat16).eval()
    off = []
    for members in MEMBERS:
        expected = slow_advantages([rollouts[i].trace() for i in members])
        for i, values in zip(members, expected, strict=True):
            rollout, cut = rollouts[i], cuts[i]
            torch.testing.assert_close(ours[i][0], torch.tensor(values), rtol=0, atol=1e-5)
            assert (
                len(values)
                == len(rollout.response_ids)
                == len(agents[i]["observation_tokens"]) - rollout.start - 6
            )
            if rollout.correct:
                assert cut - 1 in rollout.step_ends
                lengths = [
                    rollout.start + end + 1 + len(seen) * (end >= cut - 1)
                    for end in rollout.step_ends
                ]
                branch = answer_branch(tokenizer, CLOSE, rollout.answer)
                ids = torch.tensor(agents[i]["observation_tokens"])
                scores = score_per_prefix(model, ids, [rollout.start, *lengths], branch)
                off += (torch.tensor(rollout.answer_logprobs) - scores).abs().tolist()
    # What bfloat16 rounds; by a prefix of other tokens it would be whole nats.
    assert len(off) > 50 and max(off) < 0.1


def test_an_environment_that_fails_costs_one_step_and_the_run_goes_on_where_it_was(
    tmp_path, prompts_file
):
    """It raises in the second step: the first one's checkpoint, metrics and rollouts are there."""
    calm, run = tmp_path / "calm", tmp_path / "run"
    agent, fault = tmp_path / "agent.py", tmp_path / "fault"
    saved = run / "checkpoints" / "_actor" / "global_step1"
    agent.write_text(
        FAILS.format(folder=str(Path(CALCULATOR).parent), checkpoint=str(saved), fault=str(fault))
    )
    flags = [*FLAGS, "--train.agent_func_path", str(agent)]
    expected = run_training(calm, prompts_file, *flags)
    assert [row["step"] for row in expected] == [1, 2, 3]
    for row in expected:
        # Every turn but the last is a call, and the last, too, if the context ends there; an answer
        # has three tokens.
        assert row["calls"] <= row["swap/turns"] <= row["calls"] + 1
        assert row["swap/observation_tokens"] == pytest.approx(3 * (row["swap/turns"] - 1))
        assert row["length/mean"] < row["total_length"] - row["swap/observation_tokens"]
        assert row["swap/adv_process_absmean"] > 0 and row["swap/skipped_steps"] == 0

    fault.touch()
    result = start_training(run, prompts_file, *flags)
    (line,) = errors(result.stderr)
    message = "error: the agent of --train.agent_func_path failed with LookupError: 1"
    assert (result.returncode, line.startswith(message)) == (2, True), line
    assert saved.exists() and [row["step"] for row in read_rows(run / "metrics.jsonl")] == [1]
    assert [file.name for file in (run / "rollouts").iterdir()] == ["step_000001.jsonl"]
    assert "raise LookupError" in (run / "train.log").read_text()

    fault.unlink()
    assert of_the_run(run_training(run, prompts_file, *flags)) == of_the_run(expected)
    for step in (1, 2, 3):
        name = f"rollouts/step_{step:06d}.jsonl"
        rows = list(read_rows(run / name))
        assert rows == list(read_rows(calm / name))
        for row in rows:
            assert "".join(turn["action"] for turn in row["turns"]) == row["response"]
            assert all(turn["observation"].endswith("\n") for turn in row["turns"][:-1])

"""The way of weights on GPUs that vLLM and DeepSpeed share, with stand-ins on a CPU.

One run has a budget of the thought beside it, to save a start.
"""

import os
from itertools import islice

import pytest
import yaml
from safetensors.torch import load_file
from support.running import SMALL_STEPS, run_training, train_by, words
from support.scripts import python

from openrlhf_swap.check import SHARED_GPU
from openrlhf_swap.files import read_rows, write_rows
from openrlhf_swap.flags.configuration import configure
from openrlhf_swap.quickstart.addition import problems
from openrlhf_swap.quickstart.world import CLOSE
from openrlhf_swap.rewards.graded_text import END_OF_THOUGHT
from openrlhf_swap.rollouts.reader import ResponseReader

pytestmark = pytest.mark.slow
ALIKE = 1e-3  # vllm_kl where vLLM has the trainer's weights
on_request = pytest.mark.skipif(
    "TEST_GPU_PATH" not in os.environ, reason="two minutes on two cores: TEST_GPU_PATH=1"
)
COLOCATED = [*SHARED_GPU, "--algo.advantage.is_correction_level", "token"]
TWO_OF_EACH = [*COLOCATED, "--actor.num_gpus_per_node", "2", "--vllm.num_engines", "2"]
# Nearly half of the thoughts of the quickstart's policy are longer, and have their sum by then.
BUDGET = 100


@pytest.fixture
def fake_gpus(monkeypatch, tmp_path):
    """Trainings on slots that stand for GPUs."""
    train_by("support.fake_gpu", tmp_path, monkeypatch)
    monkeypatch.setenv("FAKE_GPU", str(tmp_path))


def choices(number, problem):
    """An addition as multiple choice. The policy boxes a sum, an option's text, and no letter."""
    right = number % 4
    options = [str(int(problem.answer) + place - right) for place in range(4)]
    return {"problem": problem.question, "answer": "ABCD"[right], "options": options}


def test_adapters_arrive_after_an_update_and_long_thoughts_are_closed(
    fake_gpus, tmp_path, tokenizer
):
    """From a file of flags, and with another grader than math-verify.

    gr3 rewards short answers and reads none: no letter has to be likely in a thought.
    """
    drawn = enumerate(islice(problems(7), 16))
    rows = [choices(number, problem) for number, problem in drawn]
    write_rows(tmp_path / "choices.jsonl", rows)
    own = {"swap.grader": "multiple_choice", "swap.objective": "gr3", "ds.lora.rank": 4}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump({"flags": own}))
    flags = [*COLOCATED, *SMALL_STEPS, "--config", str(tmp_path / "recipe.yaml")]
    flags += words(
        f"--data.max_samples 16 --rollout.thought_budget {BUDGET} --swap.rollouts_every 1 "
        "--swap.rollouts_groups 8"
    )
    lines = run_training(tmp_path / "run", tmp_path / "choices.jsonl", *flags)
    assert len(lines) == 2
    assert max(abs(line["vllm_kl"]) for line in lines) < ALIKE
    # Nearly all sums of the quickstart's policy are right; a letter is read in each box that holds
    # an option.
    for line in lines:
        assert line["swap/accuracy"] > 0.3
        assert line["swap/grader_error"] == 0
    # The file that the run wrote has the run's settings.
    again = configure(["--config", str(tmp_path / "run" / "run.yaml")], on_cpu=True)
    settings = (again.run.grader, again.method.objective, again.args.ds.lora.rank)
    assert settings == tuple(own.values())
    assert load_file(tmp_path / "run" / "policy" / "adapter_model.safetensors")
    reader = ResponseReader(tokenizer, END_OF_THOUGHT)
    for line in lines:
        table = tmp_path / "run" / "rollouts" / f"step_{line['step']:06d}.jsonl"
        assert_thoughts_are_closed(line, list(read_rows(table)), reader)


def assert_thoughts_are_closed(line, responses, reader):
    """Compare a step's metrics with the table of all its responses.

    Which tokens of a closed thought belong to steps is seen in test_budget.py.
    """
    assert len(responses) == 32
    close = reader.ids(CLOSE.partition("**")[0])
    closed = 0
    for response in responses:
        ids = reader.ids(response["response"])
        thought = reader.thought_length(ids)
        assert thought <= BUDGET
        closed += thought == BUDGET and ids[BUDGET : BUDGET + len(close)] == close
    assert closed > 0
    assert line["swap/thought_forced_frac"] == pytest.approx(closed / 32)
    assert line["swap/forced_tokens"] == pytest.approx(len(close) * closed / 32)
    lengths = line["length/mean"] - line["response_length"]
    assert lengths == pytest.approx(line["swap/forced_tokens"])
    assert line["swap/thought_unclosed_frac"] == 0


@on_request
@pytest.mark.parametrize("stage", ["2", "3"])
def test_a_dropped_update_shows_and_no_other_does(
    fake_gpus, monkeypatch, tmp_path, prompts_file, stage
):
    """Of two actors and two engines, three rollouts agree with the trainer.

    The fourth is sampled by older weights.
    """
    monkeypatch.setenv("DROPPED_UPDATE", "3")
    lines = run_training(tmp_path / "run", prompts_file, *TWO_OF_EACH, "--ds.zero_stage", stage)
    *good, stale = (line["vllm_kl"] for line in lines)
    assert len(good) == 3
    assert max(map(abs, good)) < ALIKE
    assert abs(stale) > 2 * ALIKE


def test_adam_of_every_stage_is_adam_by_hand():
    """Also where it is offloaded, or resumed with other numbers; nothing is compiled.

    Updates of several backward passes are in test_features.py, sleep is in tests/gpu.
    """
    environment = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29513",
        "DS_ACCELERATOR": "cpu",
        "LOCAL_RANK": "0",
        "RANK": "0",
        "WORLD_SIZE": "1",
    }
    result = python("-m", "support.adam_by_hand", **environment)
    assert result.returncode == 0, result.stderr[-3000:]
    lines = [line for line in result.stdout.splitlines() if line.startswith("differ")]
    differ = [int(line.split()[-1]) for line in lines]
    assert len(differ) == 9
    # Of 8,320 weights in bfloat16, one may be rounded the other way.
    assert max(differ) <= 2
    (loaded,) = [line for line in result.stdout.splitlines() if line.startswith("loaded")]
    assert "adam" not in loaded

"""Decisions before the start, on the real command line: one clear line, status 2, no Ray."""

import shutil

import pytest
from support.command_lines import GOOD, rows_file, run_main
from support.paths import ROOT

from openrlhf_swap import train
from openrlhf_swap.command import run_command
from openrlhf_swap.process.locks import locked
from openrlhf_swap.runs import checkpoints


def test_a_checkpoint_is_not_overwritten(capsys, tmp_path, prompts_file):
    path = tmp_path / "checkpoints"
    checkpoint = path / "_actor" / "global_step2"
    checkpoint.mkdir(parents=True)
    (checkpoint / "states.pt").touch()
    given = ["--data.prompt_dataset", str(prompts_file), "--ckpt.path", str(path)]
    status, error = run_main(capsys, *given)
    assert status == 2
    assert error.startswith(f"error: --ckpt.path is {path}, which holds checkpoint global_step2")
    assert checkpoints.newest(path) == "global_step2"


def test_a_finished_run_says_so_and_does_nothing(capsys, tmp_path, prompts_file, monkeypatch):
    started = []
    monkeypatch.setattr(train, "_train", lambda *words: started.append(words))
    (tmp_path / "out").mkdir()
    flags = {**GOOD, "--swap.output_dir": tmp_path / "out", "--data.prompt_dataset": prompts_file}
    words = []
    for flag, value in flags.items():
        words += [flag, str(value)]

    def start(*more):
        status = run_command(train.main, ["--swap.verbose", *words, *more])
        return status, len(started), "is finished" in capsys.readouterr().out

    longer = ("--train.num_episodes", "2")
    assert start() == (0, 1, False)
    assert start("--ckpt.load_enable") == (0, 1, True)
    assert start("--ckpt.load_enable", *longer) == (0, 2, False)
    assert start("--ckpt.load_enable", *longer) == (0, 2, True)
    assert start("--ckpt.load_enable") == (0, 3, False)  # another command: it ended elsewhere
    assert start() == (0, 4, False)

    other = tmp_path / "other.jsonl"
    shutil.copy(prompts_file, other)
    flags = ("--ckpt.load_enable", "--data.prompt_dataset", str(other))
    status, error = run_main(capsys, "--swap.verbose", *words, *flags)
    assert status == 2
    assert len(started) == 4
    assert error.startswith(f"error: --data.prompt_dataset is {other}, but --swap.output_dir ")
    assert error.endswith(f"finished run with {prompts_file}; give another --swap.output_dir")


@pytest.mark.parametrize("flag", ["--swap.output_dir", "--ckpt.path", "--ckpt.output_dir"])
def test_a_second_run_in_the_same_folder_is_refused(tmp_path, capsys, prompts_file, flag):
    """Although the first has left a torn record; nothing of the first is touched."""
    output = tmp_path / "out"
    incomplete = output / "checkpoints" / "_actor" / "global_step2" / "incomplete"
    incomplete.parent.mkdir(parents=True)
    incomplete.touch()
    (output / "swap_config.json").write_text("{")
    folders = {
        "--swap.output_dir": output,
        "--ckpt.path": output / "checkpoints",
        "--ckpt.output_dir": tmp_path / "policy",
    }
    words = ["--data.prompt_dataset", str(prompts_file), "--ckpt.load_enable"]
    for name, folder in folders.items():
        words += [name, str(folder)]
    with locked({flag: folders[flag]}):
        status, line = run_main(capsys, *words)
    assert status == 2
    assert line.startswith(f"error: {flag} is {folders[flag]}, where another run is under way (")
    assert incomplete.exists()


@pytest.mark.parametrize("flag", ["--swap.output_dir", "--ckpt.path", "--ckpt.output_dir"])
def test_a_run_inside_the_folder_of_one_under_way_is_refused(tmp_path, capsys, prompts_file, flag):
    outer = tmp_path / "outer"
    outer.mkdir()
    (outer / checkpoints.CONFIGURATION).write_text("{}")
    folders = {
        "--swap.output_dir": tmp_path / "out",
        "--ckpt.path": tmp_path / "checkpoints",
        "--ckpt.output_dir": tmp_path / "policy",
        flag: outer / "a" / "inner",
    }
    words = ["--data.prompt_dataset", str(prompts_file)]
    for name, folder in folders.items():
        words += [name, str(folder)]
    with locked({"--swap.output_dir": outer}):
        status, line = run_main(capsys, *words)
    assert status == 2
    assert line.startswith(f"error: {flag} is {folders[flag]}, which is inside {outer}, where ")
    assert list(outer.iterdir()) == [outer / checkpoints.CONFIGURATION]


# Flags that contradict the model, the data or the machine, and how the refusal begins.
REFUSALS = """
--rollout.batch_size 65 --train.batch_size 260 => --data.prompt_dataset is
--actor.num_gpus_per_node 2 --train.micro_batch_size 2 --rollout.micro_batch_size 4 => OpenRLHF ref
--eval.steps 5 --eval.dataset no/such => --eval.dataset is no/such, which cannot be read
--eval.steps 5 --eval.dataset OTHER_COLUMNS => --data.input_key is problem, but
--train.colocate_all --vllm.enable_sleep => --vllm.enable_sleep needs a GPU, but torch is a CPU
--data.max_len 100000 => --data.max_len is 100000
--rollout.thought_budget 316 => --rollout.thought_budget is 316, but --rollout.max_new_tokens 320 le
--rollout.thought_budget 9 --swap.end_of_thought= --train.agent_func_path AGENT => \
--rollout.thought_budget is 9 with --train.agent_func_path
--swap.objective thinkprune => --swap.thinkprune.limits has 4000
--agent.keep_thoughts last => --agent.keep_thoughts is last, but no agent takes turns
--agent.keep_thoughts last --train.agent_func_path AGENT => \
--agent.keep_thoughts is last, whose contexts are packed into one row, but
--agent.keep_thoughts last --train.agent_func_path AGENT --ds.packing_samples \
--swap.logits_chunk 0 => --agent.keep_thoughts is last with --swap.logits_chunk 0
--agent.keep_thoughts last --train.agent_func_path AGENT --ds.packing_samples \
--swap.step_reward need => --agent.keep_thoughts is last with --swap.step_reward need
--agent.keep_thoughts last --train.agent_func_path AGENT --ds.packing_samples \
--swap.end_of_thought= => --agent.keep_thoughts is last, but the model's thoughts have no marks
"""


@pytest.mark.parametrize("case", REFUSALS.strip().splitlines())
def test_what_contradicts_model_data_or_machine_is_refused(capsys, tmp_path, prompts_file, case):
    flags, begins = case.split(" => ")
    other = rows_file(tmp_path / "other.jsonl", [{"question": "What is 1?", "answer": "1"}])
    agent = str(ROOT / "examples" / "agents" / "calculator.py")
    words = flags.replace("OTHER_COLUMNS", other).replace("AGENT", agent).split()
    out = tmp_path / "out"
    given = ["--data.prompt_dataset", str(prompts_file), "--swap.output_dir", str(out)]
    status, line = run_main(capsys, *given, *words)
    assert status == 2
    assert line.startswith("error: " + begins)
    assert not out.exists()

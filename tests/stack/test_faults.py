"""A whole run, and what it survives: processes killed or stuck, and incomplete checkpoints."""

import json
import os
import re
import signal

import pytest
import torch
from safetensors.torch import load_file
from support.disturbing import ENGINE, Run, errors
from support.metric_names import meaning
from support.paths import POLICY
from support.running import SMALL_STEPS, of_the_run, start_training, train_by, training, words
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from openrlhf_swap.files import read_rows

pytestmark = pytest.mark.slow
# Kills the actors and the engine, too, and stops the engine: four starts more.
EVERYTHING = "TEST_SLOW" in os.environ
STEPS = [1, 2, 3, 4, 5, 6]
REPEATED = [3, 4, 5]  # done before the kill and again after it
# Three episodes of 20 prompts: two steps of eight each, four prompts left over.
# With three times this rate the policy is never right after some steps.
FLAGS = SMALL_STEPS + words(
    "--ckpt.save_steps 2 --ckpt.save_hf --ckpt.load_enable --train.full_determinism_enable "
    "--train.num_episodes 3 --data.max_samples 20 --swap.generation_timeout 30 "
    "--actor.adam.lr 3e-4 --swap.rollouts_every 1 --eval.steps 6 --eval.n_samples_per_prompt 1 "
    "--algo.kl.init_coef 0.001 --algo.kl.use_loss --algo.kl.estimator k3 "
    "--ref.num_nodes 1 --ref.num_gpus_per_node 1"
)


def by_step(rows):
    """The metrics of each step that do not depend on the clock, once for each time it was done."""
    found = {}
    # The metric that is left out counts second graders, and the test kills graders.
    for values in of_the_run(rows, "swap/grader_slow"):
        found.setdefault(values["step"], []).append(values)
    return found


def assert_is_complete(run, result, events):
    """What a run leaves, from its metrics to its model card, and its last start's console."""
    metrics = list(read_rows(run / "metrics.jsonl"))
    (evaluation,) = read_rows(run / "evaluations.jsonl")
    assert [line["step"] for line in metrics] == STEPS
    for line in metrics:
        assert line["swap/adv_process_absmean"] > 0
        assert 0 <= line["swap/accuracy"] <= 1
        assert line["timing/generation"] > 0
        assert line["swap/skipped_steps"] == 0
    # The reference model keeps the initial weights, from which the policy moves away.
    assert metrics[0]["kl"] == pytest.approx(0, abs=1e-3)
    assert metrics[-1]["kl"] > 1e-3
    assert "6 steps, " in (run / "policy" / "README.md").read_text(encoding="utf-8")
    trained = load_file(run / "policy" / "model.safetensors")
    moved = []
    for name, weight in load_file(POLICY / "model.safetensors").items():
        change = trained[name].float() - weight.float()
        moved.append(change.abs().max().item())
    # In six steps of 3e-4; that vLLM gets the weights is seen in test_families.py.
    assert max(moved) > 5e-4
    assert moved.count(0) < len(moved) / 2
    tables = sorted(path.name for path in (run / "rollouts").iterdir())
    assert tables == [f"step_{step:06d}.jsonl" for step in STEPS]
    # The console has our lines only, the log everything; what is logged is declared.
    assert all(line.startswith("[swap] ") for line in result.stdout.splitlines()), result.stdout
    assert result.stderr == ""
    assert "the last 4 prompts of this episode do not fill a batch" in result.stdout
    pattern = r"^\[swap\] step (\d)/6: accuracy [\d.]+%, \d+ tokens, "
    assert re.findall(pattern, result.stdout, re.MULTILINE) == [*"3456"]
    log = (run / "train.log").read_text()
    assert "(IntrinsicRewardActor pid=" in log
    assert "EngineCore" in log
    assert result.stdout.splitlines()[-1] in log
    assert evaluation["step"] == 6
    assert "eval_default_pass1" in evaluation
    for line in [*metrics, evaluation]:
        assert [name for name in line if name != "step" and not meaning(name)] == []
    scalars = EventAccumulator(str(events)).Reload().Tags()["scalars"]
    of_steps = {name.removeprefix("train/") for name in scalars if name.startswith("train/")}
    assert of_steps == {name for line in metrics for name in line} - {"step"}
    assert len(scalars) - len(of_steps) == len(evaluation) - 1  # under OpenRLHF's names
    assert json.loads((run / "swap_config.json").read_text())["swap"]["step_tokens"] == 8
    # Two checkpoints are kept, and the one with the best evaluation; all complete.
    saved = {folder.name for folder in (run / "checkpoints" / "_actor").glob("*/")}
    assert saved == {"global_step4", "global_step6", "best_global_step6"}


def test_a_killed_run_does_the_same_steps_again(tmp_path, monkeypatch, prompts_file):
    """What the first start did before its kill is what the resumed run is compared with."""
    flags = [*FLAGS, "--eval.dataset", str(prompts_file)]
    flags += ["--logger.tensorboard_dir", str(tmp_path / "tb")]
    run = Run(tmp_path, prompts_file, flags)
    # The last thing that a step writes.
    table = run.output / "rollouts" / "step_000005.jsonl"
    _, status = run.start_and_disturb(5, None, signal.SIGKILL, table.exists)
    assert status == -signal.SIGKILL
    assert run.latest() == "global_step4"
    # As if it had been killed in the middle of that checkpoint: the one before is used.
    saved = run.output / "checkpoints" / "_actor"
    interrupted = saved / "unfinished_global_step4"
    (saved / "global_step4").rename(tmp_path / interrupted.name)
    exported = run.output / "checkpoints" / "global_step4_hf"
    exported.rename(tmp_path / exported.name)
    if EVERYTHING:
        disturb_every_process(run, tmp_path, prompts_file, flags, monkeypatch)

    (tmp_path / interrupted.name).rename(interrupted)
    result = start_training(run.output, prompts_file, *flags)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    assert "checkpoint unfinished_global_step4 is deleted" in result.stdout
    (events,) = (tmp_path / "tb").iterdir()
    assert len(list(events.glob("events.out.tfevents.*"))) > 1  # one of each start
    assert_is_complete(run.output, result, events)
    shown = EventAccumulator(str(events)).Reload().Scalars("train/swap/accuracy")
    assert [event.step for event in shown] == STEPS

    found = by_step([*run.done, *run.new_rows()])
    assert sorted(found) == STEPS
    assert [step for step in STEPS if len(found[step]) > 1] == REPEATED
    for step in REPEATED:
        first, *again = found[step]
        assert all(values == first for values in again), f"step {step}"
        table = f"step_{step:06d}.jsonl"
        before = run.output / "rollouts.repeated" / table
        assert before.read_text() == (run.output / "rollouts" / table).read_text()
    # The graders were killed in the first start only.
    assert run.graders_killed > 0
    ours = load_file(exported / "model.safetensors")
    theirs = load_file(tmp_path / exported.name / "model.safetensors")
    assert ours.keys() == theirs.keys()
    for name, weight in theirs.items():
        assert torch.equal(ours[name], weight)


def disturb_every_process(run, folder, prompts, flags, monkeypatch):
    """Each start goes on at the checkpoint of step 2, and dies with one of its processes."""
    for name in ("IntrinsicRewardActor", ENGINE):
        assert_says_who_died(name, *run.start_and_disturb(3, name, signal.SIGKILL))
    # Dies while weights travel: the policy sends, and the engine does not receive.
    freely = run.command
    with monkeypatch.context() as patch:
        train_by("support.held_update", folder, patch)
        patch.setenv("HELD_UPDATE", str(folder / "held"))
        run.command = training(run.output, prompts, *flags)
        ended = run.start_and_disturb(
            3, "HeldRolloutActor", signal.SIGKILL, (folder / "held").exists
        )
        assert_says_who_died("RolloutActor", *ended)
    run.command = freely
    # Stopped, not dead: only the time limit ends it.
    output, status = run.start_and_disturb(3, ENGINE, signal.SIGSTOP)
    (line,) = errors(output)
    assert status == 2
    assert "no prompt was finished within --swap.generation_timeout 30 seconds" in line


def assert_says_who_died(name, output, status):
    assert "resuming from checkpoint global_step2" in output
    assert status == 2
    (line,) = errors(output)
    assert "died" in line
    assert "start the same command again to resume from global_step2" in line
    assert name in line or name == ENGINE  # of which its actor tells

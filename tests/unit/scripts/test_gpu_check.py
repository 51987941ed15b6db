"""What is checked about a training, from numbers made by hand."""

from support.paths import ROOT

from benchmarks import gpu_check
from benchmarks.gpu_check import Findings, WrongError, training_flags
from openrlhf_swap.flags.configuration import configure


def step(number, kl=1e-4, **seconds):
    return {"step": number, "vllm_kl": kl, **{f"timing/{k}": value for k, value in seconds.items()}}


def outcome(check, *arguments):
    """The findings of a check, and what was wrong."""
    findings = Findings()
    try:
        check(findings, *arguments)
    except WrongError:
        assert findings.print_table() == 1
    return [line["found"] for line in findings.lines], findings.wrong


def test_a_resumed_training_passes_and_a_lost_step_does_not():
    steps = [step(1, score=9.0), step(2, score=1.0), step(3, score=2.0)]
    found = ["[1, 2, 3], 1 after the kill", "1.50"]  # the first step warms up
    assert outcome(gpu_check.check_steps, steps, 1) == (found, None)
    for rows, resumed in ((steps[::2], 1), (steps, 0)):
        _, wrong = outcome(gpu_check.check_steps, rows, resumed)
        assert f"{resumed} after the kill; docs/use/faults.md says what a resumed run does" in wrong


def test_it_trains_as_the_script_for_one_gpu_does(tmp_path):
    file = ["--config", str(ROOT / "scripts" / "train_swap_1gpu.yaml")]
    script, check = (
        configure(words, on_cpu=False) for words in (file, training_flags("model", tmp_path))
    )
    assert check.method.close_template == gpu_check.CLOSE_TEMPLATE
    theirs, ours = ({name: run.values[name] for name in run.named} for run in (script, check))
    assert set(theirs) - set(ours) == {"train.num_episodes"}
    alike = ("vllm.", "ds.", "train.colocate", "actor.num", "rollout.temperature")
    own = {"vllm.gpu_memory_utilization", "ds.enable_sleep"}
    sharing = {name for name in theirs if name.startswith(alike)} - own
    assert len(sharing) >= 9 and all(ours[name] == theirs[name] for name in sharing)

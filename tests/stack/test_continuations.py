"""An engine that dies while responses are continued, and what it costs the run."""

import os
import signal

import pytest
from support.disturbing import Run, errors
from support.running import of_the_run, run_training, words

REASON = "three starts of a run: TEST_SLOW=1"
pytestmark = [pytest.mark.slow, pytest.mark.skipif("TEST_SLOW" not in os.environ, reason=REASON)]
FLAGS = words(
    "--swap.objective vsrm --swap.vsrm.words check,wait,again --swap.vsrm.first_characters 30 "
    "--swap.vsrm.apart_characters 20 --swap.vsrm.answer_tokens 30 --swap.vsrm.answers 3 "
    "--train.full_determinism_enable --ckpt.save_steps 1 --ckpt.load_enable --swap.verbose"
)


def middle_of(step, run):
    """A function that is true when all first responses of a step have come."""
    full = []  # bars, since the step began

    def has_come():
        full.append(run.log.read_text().count("Generate samples: 100%"))
        if len(run.new_rows()) < step - 1:
            full.clear()
        return bool(full) and full[-1] > full[0]

    return has_come


def test_an_engine_that_dies_in_the_middle_of_them_costs_the_step_and_no_more(
    tmp_path, prompts_file
):
    calm = run_training(tmp_path / "calm" / "run", prompts_file, *FLAGS)
    assert all(row["swap/continued_tokens"] > 0 for row in calm)
    assert all(row["swap/adv_process_absmean"] > 0 for row in calm)

    run = Run(tmp_path, prompts_file, FLAGS)
    output, status = run.start_and_disturb(3, "RolloutActor", signal.SIGKILL, middle_of(3, run))
    (line,) = errors(output)
    assert status == 2 and "died" in line
    assert [row["step"] for row in run.done] == [1, 2]
    again = run_training(run.output, prompts_file, *FLAGS)
    assert [row["step"] for row in again] == [1, 2, 3, 4]
    slow = "swap/grader_slow"  # graders were killed
    assert of_the_run(again, slow) == of_the_run(calm, slow)

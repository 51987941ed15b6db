"""The command `train`, called in the process of the test."""

import json

from openrlhf_swap import train
from openrlhf_swap.command import run_command
from support.paths import POLICY

GOOD = {
    "--actor.model_name_or_path": str(POLICY),
    "--data.input_key": "problem",
    "--data.label_key": "answer",
    "--rollout.n_samples_per_prompt": "4",
    "--rollout.max_new_tokens": "320",
    "--data.max_len": "400",
    "--rollout.batch_size": "1",
    "--train.batch_size": "4",
}


def run_main(capsys, *words):
    """Start a training with `GOOD` flags and more; returns its status and last error line."""
    # Verbose, because a quiet run redirects the output of its process: here, of the tests.
    argv = ["--data.apply_chat_template", "--swap.verbose"]
    for flag, value in GOOD.items():
        argv += [flag, value]
    status = run_command(train.main, [*argv, *words])
    return status, capsys.readouterr().err.strip().splitlines()[-1]


def rows_file(path, rows):
    """Write rows as JSON lines; returns the path as a flag's value."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)

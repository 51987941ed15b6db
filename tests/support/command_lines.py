"""The training's command line in this process."""

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


def run_main(capsys, *extra, **changes):
    flags = {**GOOD, **{key: value for key, value in changes.items() if value is not None}}
    argv = [word for flag, value in flags.items() for word in (flag, value)]
    # Verbose, because a quiet run redirects the output of its process, which is the tests' own
    # here.
    status = run_command(
        train.main, [*argv, "--data.apply_chat_template", "--swap.verbose", *extra]
    )
    return status, capsys.readouterr().err.strip().splitlines()[-1]


def rows_file(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)

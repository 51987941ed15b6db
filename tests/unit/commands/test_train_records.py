"""What a start makes of files that an earlier one left, and of a run that is under way."""

from pathlib import Path

import pytest
from support.command_lines import run_main

from openrlhf_swap.runs.locks import LOCK, locked


@pytest.mark.parametrize("flag", ["--swap.output_dir", "--ckpt.path", "--ckpt.output_dir"])
def test_a_second_run_in_the_same_folder_is_refused(tmp_path, capsys, prompts_file, flag):
    """Although the first has left a torn record; nothing of the first is touched."""
    output = tmp_path / "out"
    checkpoint = output / "checkpoints" / "_actor" / "global_step2"
    checkpoint.mkdir(parents=True)
    (checkpoint / "incomplete").touch()
    (output / "swap_config.json").write_text("{")
    flags = {"--data.prompt_dataset": str(prompts_file), "--swap.output_dir": str(output)}
    flags |= {
        "--ckpt.path": str(output / "checkpoints"),
        "--ckpt.output_dir": str(tmp_path / "policy"),
    }
    with locked({flag: Path(flags[flag])}):
        status, line = run_main(capsys, "--ckpt.load_enable", **flags)
    assert status == 2
    assert line.startswith(
        f"error: {flag} is {flags[flag]}, where another run is under way ({LOCK}); wait"
    )
    assert (checkpoint / "incomplete").exists()

"""What a start of the training makes of the files that an earlier one left, and of one that is still running."""

import pytest
from support.command_lines import run_main

from openrlhf_swap import train
from openrlhf_swap.runs.lock import LOCK, locked

TORN = [b"", b"{", b"[]", b"null", b"\0" * 4096, b"\xff{}", b"[" * 100_000]


@pytest.mark.parametrize("torn", TORN)
@pytest.mark.parametrize("name", [train.FINISHED, "swap_config.json"])
def test_a_torn_record_is_one_line_and_ignored(tmp_path, capsys, name, torn):
    (tmp_path / name).write_bytes(torn)
    found = train._tracked_run(tmp_path, True)[0] if name != train.FINISHED else train._read_record(tmp_path / name)
    assert not found
    assert capsys.readouterr().out == f"[swap] {tmp_path / name} cannot be read and is ignored\n"


def test_a_second_run_in_the_same_folder_is_refused(tmp_path, capsys, prompts_file):
    """Although the first has left a torn record; nothing of the first is touched."""
    output = tmp_path / "out"
    checkpoint = output / "checkpoints" / "_actor" / "global_step2"
    checkpoint.mkdir(parents=True)
    (checkpoint / "incomplete").touch()
    (output / train.FINISHED).write_text("{")
    flags = {"--data.prompt_dataset": str(prompts_file), "--swap.output_dir": str(output)}
    flags["--ckpt.path"] = str(output / "checkpoints")
    with locked({"--swap.output_dir": output}):
        status, line = run_main(capsys, "--ckpt.load_enable", **flags)
    assert status == 2
    assert line.startswith(f"error: --swap.output_dir is {output}, where another run is under way ({LOCK}); wait")
    assert (checkpoint / "incomplete").exists()

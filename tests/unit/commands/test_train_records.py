"""What a start makes of files that an earlier one left, and of a run that is under way."""

import json
from pathlib import Path

import pytest
from support.command_lines import run_main, without_launch
from support.paths import POLICY

from openrlhf_swap import train
from openrlhf_swap.flags.configuration import configure
from openrlhf_swap.integration.startup import preflight
from openrlhf_swap.runs import provenance
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


def test_ray_gets_whole_paths_and_the_records_what_was_given(tmp_path, monkeypatch, prompts_file):
    """On a cluster started elsewhere a relative model would be taken for one of the hub."""
    launched = without_launch(monkeypatch)
    monkeypatch.setattr(preflight, "resolve_run", lambda configuration: configuration)
    monkeypatch.setattr(provenance, "commit", lambda: None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").symlink_to(POLICY)
    (tmp_path / "rows.jsonl").symlink_to(prompts_file)
    line = "--actor.model_name_or_path model --data.prompt_dataset rows.jsonl --swap.output_dir out"
    given = line.split()
    train._train(configure(given), given)
    args = launched[0].args
    assert args.actor.model_name_or_path == f"{tmp_path}/model"
    assert args.data.prompt_dataset == f"{tmp_path}/rows.jsonl"
    assert args.ckpt.path == f"{tmp_path}/out/checkpoints"
    assert args.ckpt.output_dir == f"{tmp_path}/out/policy"
    about = json.loads((tmp_path / "out" / "swap_config.json").read_text())
    names = {kind: one["name"] for kind, (one,) in about["inputs"].items()}
    assert names == {"data": "rows.jsonl", "weights": "model"}
    assert about["flags"]["actor.model_name_or_path"] == "model"

"""What a start of the training makes of the files that an earlier one left, and of one that is still running."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.command_lines import run_main
from support.paths import POLICY

from openrlhf_swap import train
from openrlhf_swap.config import RunConfig, SwapConfig
from openrlhf_swap.flags.defaults import with_folders
from openrlhf_swap.flags.run_file import write_run_file
from openrlhf_swap.flags.stock import parse_arguments
from openrlhf_swap.flags.swap import parse_swap_arguments
from openrlhf_swap.integration.runtime import cpu
from openrlhf_swap.integration.startup import preflight
from openrlhf_swap.objectives.recipes import with_file
from openrlhf_swap.runs import provenance
from openrlhf_swap.runs.lock import LOCK, locked

LAUNCH = "openrlhf_swap.integration.startup.launch"
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


def folders_of(words):
    """The folders of a run in force, whole: of its checkpoints and its policy."""
    _, run, told = parse_swap_arguments(with_file(words))
    ckpt = parse_arguments(train._settled(with_folders(told, Path(run.output_dir)))).ckpt
    return ckpt.path, ckpt.output_dir


def test_each_run_has_folders_of_its_own(tmp_path, monkeypatch):
    """OpenRLHF's are the same for all, so that every run would export over the one before."""
    monkeypatch.chdir(tmp_path)
    outputs = tmp_path / "outputs"
    given = ["--swap.output_dir", "outputs/a"]
    assert folders_of(given) == (f"{outputs}/a/checkpoints", f"{outputs}/a/policy")
    assert folders_of([*given, "--ckpt.output_dir", "mine"]) == (f"{outputs}/a/checkpoints", f"{tmp_path}/mine")


def test_the_file_of_a_run_leads_no_other_run_into_its_folders(tmp_path):
    (tmp_path / "a").mkdir()
    argv = train._settled(with_folders(["--ckpt.path", "/disk"], tmp_path / "a"))
    write_run_file(tmp_path / "a", argv, SwapConfig(), RunConfig(output_dir=str(tmp_path / "a")))
    again = ["--config", str(tmp_path / "a" / "run.yaml")]
    assert folders_of(again) == ("/disk", f"{tmp_path}/a/policy")
    assert folders_of([*again, "--swap.output_dir", str(tmp_path / "b")]) == ("/disk", f"{tmp_path}/b/policy")


def test_a_folder_that_the_policy_cannot_be_exported_to_is_refused(tmp_path, capsys, prompts_file):
    flags = {"--data.prompt_dataset": str(prompts_file), "--swap.output_dir": str(tmp_path / "out")}
    status, line = run_main(capsys, **flags, **{"--ckpt.output_dir": str(prompts_file)})
    assert (status, list(tmp_path.iterdir())) == (2, [])
    reason = "which cannot be written to (Not a directory); use another"
    assert line == f"error: --ckpt.output_dir is {prompts_file}, {reason}"


def test_backslash_and_n_in_a_template_are_a_newline():
    settled = train._settled([r"--data.input_template=--Q: {}\nA:"])
    assert parse_arguments(settled).data.input_template == "--Q: {}\nA:"


def test_ray_gets_whole_paths_and_the_records_what_was_given(tmp_path, monkeypatch, prompts_file):
    """On a cluster that was started elsewhere a relative model would be taken for one of the hub."""
    started = []
    monkeypatch.setitem(sys.modules, LAUNCH, SimpleNamespace(launch=lambda argv, *_: started.append(argv)))
    monkeypatch.setattr(preflight, "resolve_run", lambda args, config, run: (config, args.data.prompt_dataset, None))
    monkeypatch.setattr(cpu, "set_cpu_environment", lambda: None)
    monkeypatch.setattr(provenance, "commit", lambda: None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").symlink_to(POLICY)
    (tmp_path / "rows.jsonl").symlink_to(prompts_file)
    given = ["--actor.model_name_or_path", "model", "--data.prompt_dataset", "rows.jsonl"]
    train._train(SwapConfig(), RunConfig(output_dir="out"), with_folders(given, Path("out")), given)
    args = parse_arguments(started[0])
    assert (args.actor.model_name_or_path, args.data.prompt_dataset) == (f"{tmp_path}/model", f"{tmp_path}/rows.jsonl")
    assert (args.ckpt.path, args.ckpt.output_dir) == (f"{tmp_path}/out/checkpoints", f"{tmp_path}/out/policy")
    about = json.loads((tmp_path / "out" / "swap_config.json").read_text())
    names = {kind: one["name"] for kind, (one,) in about["inputs"].items()}
    assert names == {"data": "rows.jsonl", "weights": "model"}
    assert str(tmp_path / "model") not in about["command_with_defaults"]

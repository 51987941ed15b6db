"""A command line becomes one configuration: its layers, its files, and its one parse."""

import pytest
import yaml

from openrlhf_swap import plan, train
from openrlhf_swap.command import run_command
from openrlhf_swap.evaluation import run as evaluation
from openrlhf_swap.flags.configuration import configure, find_special
from openrlhf_swap.flags.rules import check_flags, check_objective
from openrlhf_swap.objectives.registry import OBJECTIVES
from openrlhf_swap.recipes import FOLDER, NAMES, read_recipe
from openrlhf_swap.runs.record import redacted
from openrlhf_swap.sizing.settings import may_raise_chunk

NEEDED = "--actor.model_name_or_path m --data.prompt_dataset d --data.label_key answer"


def read(flags, **more):
    return configure(flags.split(), **more)


@pytest.fixture
def file(tmp_path):
    """Writes flags into a file; returns its path as text."""

    def write(text, name="own.yaml"):
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return write


def test_each_layer_wins_over_the_ones_before(file):
    own = file(
        "flags: {swap.recipe: dler, actor.adam.lr: 2e-6, rollout.batch_size: 64, "
        "ds.packing_samples: true}"
    )
    run = read(f"--config {own} --rollout.batch_size=8", on_cpu=False)
    args = run.args
    assert run.method.objective == run.run.recipe == run.recipe.name == "dler"
    assert args.critic.adam.lr == 9e-6  # OpenRLHF's
    assert args.ckpt.max_num == 2  # ours
    assert args.rollout.temperature == 1.0  # the recipe's over ours
    assert args.actor.dual_clip == 10.0
    assert args.algo.kl.use_loss
    assert args.actor.adam.lr == 2e-6  # the file's
    assert args.ds.packing_samples
    assert args.rollout.batch_size == 8  # the command line's
    objective = "--swap.objective adaptthink"
    assert read(objective).args.actor.policy_loss_type == "gspo"  # the objective's
    both = read(f"{objective} --actor.policy_loss_type ppo")
    assert both.args.actor.policy_loss_type == "ppo"


def test_switches_are_turned_off(file):
    text = "flags: {swap.recipe: dler, algo.kl.use_loss: true, swap.verbose: true}"
    run = read(f"--config {file(text)} --no-algo.kl.use_loss --no-swap.verbose")
    assert not run.args.algo.kl.use_loss
    assert not run.run.verbose
    off = f"--config {file('flags: {swap.recipe: dler, algo.dynamic_filtering_enable: false}')}"
    assert read("--swap.recipe dler").args.algo.dynamic_filtering_enable
    assert not read(off).args.algo.dynamic_filtering_enable
    assert read(f"{off} --algo.dynamic_filtering_enable").args.algo.dynamic_filtering_enable


def test_our_defaults_follow_the_run():
    correction = read("--train.async_enable").args.algo.advantage
    assert correction.is_correction_level == "token"
    off = read("--train.async_enable --algo.advantage.is_correction_level off").args.algo.advantage
    assert off.is_correction_level == "off"
    assert configure([], on_cpu=True).args.vllm.sync_backend == "gloo"
    assert configure([], on_cpu=False).args.vllm.sync_backend == "nccl"
    ckpt = read("--swap.output_dir a --ckpt.output_dir mine").args.ckpt
    assert ckpt.path == "a/checkpoints"
    assert ckpt.output_dir == "mine"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("objective: swap", "which has no section flags; give a YAML file with a section flags"),
        ("- a", "which has no section flags"),
        ("flags: {a: {b: 1}}", "whose a holds other names; write a.b in one line"),
        ("flags: [", "which cannot be read (while parsing"),
        (None, "which cannot be read ([Errno 2]"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line(file, tmp_path, capsys, text, message):
    path = str(tmp_path / "absent.yaml") if text is None else file(text)
    commands = [(train.main, []), (plan.main, ["--gpu", "80"]), (evaluation.main, [])]
    for main, needed in commands:
        assert run_command(main, [*needed, "--config", path]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"error: --config is {path}, ")
        assert message in line


def test_later_files_win_and_the_command_line_wins_over_them(file):
    text = "flags: {swap.recipe: dler, rollout.batch_size: 8, actor.eps_clip_low_high: [0.1, 0.3]}"
    first = file(text, "a.yaml")
    second = file("flags: {rollout.batch_size: 16, actor.eps_clip: 0.15, eval.steps: -1}", "b.yaml")
    run = read(f"--config={first} --config {second} --actor.adam.lr 1e-5")
    assert run.args.rollout.batch_size == 16
    assert run.args.actor.eps_clip_low_high == (0.15, 0.15)
    assert {"rollout.batch_size", "actor.adam.lr"} <= run.overruled
    assert "actor.dual_clip" not in run.overruled


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_is_accepted_by_the_checks_of_a_run_and_names_its_sources(name, tmp_path):
    # How a step is shared is the machine's business.
    flags = f"--swap.recipe={name} {NEEDED} --vllm.num_engines 1 --actor.num_gpus_per_node 1"
    if name == "adaptthink":
        (tmp_path / "reference.jsonl").touch()
        flags += f" --swap.adaptthink.reference {tmp_path}/reference.jsonl"
    run = read(flags, on_cpu=False)
    check_flags(run)
    check_objective(run)
    assert run.run.recipe == name
    assert run.method.objective in OBJECTIVES
    recipe = read_recipe(name)
    text = yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    assert set(recipe.sources) == set(recipe.flags) == set(text["flags"])
    without = [flag for flag, source in recipe.sources.items() if not source]
    assert set(without) <= {"swap.objective"}
    assert recipe.origin
    assert all(isinstance(missing, str) for missing in recipe.cannot)


def test_the_settings_of_a_run_start_it_again(tmp_path, prompts_file):
    ours = (
        "--swap.objective lapo --swap.lapo.first_stage_steps 7 --swap.tau inf --swap.verbose "
        r"--swap.close_template </think>\n\boxed{ --swap.grader regex:Answer:(\w+)"
    )
    theirs = (
        f"--actor.model_name_or_path m --data.prompt_dataset {prompts_file} --data.label_key a "
        "--actor.eps_clip_low_high 0.2 0.28 --ds.packing_samples --logger.wandb.key secret "
        "--rollout.temperature 1.0"  # OpenRLHF's default, and not ours
    )
    run = read(f"{ours} {theirs}", on_cpu=True)
    dump = run.dump()
    assert run.method.close_template == "</think>\n\\boxed{"
    assert "secret" not in str(dump)
    assert "reward.remote_url" not in dump
    assert "ckpt.path" not in dump
    # Defaults are written, too, because they may change.
    assert dump["rollout.max_new_tokens"] == 12000
    assert dump["swap.process_weight"] == 0.3
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump({"flags": dump}))
    again = read(f"--config {path}", on_cpu=True)
    assert again.method == run.method
    assert again.run == run.run
    changed = {name for name, value in run.values.items() if again.values[name] != value}
    # The time of day stands in the run's name.
    assert changed <= {"logger.wandb.key", "logger.wandb.run_name"}
    # A run from this file has folders of its own.
    other = read(f"--config {path} --swap.output_dir b")
    assert other.args.ckpt.path == "b/checkpoints"


def test_the_plan_still_says_how_many_logits_a_repeated_run_holds(tmp_path):
    path = tmp_path / "run.yaml"
    for flags, is_chosen in (("", True), ("--swap.logits_chunk 1024", False)):
        path.write_text(yaml.safe_dump({"flags": read(flags, on_cpu=False).dump()}))
        again = read(f"--config {path}", on_cpu=False)
        assert again.run.logits_chunk == 1024
        assert may_raise_chunk(again) == is_chosen


def test_no_secret_of_an_address_is_recorded():
    address = "https://user:password@host:5000/reward?key=abc&to=d"
    flags = f"--reward.remote_url mine.py,{address},http://host/plain"
    shown = "https://***@host:5000/reward?***"
    recorded = f"mine.py,{shown},http://host/plain"
    assert read(flags).dump()["reward.remote_url"] == recorded
    assert redacted([f"--reward.remote_url={address}", "a@b?c"]) == [
        f"--reward.remote_url={shown}",
        "a@b?c",
    ]


def test_files_here_go_to_ray_by_their_whole_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("model,1", "data"):
        (tmp_path / name).mkdir()
    for name in ("rows.jsonl", "mine.py"):
        (tmp_path / name).touch()
    given = [
        "--data.prompt_dataset",
        "rows.jsonl, some/hub_set,data@part",
        "--actor.model_name_or_path",
        "model,1",
        "--swap.output_dir",
        "out",
        "--reward.remote_url",
        "mine.py,http://host:5000",
    ]
    args = configure(given).use_whole_paths().args
    assert args.actor.model_name_or_path == f"{tmp_path}/model,1"
    assert args.data.prompt_dataset == f"{tmp_path}/rows.jsonl,some/hub_set,{tmp_path}/data@part"
    assert args.reward.remote_url == [f"{tmp_path}/mine.py", "http://host:5000"]
    assert args.ckpt.path == f"{tmp_path}/out/checkpoints"
    assert args.eval.dataset is None
    # OpenRLHF would split this path.
    folder = tmp_path / "lr=1e-6,theta=0.3"
    folder.mkdir()
    (folder / "rows.jsonl").touch()
    monkeypatch.chdir(folder)
    run = read("--data.prompt_dataset rows.jsonl --actor.model_name_or_path m")
    args = run.use_whole_paths().args
    assert args.data.prompt_dataset == "rows.jsonl"
    assert find_special(folder) == ","

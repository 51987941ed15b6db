"""Flags in files: `--config` of train, plan and the evaluation, and the file of a run that starts it again."""

import pytest
import yaml
from support.paths import POLICY

from openrlhf_swap import plan, train
from openrlhf_swap.command import run_command
from openrlhf_swap.config import RunConfig, SwapConfig
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.evaluation import run as evaluation
from openrlhf_swap.flags.defaults import with_defaults
from openrlhf_swap.flags.run_file import write_run_file
from openrlhf_swap.flags.stock import parse_arguments
from openrlhf_swap.flags.swap import parse_swap_arguments
from openrlhf_swap.objectives.recipes import describe, read_file, read_recipe, with_file, with_recipe


@pytest.fixture
def file(tmp_path):
    """Writes flags into a file; returns its path as text."""

    def write(text, name="own.yaml"):
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return write


def test_the_command_line_wins_over_the_file_and_the_file_over_a_recipe(file):
    text = "flags: {swap.recipe: dler, actor.adam.lr: 2e-6, rollout.batch_size: 64, ds.packing_samples: true}"
    given = ["--config", file(text), "--rollout.batch_size=8"]
    config, run, rest = parse_swap_arguments(with_recipe(given))
    stock = parse_arguments(rest)
    assert (config.objective, run.recipe) == ("dler", "dler")
    assert (stock.rollout.batch_size, stock.actor.adam.lr, stock.actor.dual_clip) == (8, 2e-6, 10.0)
    assert stock.ds.packing_samples and stock.algo.kl.use_loss
    stock = parse_arguments(parse_swap_arguments(with_recipe([*given, "--no-ds.packing_samples"]))[2])
    assert not stock.ds.packing_samples
    # Of a switch that both have nothing is left.
    both = ["--config", file("flags: {swap.recipe: dler, algo.kl.use_loss: true}"), "--no-algo.kl.use_loss"]
    assert not parse_arguments(parse_swap_arguments(with_recipe(both))[2]).algo.kl.use_loss
    # Nor of a recipe's that is false in the file, unless the command line has it.
    off = ["--config", file("flags: {swap.recipe: dler, algo.dynamic_filtering_enable: false}")]
    flag = "--algo.dynamic_filtering_enable"
    assert flag in with_recipe(["--swap.recipe", "dler"]) and flag not in with_recipe(off)
    assert flag in with_recipe([*off, flag])
    assert f"  {flag} (the command line wins)" in "\n".join(describe(read_recipe("dler"), off))
    with pytest.raises(ConfigError, match=r"--no-actor.dual_clip is not a switch of the recipe dler and .*own.yaml"):
        with_recipe([*given, "--no-actor.dual_clip"])


def test_what_a_file_may_hold(file):
    path = file("flags:\n  a: 1e-6\n  b: false\n  c: null\n  d: true\n  e: [0.2, 0.28]\n  f: ''\n  g: 0\n")
    assert with_file([f"--config={path}"]) == ["--a", "1e-6", "--d", "--e", "0.2", "0.28", "--f", "", "--g", "0"]
    assert with_file(["--x", "1"]) == ["--x", "1"]


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
    for command in (train.main, plan.main, evaluation.main):
        assert run_command(command, ["--config", path]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"error: --config is {path}, ") and message in line


def test_a_plan_and_an_evaluation_read_their_flags_from_a_file(file):
    training = {"gpu": "h100", "model": str(POLICY), "swap.objective": "grpo", "vllm.num_engines": 1}
    path = file(yaml.safe_dump({"flags": {**training, "actor.num_gpus_per_node": 1}}))
    own, rest = plan._parser().parse_known_args(with_file(["--config", path, "--rows", "5"]))
    config, _, args = plan.training_command(own, rest)
    assert (own.gpu, own.rows, config.objective, args.actor.num_gpus_per_node) == ("h100", 5, "grpo", 1)
    flags = {"model": "m", "output": "o", "benchmarks": ["aime24", "gpqa_diamond"], "top-p": 0.9, "samples": 2}
    args = evaluation.parse(with_file(["--config", file(yaml.safe_dump({"flags": flags})), "--samples", "4"]))
    assert (args.model, args.benchmarks, args.top_p, args.samples) == ("m", ["aime24", "gpqa_diamond"], 0.9, 4)


def test_the_file_of_an_evaluation_gives_its_flags_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.jsonl").touch()
    given = ["--model", "m", "--output", "o", "--benchmarks", "own.jsonl", "aime24", "--suffix", "", "--grade-again"]
    args = evaluation.parse([*given, "--limit", "3", "--seed", "0", "--swap.end_of_thought", "</think>"])
    (tmp_path / "o").mkdir()
    evaluation.write_settings(args, {"inputs": {"weights": []}, "command": "c"}, {}, [])
    flags = ["--config", str(tmp_path / "o" / "run.yaml")]
    again = evaluation.parse(with_file(flags))
    own, folder = str(tmp_path / "own.jsonl"), tmp_path / "o"
    assert vars(again) == {**vars(args), "benchmarks": [own, "aime24"], "output": folder, "grade_again": False}
    assert evaluation.parse(with_file([*flags, "--output", "new"])).output.name == "new"


def test_the_file_of_a_run_gives_the_same_settings_again(tmp_path, prompts_file):
    given = ["--swap.objective", "lapo", "--swap.lapo.first_stage_steps", "7", "--swap.tau", "inf"]
    given += ["--swap.close_template", r"</think>\n\boxed{", "--swap.grader", r"regex:Answer: (\w+)", "--swap.verbose"]
    given += [
        "--actor.model_name_or_path",
        "m",
        "--data.prompt_dataset",
        str(prompts_file),
        "--data.label_key",
        "answer",
    ]
    given += ["--actor.eps_clip_low_high", "0.2", "0.28", "--ds.packing_samples", "--logger.wandb.key", "secret"]
    given += ["--rollout.temperature", "1.0"]  # OpenRLHF's default, and not ours
    config, run, rest = parse_swap_arguments(given)
    argv = with_defaults(rest, config.objective, on_cpu=True)
    write_run_file(tmp_path, argv, config, run)
    path = tmp_path / "run.yaml"
    assert "secret" not in path.read_text()
    again = parse_swap_arguments(with_recipe(["--config", str(path)]))
    assert again[:2] == (config, run)
    before, after = parse_arguments(argv), parse_arguments(with_defaults(again[2], config.objective, on_cpu=True))
    before.logger.wandb.key = None
    assert after == before
    assert set(read_file(path, "run").flags) >= {"--rollout.batch_size", "--actor.eps_clip_low_high"}


def test_defaults_of_ours_stand_in_the_file(tmp_path):
    """They may change with the package, and the file is to start the same run."""
    write_run_file(tmp_path, with_defaults([], "swap", on_cpu=False), SwapConfig(), RunConfig())
    flags = yaml.safe_load((tmp_path / "run.yaml").read_text())["flags"]
    assert (flags["rollout.max_new_tokens"], flags["swap.process_weight"]) == ("12000", 0.3)
    assert "reward.remote_url" not in flags and "swap.verbose" not in flags

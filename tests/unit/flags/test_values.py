"""Values that cannot work are refused by the flag's name, before anything heavy is imported."""

import pytest

from openrlhf_swap.config import RunConfig, SwapConfig
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.flags.placement import crowded
from openrlhf_swap.flags.rules import checked_arguments
from openrlhf_swap.flags.stock import stock_parser
from openrlhf_swap.flags.values import NUMBERS

GOOD = ["--actor.model_name_or_path", "m", "--data.prompt_dataset", "d", "--data.label_key", "a"]
GOOD += ["--vllm.num_engines", "1", "--actor.num_gpus_per_node", "1"]
ACTIONS = {action.dest: action for action in stock_parser()._actions if action.type in (int, float)}
WRONG = [
    ("actor.adam.lr", "nan", "nan; use more than 0"),
    ("actor.adam.lr", "-1", "-1; use more than 0"),
    ("actor.adam.lr", "inf", "inf; use more than 0"),
    ("actor.adam.betas", "0.9 1", "0.9 1; use at least 0 and less than 1"),
    ("actor.eps_clip", "0", "0; use more than 0"),
    ("actor.eps_clip_low_high", "0.2 nan", "0.2 nan; use more than 0"),
    ("actor.dual_clip", "1", "1; use more than 1"),
    ("algo.dynamic_filtering_range", "1 0", "1 0; use a finite number, and each value larger than the one before"),
    ("ckpt.save_steps", "0", "0; use at least 1, or -1 to switch it off"),
    ("eval.steps", "0", "0; use at least 1, or -1 to switch it off"),
    ("data.max_len", "1", "1; use at least 2"),
    ("data.max_samples", "0", "0; use at least 1"),
    ("ds.zero_stage", "5", "5; use at least 0 and at most 3"),
    ("logger.logging_steps", "0", "0; use at least 1"),
    ("rollout.temperature", "0", "0; use more than 0"),
    ("rollout.temperature", "-1", "-1; use more than 0"),
    ("rollout.top_p", "0", "0; use more than 0 and at most 1"),
    ("train.num_episodes", "0", "0; use at least 1"),
    ("train.max_epochs", "0", "0; use at least 1"),
    ("train.seed", "-1", "-1; use at least 0 and at most 4.29497e+09"),
    ("train.batch_size", "9223372036854775808", "9223372036854775808; use at most 9223372036854775807"),
    ("vllm.gpu_memory_utilization", "1.5", "1.5; use more than 0 and at most 1"),
    ("actor.lr_scheduler", "cosin", "'cosin'; use constant, "),
    ("vllm.sync_backend", "mpi", "'mpi'; use nccl or gloo"),
    ("data.input_key", "", "empty; leave it out for its default"),
    ("data.prompt_probs", "0.5,0.5", "'0.5,0.5'; give a probability for each of the 1 data sets"),
    ("data.prompt_probs", "x", "'x'; give a probability for each"),
    ("data.input_template", "Solve:", "'Solve:', which has no {} for the problem; write {} once, and braces that"),
    ("data.input_template", "{0}", "'{0}', which has no {} for the problem"),
    ("data.input_template", "{{}}", "'{{}}', which has no {} for the problem"),
    ("data.input_template", "{}x{y}", "'{}x{y}', which cannot be filled in ('y'); write {} once"),
    (
        "data.input_template",
        r"{}\boxed{}",
        r"'{}\\boxed{}', which cannot be filled in (Replacement index 1 out of range",
    ),
    ("reward.remote_url", "x", "'x'; use a file that ends in .py, or an address that starts with http"),
    ("reward.remote_url", "no.py", "no.py, which cannot be read (No such file or directory)"),
]


def refusal(*flags):
    """The message that refuses these flags; None if nothing does."""
    try:
        checked_arguments([*GOOD, *flags], SwapConfig(), RunConfig(), on_cpu=False)
    except ConfigError as error:
        return str(error)
    return None


@pytest.mark.parametrize(("flag", "value", "message"), WRONG, ids=[f"{flag} {value}" for flag, value, _ in WRONG])
def test_a_value_that_cannot_work(flag, value, message):
    words = [f"--{flag}", *(value.split() or [""])]
    assert refusal(*words).startswith(f"--{flag} is {message}")


def test_nothing_is_refused_that_is_a_default():
    assert refusal() is None


def test_every_number_has_a_range():
    assert set(ACTIONS) == set(NUMBERS)


@pytest.mark.parametrize("name", [name for name, action in ACTIONS.items() if action.type is float])
def test_no_flag_takes_nan(name):
    count = ACTIONS[name].nargs if isinstance(ACTIONS[name].nargs, int) else 1
    assert refusal(f"--{name}", *["nan"] * count).startswith(f"--{name} is nan")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def reward_func(queries, prompts, labels): return {}", None),
        ("def reward_func(queries, prompts, labels, end_of_thought='x'): return {}", None),
        ("def reward_func(*batch): return {}", None),
        ("from elsewhere import grade as reward_func", None),
        ("reward_func = print", None),
        (
            "def reward(queries, prompts, labels): return {}",
            "which defines no reward_func; define reward_func",
        ),
        ("def reward_func(query): return {}", "whose reward_func takes 1 arguments; it gets queries, prompts and lab"),
        ("def reward_func(:", "which is not Python (invalid syntax"),
        ("raise SystemExit('it is not run')", "which defines no reward_func"),
    ],
)
def test_a_reward_function_is_looked_at_and_not_run(tmp_path, text, message):
    file = tmp_path / "mine.py"
    file.write_text(text)
    found = refusal("--reward.remote_url", str(file))
    if message is None:
        assert found is None
    else:
        assert found.startswith(f"--reward.remote_url is {file}, {message}")


def test_an_address_is_taken():
    assert refusal("--reward.remote_url", "http://host:5000/reward,https://other") is None
    assert refusal("--reward.remote_url", "http://host,x").startswith("--reward.remote_url is 'x'")


def test_a_template_is_filled_in_or_refused():
    template = ["--data.input_template", r"Q: {}\n$\boxed{{}}$"]
    assert refusal(*template) is None
    assert refusal(*template, "--data.apply_chat_template").endswith(
        "which OpenRLHF ignores with --data.apply_chat_template: leave one of them out"
    )


@pytest.mark.parametrize("name", ["a,b.jsonl", "a@2.jsonl", "a,b"])
def test_a_data_set_here_whose_name_openrlhf_would_split_is_refused(tmp_path, name):
    path = tmp_path / name
    path.touch() if path.suffix else path.mkdir()
    message = f" is {path}, whose name OpenRLHF splits at {name[1]!r}: rename it, or link to it under another name"
    assert refusal("--data.prompt_dataset", str(path)) == "--data.prompt_dataset" + message
    assert refusal("--eval.dataset", str(path)) == "--eval.dataset" + message
    (tmp_path / "b").touch()
    assert refusal("--data.prompt_dataset", f"{tmp_path}/b, {tmp_path}/b,some/hub_set@folder") is None


def test_many_processes_on_few_cores_are_announced():
    args = checked_arguments([*GOOD, "--actor.num_gpus_per_node", "8"], SwapConfig(), RunConfig(), on_cpu=True)
    assert crowded(args, cores=2).startswith("9 processes (--actor.num_gpus_per_node 8, --vllm.num_engines 1) share 2")
    assert crowded(args, cores=8) is None

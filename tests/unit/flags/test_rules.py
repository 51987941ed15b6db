"""Flags that would fail silently, wrongly or late are refused in one line, before a GPU is taken."""

import pytest
import torch
from transformers import get_scheduler

from openrlhf_swap.errors import ConfigError
from openrlhf_swap.flags.configuration import CHOICES, configure
from openrlhf_swap.flags.rules import check_flags, check_objective

GOOD = ["--actor.model_name_or_path", "m", "--data.prompt_dataset", "d", "--data.label_key", "a"]
GOOD += [
    "--actor.num_gpus_per_node",
    "2",
    "--vllm.num_engines",
    "2",
    "--rollout.micro_batch_size",
    "2",
]
KL = ["--algo.kl.init_coef", "0.1"]
TOGETHER = ["--train.colocate_all"]
VALUES = [
    ("actor.adam.lr", "-1", "-1.0; use more than 0"),
    ("actor.adam.lr", "inf", "inf; use more than 0"),
    ("actor.eps_clip", "0", "0.0; use more than 0"),
    ("actor.dual_clip", "1", "1.0; use more than 1"),
    ("ckpt.save_steps", "0", "0; use at least 1, or -1 to switch it off"),
    ("eval.steps", "0", "0; use at least 1, or -1 to switch it off"),
    ("data.max_samples", "0", "0; use at least 1"),
    ("logger.logging_steps", "0", "0; use at least 1"),
    ("rollout.temperature", "0", "0.0; use more than 0"),
    ("rollout.top_p", "0", "0.0; use more than 0 and at most 1"),
    ("train.num_episodes", "0", "0; use at least 1"),
    ("train.max_epochs", "0", "0; use at least 1"),
    ("train.batch_size", "9223372036854775808", "9223372036854775808; use at least 1"),
    ("vllm.gpu_memory_utilization", "1.5", "1.5; use more than 0 and at most 1"),
    ("data.input_template", "Solve:", "'Solve:', which cannot be filled in; write {} once"),
    ("data.input_template", "{0}", "'{0}', which cannot be filled in"),
    ("data.input_template", "{{}}", "'{{}}', which cannot be filled in"),
    ("data.input_template", "{}x{y}", "'{}x{y}', which cannot be filled in"),
    (
        "reward.remote_url",
        "x",
        "x; use a file that ends in .py, or an address that starts with http",
    ),
    ("reward.remote_url", "no.py", "no.py, which cannot be read ([Errno 2] No such file"),
]


def accepted(*flags, on_cpu=False):
    configuration = configure([*GOOD, *flags], on_cpu)
    check_flags(configuration)
    check_objective(configuration)
    return configuration.args


def refusal(*flags):
    with pytest.raises(ConfigError) as refused:
        accepted(*flags)
    return str(refused.value)


@pytest.mark.parametrize(
    ("flag", "value", "message"), VALUES, ids=[f"{flag} {value}" for flag, value, _ in VALUES]
)
def test_a_value_that_cannot_work(flag, value, message):
    assert refusal(f"--{flag}", value).startswith(f"--{flag} is {message}")


@pytest.mark.parametrize(
    ("flag", "value", "choices"),
    [
        ("--ds.zero_stage", "0", "1, 2, 3"),
        ("--ds.zero_stage", "5", "1, 2, 3"),
        ("--actor.lr_scheduler", "cosin", "'constant', "),
        ("--vllm.sync_backend", "mpi", "'nccl', 'gloo'"),
    ],
)
def test_choices_that_openrlhf_leaves_open(flag, value, choices):
    refused = refusal(flag, value)
    assert (
        refused.startswith(f"{flag}: invalid choice: ")
        and value in refused
        and f"(choose from {choices}" in refused
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def reward_func(queries, prompts, labels): return {}", None),
        ("from elsewhere import grade as reward_func", None),
        ("raise SystemExit('it is not run')", "which defines no reward_func; define reward_func("),
    ],
)
def test_a_reward_function_is_looked_at_and_not_run(tmp_path, text, message):
    file = tmp_path / "mine.py"
    file.write_text(text)
    if message is None:
        accepted("--reward.remote_url", str(file))
    else:
        assert refusal("--reward.remote_url", str(file)).startswith(
            f"--reward.remote_url is {file}, {message}"
        )


def test_a_template_is_filled_in_or_refused():
    accepted("--data.input_template", r"Q: {}\nA: {{x}}")
    assert refusal("--data.input_template", "Q: {}", "--data.apply_chat_template").endswith(
        "ignored with --data.apply_chat_template: leave one of them out"
    )


@pytest.mark.parametrize(
    ("flags", "places"),
    [
        ([], (1, 2)),
        (["--actor.num_nodes", "2"], (2, 2)),
        (["--actor.num_gpus_per_node=4"], (1, 4)),
        (["--ref.num_gpus_per_node", "1"], (1, 1)),
        (["--ref.num_nodes", "4"], (4, 2)),
    ],
)
def test_the_reference_model_takes_as_many_gpus_as_the_actor_unless_it_is_given_others(
    flags, places
):
    ref = accepted(*KL, *flags).ref
    assert (ref.num_nodes, ref.num_gpus_per_node) == places


def test_engines_on_the_actors_gpus_take_as_many():
    accepted(*TOGETHER, "--vllm.num_engines", "1", "--vllm.tensor_parallel_size", "2")
    assert refusal(*TOGETHER, "--vllm.num_engines", "1") == (
        "--actor.num_nodes x --actor.num_gpus_per_node is 2 and --vllm.num_engines x --vllm.tensor_parallel_size is "
        "1; with --train.colocate_all both must be equal"
    )
    accepted("--vllm.num_engines", "1")


def test_weights_do_not_travel_over_gloo_within_a_gpu():
    gloo = ["--vllm.sync_backend", "gloo"]
    assert refusal(*TOGETHER, *gloo).startswith(
        "--vllm.sync_backend is gloo with --train.colocate_all; "
    )
    accepted(*TOGETHER)
    accepted(*gloo)
    accepted(*TOGETHER, "--vllm.num_engines", "2", on_cpu=True)  # where it is the default


def test_packed_responses_are_shared_equally():
    """OpenRLHF trains each rank on `train.batch_size // ranks` of them and drops the rest."""
    packed = ["--train.dynamic_batch_enable", "--actor.num_gpus_per_node", "8"]
    accepted(*packed)
    accepted(*packed, "--train.micro_batch_size", "3")  # it packs by tokens
    assert refusal(*packed, "--actor.num_nodes", "3") == (
        "--train.batch_size is 2048; 24 actors cannot share the responses of an update equally, and OpenRLHF would "
        "leave the rest out: use a number of actors that divides it"
    )


def test_an_evaluation_that_would_never_take_place_is_refused():
    assert refusal("--eval.dataset", "d") == (
        "--eval.dataset is d, which nothing would be evaluated on: give --eval.steps, the number of training steps "
        "between evaluations, as well"
    )
    accepted("--eval.dataset", "d", "--eval.steps", "5")


def test_a_cut_distribution_is_not_corrected():
    cut = ["--rollout.top_p", "0.95"]
    accepted(*cut)
    correction = ["--algo.advantage.is_correction_level", "token"]
    for flags in (correction, ["--train.async_enable"]):  # where it is the default
        assert refusal(*cut, *flags).startswith(
            "--rollout.top_p is 0.95 with --algo.advantage.is_correction_level to"
        )
    accepted(*correction)


@pytest.mark.parametrize("name", CHOICES["actor.lr_scheduler"])
def test_a_scheduler_that_is_accepted_can_be_made(name):
    # As OpenRLHF 0.11.2 makes it.
    more = (
        {"min_lr_rate": 0.1} if name in ("cosine_with_min_lr", "cosine_warmup_with_min_lr") else {}
    )
    accepted("--actor.lr_scheduler", name)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])
    get_scheduler(
        name, optimizer, num_warmup_steps=1, num_training_steps=9, scheduler_specific_kwargs=more
    )


@pytest.mark.parametrize(
    "objective", ["swap", "vsrm_scores", "lc_r1", "autothink", "hbpo", "grpo_lead", "short_rl"]
)
@pytest.mark.parametrize("grader", ["unit_tests", "support.verifiers:reads_rules"])
def test_objectives_that_read_answers_need_a_grader_that_has_some(objective, grader):
    refused = refusal("--swap.objective", objective, "--swap.grader", grader)
    start, _, able = refused.partition("use one of: ")
    assert start.startswith(
        f"--swap.objective is {objective}, which needs an answer text, and --swap.grader {grader}"
    )
    assert {"grpo", "dler", "kimi", "gr3", "arlcp", "on_policy_sft"} <= set(able.split(", "))
    assert not {
        "swap",
        "vsrm",
        "laser",
        "lc_r1",
        "step_only",
        "hbpo",
        "grpo_lead",
        "short_rl",
    } & set(able.split(", "))


def test_graders_that_fit(tmp_path):
    (tmp_path / "own.py").write_text("def reward_func(queries, prompts, labels): ...")
    reward = ["--reward.remote_url", str(tmp_path / "own.py")]
    accepted("--swap.objective", "grpo", "--swap.grader", "unit_tests")
    accepted("--swap.grader", "multiple_choice")
    accepted("--swap.grader", "regex:(.+)")
    accepted(*reward)
    assert refusal("--swap.grader", "multiple_choice", *reward).startswith(
        f"--swap.grader is multiple_choice, but --reward.remote_url {tmp_path}/own.py gives"
    )

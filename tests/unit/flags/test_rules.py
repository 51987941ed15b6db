"""Flags that would fail silently, wrongly or late are refused before a GPU is taken."""

import pytest
import torch
from transformers import get_scheduler

from openrlhf_swap.errors import ConfigError
from openrlhf_swap.flags.configuration import CHOICES, configure
from openrlhf_swap.flags.rules import check_flags, check_objective

GOOD = (
    "--actor.model_name_or_path m --data.prompt_dataset d --data.label_key a "
    "--actor.num_gpus_per_node 2 --vllm.num_engines 2 --rollout.micro_batch_size 2"
)
TOGETHER = "--train.colocate_all"
KL = "--algo.kl.init_coef 0.1"
NEED = "--swap.step_reward need"
CORRECTED = "--algo.advantage.is_correction_level token"


def accepted(flags, on_cpu=False):
    configuration = configure(f"{GOOD} {flags}".split(), on_cpu)
    check_flags(configuration)
    check_objective(configuration)
    return configuration.args


def refusal(flags):
    with pytest.raises(ConfigError) as refused:
        accepted(flags)
    return str(refused.value)


# Flags in -> how the refusal begins.
REFUSED = {
    "--actor.adam.lr -1": "--actor.adam.lr is -1.0; use more than 0",
    "--actor.adam.lr inf": "--actor.adam.lr is inf; use more than 0",
    "--actor.eps_clip nan": "--actor.eps_clip is nan; use more than 0",
    "--actor.dual_clip 1": "--actor.dual_clip is 1.0; use more than 1",
    "--ckpt.save_steps 0": "--ckpt.save_steps is 0; use at least 1, or -1 to switch it off",
    "--data.max_samples 0": "--data.max_samples is 0; use at least 1",
    "--rollout.top_p 0": "--rollout.top_p is 0.0; use more than 0 and at most 1",
    "--train.batch_size 9223372036854775808": "--train.batch_size is 9223372036854775808; use at l",
    "--vllm.gpu_memory_utilization 1.5": "--vllm.gpu_memory_utilization is 1.5; use more than 0",
    "--actor.lr_warmup_ratio 1": "--actor.lr_warmup_ratio is 1.0; use at least 0 and less than 1",
    "--algo.advantage.gamma .9": "--algo.advantage.gamma is 0.9; step rewards are not discounted",
    "--ds.load_in_4bit": "--ds.load_in_4bit is True; vLLM cannot take 4-bit weights over",
    "--data.max_len 300": "--data.max_len is 300, in which --rollout.max_new_tokens 12000 leaves",
    "--ds.zero_stage 0": "--ds.zero_stage: invalid choice: 0 (choose from 1, 2, 3)",
    "--actor.lr_scheduler cosin": "--actor.lr_scheduler: invalid choice: 'cosin' (choose from 'co",
    "--data.input_template Solve:": "--data.input_template is 'Solve:', which cannot be filled in",
    "--data.input_template {0}": "--data.input_template is '{0}', which cannot be filled in",
    "--data.input_template {{}}": "--data.input_template is '{{}}', which cannot be filled in",
    "--data.input_template {}x{y}": "--data.input_template is '{}x{y}', which cannot be filled in",
    "--data.input_template Q:{} --data.apply_chat_template": "--data.input_template is 'Q:{}', ign",
    "--data.chat_template_kwargs {}": "--data.chat_template_kwargs is {}, but no template is appl",
    "--reward.remote_url x": "--reward.remote_url is x; use a file that ends in .py, or an address",
    "--reward.remote_url no.py": "--reward.remote_url is no.py, which cannot be read ([Errno 2] No",
    "--train.agent_func_path no.py": "--train.agent_func_path is no.py, which cannot be read ([Err",
    "--rollout.vllm_generate_batch_size 9": "--rollout.vllm_generate_batch_size is 9; prompts that",
    f"{TOGETHER} --train.async_enable": "--train.colocate_all with --train.async_enable: vLLM gene",
    f"{TOGETHER} --vllm.num_engines 1": "--actor.num_nodes x --actor.num_gpus_per_node is 2 and --"
    "vllm.num_engines x --vllm.tensor_parallel_size is 1; with --train.colocate_all both must be e",
    f"{TOGETHER} --vllm.sync_backend gloo": "--vllm.sync_backend is gloo with --train.colocate_all",
    "--ds.zero_stage 3 --ds.lora.rank 8": "--ds.lora.rank is 8 with --ds.zero_stage 3, which shard",
    "--ds.zero_stage 3 --swap.scoring per_prefix": "--swap.scoring is per_prefix with --ds.zero_st",
    "--ds.zero_stage 1 --ds.grad_accum_dtype fp32": "--ds.grad_accum_dtype is fp32 with --ds.zero_",
    "--train.enable_ema": "--train.enable_ema is True; OpenRLHF 0.11.2 keeps the average",
    "--algo.advantage.is_correction_mode clip --algo.advantage.is_correction_gating tv": "--algo."
    "advantage.is_correction_mode is clip with level off and gating tv; only the ratio of a token",
    f"{CORRECTED} --rollout.top_p .95": "--rollout.top_p is 0.95 with --algo.advantage.is_correcti",
    "--train.async_enable --rollout.top_p .95": "--rollout.top_p is 0.95 with --algo.advantage.is",
    f"{CORRECTED} --algo.advantage.is_correction_gating tv --algo.advantage.is_correction_threshold"
    " .5 2": "--algo.advantage.is_correction_threshold is 0.5 2; tv has an upper bound only",
    "--reward.overlong_buffer_len 13000": "--reward.overlong_buffer_len is 13000; a response has a",
    "--eval.dataset d": "--eval.dataset is d, which nothing would be evaluated on: give --eval.ste",
    "--train.batch_size 1000": "--train.batch_size is 1000, which does not divide the 2048 respon",
    "--train.dynamic_batch_enable --actor.num_nodes 3 --actor.num_gpus_per_node 8": "--train.batch"
    "_size is 2048; 24 actors cannot share the responses of an update equally",
    "--train.micro_batch_size 3": "--train.micro_batch_size is 3; 2 actors cannot share the 2048",
    "--rollout.micro_batch_size 3": "--rollout.micro_batch_size is 3; 2 actors cannot share the",
    "--swap.grader regex:(.+) --reward.remote_url http://h": "--swap.grader is regex:(.+), but --r",
    "--train.async_enable --swap.objective lc_r1": "--train.async_enable does not work with lc_r1",
    f"{CORRECTED} --swap.objective lc_r1": "--algo.advantage.is_correction_level is token; lc_r1",
    f"{KL} --swap.objective step_only": "--algo.kl.init_coef is 0.1; step_only multiplies the outc",
    f"{NEED} --swap.tau .5": "--swap.tau is 0.5 with --swap.step_reward need, where no step pays",
    f"{NEED} --swap.weights_from monotone": "--swap.weights_from is monotone with --swap.step_rewa",
    f"{NEED} --swap.length_coef 2": "--swap.length_coef is 2.0 with --swap.step_reward need, where",
    f"{NEED} --swap.step_price weights": "--swap.step_price is weights with --swap.step_reward ne",
    f"{NEED} --swap.scoring per_prefix": "--swap.scoring is per_prefix with --swap.step_reward ne",
    f"{NEED} --swap.objective grpo": "--swap.step_reward is need, but grpo has no step rewards: le",
    f"{NEED} --swap.objective vsrm_scores": "--swap.step_reward is need, but vsrm_scores has no st",
    f"{NEED} --swap.process_weight 0": "--swap.step_reward is need, but swap has no step rewards: ",
    "--swap.need_window 2": "--swap.need_window is 2, but --swap.step_reward gain reads no need: l",
    "--swap.step_discount .5 --swap.objective outcome_only": "--swap.step_discount is 0.5, but out",
    "--swap.step_discount 0 --swap.objective length_critic": "--swap.step_discount is 0, but lengt",
    "--reward.overlong_buffer_len 9 --swap.objective step_only": "--reward.overlong_buffer_len or ",
}


@pytest.mark.parametrize("flags", REFUSED)
def test_what_cannot_work_is_refused(flags):
    assert refusal(flags).startswith(REFUSED[flags])


@pytest.mark.parametrize(
    "flags",
    [
        r"--data.input_template Q:{}\nA:{{x}}",
        f"{TOGETHER} --vllm.num_engines 1 --vllm.tensor_parallel_size 2",
        "--vllm.num_engines 1",
        "--vllm.sync_backend gloo",
        "--train.dynamic_batch_enable --actor.num_gpus_per_node 8 --train.micro_batch_size 3",
        "--eval.dataset d --eval.steps 5",
        "--rollout.top_p 0.95",
        CORRECTED,
        f"{NEED} --swap.need_window 4 --swap.step_discount 0",
        f"{NEED} --swap.objective step_only",
        "--swap.step_discount .9 --swap.objective static_penalty",
        "--swap.objective grpo --swap.grader unit_tests",
        "--swap.grader multiple_choice",
        f"{KL} --algo.kl.use_loss --swap.objective step_only",
    ],
)
def test_what_works_is_accepted(flags):
    accepted(flags)


def test_gloo_is_the_default_on_a_cpu():
    accepted(f"{TOGETHER} --vllm.num_engines 2 --actor.num_gpus_per_node 2", on_cpu=True)


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
    flags = f"--reward.remote_url {file}"
    if message is None:
        accepted(flags)
    else:
        assert refusal(flags).startswith(f"--reward.remote_url is {file}, {message}")


@pytest.mark.parametrize(
    ("flags", "places"),
    [
        ("", (1, 2)),
        ("--actor.num_nodes 2", (2, 2)),
        ("--actor.num_gpus_per_node=4", (1, 4)),
        ("--ref.num_gpus_per_node 1", (1, 1)),
        ("--ref.num_nodes 4", (4, 2)),
    ],
)
def test_the_reference_model_has_as_many_gpus_as_the_actor_unless_others_are_given(flags, places):
    ref = accepted(f"{KL} {flags}").ref
    assert (ref.num_nodes, ref.num_gpus_per_node) == places


@pytest.mark.parametrize("name", CHOICES["actor.lr_scheduler"])
def test_a_scheduler_that_is_accepted_can_be_made(name):
    # As OpenRLHF 0.11.2 makes it.
    more = {"min_lr_rate": 0.1} if "min_lr" in name else {}
    accepted(f"--actor.lr_scheduler {name}")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])
    steps = {"num_warmup_steps": 1, "num_training_steps": 9}
    get_scheduler(name, optimizer, scheduler_specific_kwargs=more, **steps)


@pytest.mark.parametrize("objective", ["swap", "vsrm_scores", "lc_r1", "hbpo", "short_rl"])
@pytest.mark.parametrize("grader", ["unit_tests", "support.verifiers:reads_rules"])
def test_objectives_that_read_answers_need_a_grader_that_has_some(objective, grader):
    refused = refusal(f"--swap.objective {objective} --swap.grader {grader}")
    start, _, able = refused.partition("use one of: ")
    assert start.startswith(f"--swap.objective is {objective}, which needs an answer text, and --s")
    assert {"grpo", "dler", "kimi"} <= set(able.split(", "))
    assert not {"swap", "vsrm", "laser", "lc_r1", "step_only"} & set(able.split(", "))

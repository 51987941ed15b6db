"""Flags that would fail silently, wrongly or late are refused before a GPU is taken."""

import re

import pytest

from openrlhf_swap.errors import ConfigError
from openrlhf_swap.flags.configuration import configure
from openrlhf_swap.flags.rules import check_flags, check_objective

GOOD = (
    "--actor.model_name_or_path m --data.prompt_dataset d --data.label_key a "
    "--actor.num_gpus_per_node 2 --vllm.num_engines 2 --rollout.micro_batch_size 2"
)


def accepted(flags, on_cpu=False):
    configuration = configure(f"{GOOD} {flags}".split(), on_cpu)
    check_flags(configuration)
    check_objective(configuration)
    return configuration.args


def refusal(flags):
    with pytest.raises(ConfigError) as refused:
        accepted(flags)
    return str(refused.value)


# Flags in, `=>` the flag that the refusal names, where it is not the first one.
REFUSED = """
--actor.adam.lr -1 | --actor.dual_clip 1 | --actor.eps_clip nan | --actor.lr_scheduler cosin
--actor.lr_warmup_ratio 1 | --train.colocate_all --vllm.num_engines 1 => --actor.num_nodes
--algo.advantage.estimator rloo | --algo.advantage.gamma .9
--algo.advantage.is_correction_level token --swap.objective lc_r1
--algo.advantage.is_correction_mode clip --algo.advantage.is_correction_gating tv
--algo.advantage.is_correction_level seq --algo.advantage.is_correction_mode clip => \
--algo.advantage.is_correction_mode
--algo.advantage.is_correction_level token --algo.advantage.is_correction_gating tv \
--algo.advantage.is_correction_threshold .5 2 => --algo.advantage.is_correction_threshold
--algo.advantage.is_correction_threshold 0.5 1 2
--algo.advantage.is_correction_level token --algo.advantage.is_correction_gating tv => \
--algo.advantage.is_correction_threshold
--algo.dynamic_filtering_enable | --algo.kl.target 6 | --data.prompt_probs 0.2,0.8
--algo.kl.init_coef 0.1 --swap.objective step_only
--swap.objective lc_r1 --algo.kl.init_coef 0.1 => --algo.kl.init_coef
--swap.outcome_weight 0.5 --algo.kl.init_coef 0.1 => --algo.kl.init_coef | --ckpt.save_steps 0
--critic.model_name_or_path m | --data.chat_template_kwargs {}
--data.chat_template_kwargs thinking | --data.input_template Solve: | --data.input_template {0}
--data.input_template {}x{y} | --data.input_template Q:{} --data.apply_chat_template
--data.max_len 300 | --data.max_samples 0
--ds.zero_stage 1 --ds.grad_accum_dtype fp32 => --ds.grad_accum_dtype | --ds.load_in_4bit
--ds.zero_stage 3 --ds.lora.rank 8 => --ds.lora.rank | --ds.param_dtype fp16
--ds.ring_attn_size 2 | --ds.use_universal_ckpt | --ds.zero_stage 0 | --eval.dataset d
--no-actor.dual_clip | --q | --reward.model_name_or_path m | --reward.overlong_buffer_len 13000
--reward.overlong_buffer_len 9 --swap.objective step_only
--swap.objective decs --reward.overlong_buffer_len 9 => --reward.overlong_buffer_len
--reward.remote_url x | --reward.remote_url no.py | --rollout.batchsize 8
--rollout.micro_batch_size 3 | --rollout.micro_batch_size 0
--swap.objective hbpo --swap.hbpo.budgets 9,99,999 => --rollout.n_samples_per_prompt
--rollout.top_p 0
--algo.advantage.is_correction_level token --rollout.top_p .95 => --rollout.top_p
--train.async_enable --rollout.top_p .95 => --rollout.top_p | --rollout.vllm_generate_batch_size 9
--train.async_enable --rollout.vllm_generate_batch_size 2 => --rollout.vllm_generate_batch_size
--swap.objective adaptthink => --swap.adaptthink.reference
--swap.grader regex:(.+) --reward.remote_url http://h
--swap.grader none | --swap.grader none --swap.objective grpo
--swap.objective l1_exact --swap.l1_exact.shortest 0 => --swap.l1_exact.shortest
--swap.laser.bonus 1 | --swap.objective laser --swap.laser.bonus much => --swap.laser.bonus
--swap.objective laser --swap.laser.taget_length 9 => --swap.laser.taget_length
--swap.objective laser_d --swap.laser_d.grid 0 => --swap.laser_d.grid | --swap.lasser.bonus 1
--swap.objective lc_r1 --swap.lc_r1.extractor nowhere:f => --swap.lc_r1.extractor
--swap.length_coef much | --swap.length_coef -1 | --swap.objective lazer | --swap.recipe dlr
--swap.tau 0 | --train.seed 12345678901234567890 | --train.seed -1
--swap.output_dir= => --swap.output_dir | --logger.wandb.run_name ../x
--train.agent_func_path no.py | --train.async_enable --swap.objective lc_r1
--swap.objective hapo --train.async_enable => --train.async_enable
--train.batch_size 9223372036854775808 | --train.batch_size 1000
--train.dynamic_batch_enable --actor.num_nodes 3 --actor.num_gpus_per_node 8 => --train.batch_size
--rollout.batch_size 2 --train.batch_size 5 => --train.batch_size
--train.colocate_all --train.async_enable
--train.enable_ema | --train.micro_batch_size 3
--train.partial_rollout_enable | --rollout.thought_budget 0
--rollout.thought_budget 9 --swap.objective l1_max
--rollout.thought_budget 9 --swap.objective thinkprune
--rollout.thought_budget 9 --swap.objective lc_r1
--swap.objective vsrm --train.async_enable --train.partial_rollout_enable => \
--train.partial_rollout_enable
--vllm.gpu_memory_utilization 1.5
--train.colocate_all --vllm.sync_backend gloo => --vllm.sync_backend
--train.async_enable --train.colocate_all --vllm.enable_sleep => Async
--swap.step_reward need --swap.tau .5 => --swap.tau
--swap.step_reward need --swap.weights_from monotone => --swap.weights_from
--swap.step_reward need --swap.length_coef 2 => --swap.length_coef
--swap.step_reward need --swap.step_price weights => --swap.step_price
--swap.step_reward need --swap.scoring per_prefix => --swap.scoring
--swap.step_reward need --swap.objective grpo
--swap.step_reward need --swap.objective vsrm_scores
--swap.step_reward need --swap.process_weight 0 | --swap.need_window 2
--swap.need_every 2 | --swap.need_every 0 --swap.step_reward need
--swap.step_discount .5 --swap.objective outcome_only
--swap.step_discount 0 --swap.objective arora
--swap.turn_weight 1 | --swap.turn_weight 1 --swap.objective grpo
--rollout.n_samples_per_prompt 1 => group_norm
"""
SUBJECT = re.compile(
    "(unknown flag |unrecognized arguments: |OpenRLHF refuses these flags: )?([^ ,;:]+)"
)


@pytest.mark.parametrize(
    "case", [case for line in REFUSED.split("\n") if line for case in line.split(" | ")]
)
def test_what_cannot_work_is_refused(case):
    flags, _, named = case.partition(" => ")
    message = refusal(flags)
    assert SUBJECT.match(message)[2] == (named or flags.split()[0])
    assert "\n" not in message


@pytest.mark.parametrize(
    "flags",
    [
        r"--data.input_template Q:{}\nA:{{x}}",
        "--train.colocate_all --vllm.num_engines 1 --vllm.tensor_parallel_size 2",
        "--vllm.num_engines 1",
        "--vllm.sync_backend gloo",
        "--train.dynamic_batch_enable --actor.num_gpus_per_node 8 --train.micro_batch_size 3",
        "--eval.dataset d --eval.steps 5",
        "--rollout.top_p 0.95",
        "--rollout.thought_budget 512 --swap.objective vsrm",
        "--algo.advantage.is_correction_level token",
        "--swap.step_reward need --swap.need_window 4 --swap.step_discount 0",
        "--swap.step_reward need --swap.objective step_only",
        "--swap.step_discount .9 --swap.objective static_penalty",
        "--swap.objective grpo --swap.grader support.verifiers:reads_rules",
        "--swap.grader multiple_choice",
        "--swap.objective crisp --swap.grader none",
        "--algo.kl.init_coef 0.1 --algo.kl.use_loss --swap.objective step_only",
    ],
)
def test_what_works_is_accepted(flags):
    accepted(flags)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def reward_func(queries, prompts, labels): return {}", None),
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


def test_the_reference_model_has_as_many_gpus_as_the_actor_unless_others_are_given():
    places = {"": (1, 2), "--actor.num_nodes 2": (2, 2), "--ref.num_nodes 4": (4, 2)}
    for flags, expected in places.items():
        ref = accepted(f"--algo.kl.init_coef 0.1 {flags}").ref
        assert (ref.num_nodes, ref.num_gpus_per_node) == expected


@pytest.mark.parametrize("objective", ["swap", "vsrm_scores", "lc_r1", "hbpo", "short_rl"])
def test_objectives_that_read_answers_need_a_grader_that_has_some(objective):
    grader = "support.verifiers:reads_rules"
    refused = refusal(f"--swap.objective {objective} --swap.grader {grader}")
    assert refused.startswith(
        f"--swap.objective is {objective}, which needs an answer text, and --s"
    )
    accepted(f"--swap.objective grpo --swap.grader {grader}")

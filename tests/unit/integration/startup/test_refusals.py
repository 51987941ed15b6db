"""Contradictory settings on the real command line: flags, and how the one line of error begins."""

import pytest
from support.command_lines import rows_file, run_main

REFUSALS = """
--swap.length_coef -1 => --swap.length_coef is '-1', which should be greater than or equal to 0
--swap.tau 0 => --swap.tau is '0'; use a positive number
--critic.model_name_or_path m => --critic.model_name_or_path is m
--reward.model_name_or_path m => --reward.model_name_or_path is m
--rollout.batch_size 65 --train.batch_size 260 => --data.prompt_dataset is
--rollout.batch_size 2 --train.batch_size 5 => --train.batch_size is 5, which does not divide the 8
--train.micro_batch_size 3 => --train.micro_batch_size is 3; 1 actors cannot share the 4 responses
--actor.num_gpus_per_node 2 --train.micro_batch_size 2 --rollout.micro_batch_size 4 => OpenRLHF ref
--ds.lora.rank 4 --ds.zero_stage 3 => --ds.lora.rank is 4 with --ds.zero_stage 3
--ds.zero_stage 1 --ds.grad_accum_dtype fp32 => --ds.grad_accum_dtype is fp32 with --ds.zero_stage
--ds.load_in_4bit => --ds.load_in_4bit is True; vLLM cannot
--ds.use_universal_ckpt => --ds.use_universal_ckpt is True; DeepSpeed would load converted checkpoi
--ds.param_dtype fp16 => --ds.param_dtype is fp16; OpenRLHF starts vLLM with bfloat16, which takes
--data.chat_template_kwargs thinking => --data.chat_template_kwargs: 'thinking' is no JSON object s
--data.chat_template_kwargs {} --no-data.apply_chat_template => --data.chat_template_kwargs is {},
--eval.steps 5 --eval.dataset no/such => --eval.dataset is no/such, which cannot be read
--eval.steps 5 --eval.dataset OTHER_COLUMNS => --data.input_key is problem, but
--train.async_enable --train.colocate_all => --train.colocate_all with --train.async_enable: vLLM
--train.async_enable --train.colocate_all --vllm.enable_sleep => OpenRLHF refuses these flags: Asyn
--train.async_enable --rollout.vllm_generate_batch_size 2 => --rollout.vllm_generate_batch_size is
--swap.objective hapo --train.async_enable => --train.async_enable does not work with hapo, whose r
--swap.objective lc_r1 --train.async_enable => --train.async_enable does not work with lc_r1, which
--swap.objective jet --swap.jet.shares 50 --train.async_enable => --train.async_enable does not wor
--swap.objective vsrm --train.async_enable --train.partial_rollout_enable => --train.partial_rollou
--swap.objective jet => --rollout.n_samples_per_prompt is 4, but --swap.jet.shares makes 6 of a res
--algo.dynamic_filtering_enable => --algo.dynamic_filtering_enable drops groups that are all correc
--algo.advantage.estimator rloo => --algo.advantage.estimator is rloo
--algo.advantage.gamma 0.9 => --algo.advantage.gamma is 0.9
--ds.ring_attn_size 2 => --ds.ring_attn_size is 2
--swap.scoring per_prefix --ds.zero_stage 3 => --swap.scoring is per_prefix
--data.max_len 100000 => --data.max_len is 100000
--swap.objective laser --swap.laser.taget_length 9 => unknown flag --swap.laser.taget_length
--swap.objective laser --swap.laser.bonus much => --swap.laser.bonus is 'much'
--swap.objective thinkprune => --swap.thinkprune.limits has 4000
--swap.objective adaptthink => --swap.adaptthink.reference is ''
--swap.objective lc_r1 --swap.lc_r1.extractor nowhere:f => --swap.lc_r1.extractor is 'nowhere:f'
--swap.objective lc_r1 --algo.advantage.is_correction_level token => --algo.advantage.is_correction
--swap.objective lc_r1 --algo.kl.init_coef 0.1 => --algo.kl.init_coef is 0.1
--swap.objective step_only --algo.kl.init_coef 0.1 => --algo.kl.init_coef is 0.1; step_only multipl
--swap.outcome_weight 0.5 --algo.kl.init_coef 0.1 => --algo.kl.init_coef is 0.1; swap multiplies
--swap.objective decs --reward.overlong_buffer_len 9 => --reward.overlong_buffer_len or --reward
--reward.overlong_buffer_len 99999 => --reward.overlong_buffer_len is 99999; a response has at most
--algo.advantage.is_correction_threshold 0.5 1 2 => OpenRLHF refuses these flags: --algo.advantage.
--algo.advantage.is_correction_level token --algo.advantage.is_correction_gating tv => --algo.advan
--algo.advantage.is_correction_level seq --algo.advantage.is_correction_mode clip => --algo.advanta
--train.dynamic_batch_enable --rollout.micro_batch_size 64 => OpenRLHF refuses these flags: The num
--swap.objective lc_r1 --reward.overlong_buffer_len 9 => --reward.overlong_buffer_len or --reward
--swap.objective laser_d --swap.laser_d.grid 0 => --swap.laser_d.grid is '0'
--swap.objective l1_exact --swap.l1_exact.shortest 0 => --swap.l1_exact.shortest is '0'
"""


@pytest.mark.parametrize("case", REFUSALS.strip().splitlines())
def test_contradictory_settings(capsys, tmp_path, prompts_file, case):
    flags, begins = case.split(" => ")
    other = rows_file(tmp_path / "other.jsonl", [{"question": "What is 1?", "answer": "1"}])
    words = flags.replace("OTHER_COLUMNS", other).split()
    out = tmp_path / "out"
    given = ["--data.prompt_dataset", str(prompts_file), "--swap.output_dir", str(out)]
    status, line = run_main(capsys, *given, *words)
    assert status == 2
    assert line.startswith("error: " + begins)
    assert not out.exists()

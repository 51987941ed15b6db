"""Bad input on the real command line: one clear line, exit status 2, nothing written, no Ray."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.command_lines import GOOD, rows_file, run_main
from support.paths import POLICY, ROOT

from openrlhf_swap import train
from openrlhf_swap.command import run_command
from openrlhf_swap.files import read_rows
from openrlhf_swap.flags.configuration import configure
from openrlhf_swap.integration.startup.preflight import resolve_run
from openrlhf_swap.packages import versions
from openrlhf_swap.runs import checkpoints

OTHER_COLUMNS = ROOT / "evaluation" / "paper_rows.csv"
SETTINGS = {
    "--swap.length_coef -1": "--swap.length_coef is '-1', which should be greater than or equal to 0",
    "--swap.tau 0": "--swap.tau is '0'; use a positive number",
    "--critic.model_name_or_path m": "--critic.model_name_or_path is m",
    "--reward.model_name_or_path m": "--reward.model_name_or_path is m",
    "--rollout.batch_size 65 --train.batch_size 260": "--data.prompt_dataset is ",
    "--rollout.batch_size 2 --train.batch_size 5": "--train.batch_size is 5, which does not divide the 8",
    "--train.micro_batch_size 3": "--train.micro_batch_size is 3; 1 actors cannot share the 4 responses of an",
    "--actor.num_gpus_per_node 2 --train.micro_batch_size 2 --rollout.micro_batch_size 4": (
        "OpenRLHF refuses these flags: The number of sample batches must be greater than or equal to"
    ),
    "--ds.lora.rank 4 --ds.zero_stage 3": "--ds.lora.rank is 4 with --ds.zero_stage 3",
    "--ds.zero_stage 1 --ds.grad_accum_dtype fp32": "--ds.grad_accum_dtype is fp32 with --ds.zero_stage 1",
    "--train.enable_ema --ds.zero_stage 3": "--train.enable_ema with --ds.zero_stage 3, which shards",
    "--train.enable_ema --ds.lora.rank 4": "--train.enable_ema with --ds.lora.rank 4: ",
    "--ds.load_in_4bit": "--ds.load_in_4bit is True; vLLM cannot",
    "--ds.use_universal_ckpt": "--ds.use_universal_ckpt is True; DeepSpeed would load converted checkpoints",
    "--ds.param_dtype fp16": "--ds.param_dtype is fp16; OpenRLHF starts vLLM with bfloat16, which takes no other",
    "--data.chat_template_kwargs thinking": "--data.chat_template_kwargs: 'thinking' is no JSON object such as {",
    "--data.chat_template_kwargs {} --no-data.apply_chat_template": (
        "--data.chat_template_kwargs is {}, but no template is applied: give --data.apply_chat_template, too"
    ),
    "--eval.steps 5 --eval.dataset no/such": "--eval.dataset is no/such, which cannot be read",
    f"--eval.steps 5 --eval.dataset {OTHER_COLUMNS}": "--data.input_key is problem, but ",
    "--train.async_enable --train.colocate_all": "--train.colocate_all with --train.async_enable: vLLM",
    "--train.async_enable --train.colocate_all --vllm.enable_sleep": "OpenRLHF refuses these flags: Async",
    "--train.async_enable --rollout.vllm_generate_batch_size 2": (
        "--rollout.vllm_generate_batch_size is 2; prompts that wait"
    ),
    "--swap.objective hapo --train.async_enable": (
        "--train.async_enable does not work with hapo, whose rewards depend on the batch before: leave"
    ),
    "--swap.objective lc_r1 --train.async_enable": (
        "--train.async_enable does not work with lc_r1, which trains on tokens that vLLM did not sample: "
    ),
    "--swap.objective jet --swap.jet.shares 50 --train.async_enable": (
        "--train.async_enable does not work with jet, which trains on tokens that vLLM did not sample: "
    ),
    "--swap.objective vsrm --train.async_enable --train.partial_rollout_enable": (
        "--train.partial_rollout_enable does not work with vsrm, which continues responses with the weights that"
    ),
    "--swap.objective jet": "--rollout.n_samples_per_prompt is 4, but --swap.jet.shares makes 6 of a response",
    "--algo.dynamic_filtering_enable": (
        "--algo.dynamic_filtering_enable drops groups that are all correct or all wrong"
    ),
    "--algo.advantage.estimator rloo": "--algo.advantage.estimator is rloo",
    "--algo.advantage.gamma 0.9": "--algo.advantage.gamma is 0.9",
    "--ds.ring_attn_size 2": "--ds.ring_attn_size is 2",
    "--swap.scoring per_prefix --ds.zero_stage 3": "--swap.scoring is per_prefix",
    "--data.max_len 100000": "--data.max_len is 100000",
    "--swap.objective laser --swap.laser.taget_length 9": "unknown flag --swap.laser.taget_length",
    "--swap.objective laser --swap.laser.bonus much": "--swap.laser.bonus is 'much'",
    "--swap.objective thinkprune": "--swap.thinkprune.limits has 4000",
    "--swap.objective adaptthink": "--swap.adaptthink.reference is ''",
    "--swap.objective lc_r1 --swap.lc_r1.extractor nowhere:f": "--swap.lc_r1.extractor is 'nowhere:f'",
    "--swap.objective lc_r1 --algo.advantage.is_correction_level token": (
        "--algo.advantage.is_correction_level is token"
    ),
    "--swap.objective lc_r1 --algo.kl.init_coef 0.1": "--algo.kl.init_coef is 0.1",
    "--swap.objective step_only --algo.kl.init_coef 0.1": (
        "--algo.kl.init_coef is 0.1; step_only multiplies the outcome advantage, in which the KL penalty would "
        "be, by 0: use --algo.kl.use_loss"
    ),
    "--swap.outcome_weight 0.5 --algo.kl.init_coef 0.1": "--algo.kl.init_coef is 0.1; swap multiplies",
    "--swap.objective decs --reward.overlong_buffer_len 9": "--reward.overlong_buffer_len or --reward",
    "--reward.overlong_buffer_len 99999": "--reward.overlong_buffer_len is 99999; a response has at most",
    "--algo.advantage.is_correction_threshold 0.5 1 2": (
        "OpenRLHF refuses these flags: --algo.advantage.is_correction_threshold takes HIGH or LOW HIGH"
    ),
    "--algo.advantage.is_correction_level token --algo.advantage.is_correction_gating tv": (
        "--algo.advantage.is_correction_threshold is 0.5 5; tv has an upper bound only: give one number"
    ),
    "--algo.advantage.is_correction_level seq --algo.advantage.is_correction_mode clip": (
        "--algo.advantage.is_correction_mode is clip with level seq and gating ratio; only the ratio of a token"
    ),
    "--train.dynamic_batch_enable --rollout.micro_batch_size 64": (
        "OpenRLHF refuses these flags: The number of sample batches must be greater than or equal to"
    ),
    "--swap.objective lc_r1 --reward.overlong_buffer_len 9": "--reward.overlong_buffer_len or --reward",
    "--swap.objective laser_d --swap.laser_d.grid 0": "--swap.laser_d.grid is '0'",
    "--swap.objective l1_exact --swap.l1_exact.shortest 0": "--swap.l1_exact.shortest is '0'",
}


@pytest.mark.parametrize("flags", SETTINGS)
def test_contradictory_settings(capsys, tmp_path, prompts_file, flags):
    out = tmp_path / "out"
    given = [
        "--data.prompt_dataset",
        str(prompts_file),
        "--swap.output_dir",
        str(out),
        *flags.split(),
    ]
    status, line = run_main(capsys, *given)
    assert status == 2
    assert line.startswith("error: " + SETTINGS[flags])
    assert not out.exists()


def test_a_model_that_brings_code_is_refused_unless_asked(capsys, tmp_path, prompts_file):
    model = tmp_path / "model"
    shutil.copytree(POLICY, model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(
        json.dumps({**config, "auto_map": {"AutoModelForCausalLM": "evil.Model"}})
    )
    changes = {"--data.prompt_dataset": str(prompts_file), "--actor.model_name_or_path": str(model)}
    status, error = run_main(capsys, **changes)
    assert status == 2
    assert "which brings Python code of its own" in error and "--swap.trust_remote_code" in error


def test_no_usable_row_is_an_error(capsys, tmp_path):
    path = rows_file(tmp_path / "rows.jsonl", [{"problem": "What is 100 + 100?", "answer": ""}])
    status, line = run_main(
        capsys, "--data.prompt_dataset", path, "--swap.output_dir", str(tmp_path / "out")
    )
    assert status == 2
    assert "of which no row can be used: 1 with an empty answer" in line


def test_another_openrlhf_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(versions, "installed_version", lambda _: "0.12.0")
    assert run_command(train.main, ["--swap.verbose"]) == 2
    assert (
        "openrlhf 0.12.0 is installed, but this package extends openrlhf 0.11.2"
        in capsys.readouterr().err
    )


def test_help_explains_both_parsers():
    command = [sys.executable, "-m", "openrlhf_swap.train", "--help"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "--swap.process_weight" in output and "--rollout.n_samples_per_prompt" in output


def test_a_checkpoint_is_not_overwritten(capsys, tmp_path, prompts_file):
    (tmp_path / "checkpoints" / "_actor" / "global_step2").mkdir(parents=True)
    flags = ["--ckpt.path", str(tmp_path / "checkpoints")]
    status, error = run_main(capsys, "--data.prompt_dataset", str(prompts_file), *flags)
    assert status == 2
    assert error.startswith(
        f"error: --ckpt.path is {tmp_path / 'checkpoints'}, which holds checkpoint global_step2"
    )
    assert "give --ckpt.load_enable to resume from it, or another --ckpt.path" in error
    assert checkpoints.newest(tmp_path / "checkpoints") == "global_step2"


def test_a_finished_run_says_so_and_does_nothing(capsys, tmp_path, prompts_file, monkeypatch):
    started = []
    monkeypatch.setattr(train, "_train", lambda *words: started.append(words))
    output = [
        "--swap.verbose",
        "--swap.output_dir",
        str(tmp_path / "out"),
        "--data.prompt_dataset",
        str(prompts_file),
    ]
    (tmp_path / "out").mkdir()

    def start(*flags):
        status = run_command(
            train.main, [*(word for pair in GOOD.items() for word in pair), *output, *flags]
        )
        return status, len(started), "is finished" in capsys.readouterr().out

    assert start() == (0, 1, False)
    assert start("--ckpt.load_enable") == (0, 1, True)
    assert start("--ckpt.load_enable", "--train.num_episodes", "2") == (0, 2, False)
    assert start("--ckpt.load_enable", "--train.num_episodes", "2") == (0, 2, True)
    assert start("--ckpt.load_enable") == (
        0,
        3,
        False,
    )  # another command trains again: it ended elsewhere
    assert start() == (0, 4, False)


def test_a_template_that_closes_the_thought_is_a_warning_with_a_remedy(
    capsys, tmp_path, prompts_file
):
    """The remedy takes the warning away, and OpenRLHF gets rendered prompts."""
    model = tmp_path / "model"
    shutil.copytree(POLICY, model)
    settings = json.loads((model / "tokenizer_config.json").read_text())
    settings["chat_template"] = (
        "{{ messages[0].content }}<think>{{ '\n' if enable_thinking else '\n</think>\n' }}"
    )
    (model / "tokenizer_config.json").write_text(json.dumps(settings))
    (model / "chat_template.jinja").unlink(missing_ok=True)
    flags = {
        **GOOD,
        "--actor.model_name_or_path": str(model),
        "--data.prompt_dataset": str(prompts_file),
    }
    flags |= {
        "--swap.output_dir": str(tmp_path / "out"),
        "--ckpt.path": str(tmp_path / "out" / "checkpoints"),
    }
    words = [*(word for pair in flags.items() for word in pair), "--data.apply_chat_template"]
    closed = resolve_run(configure(words, on_cpu=True)).args.data
    said = capsys.readouterr().out
    remedy = """--data.chat_template_kwargs '{"enable_thinking": true}'"""
    assert (
        "warning: the chat template closes the thought, but swap scores its steps" in said
        and remedy in said
    )
    assert closed.apply_chat_template
    words += ["--data.chat_template_kwargs", '{"enable_thinking": true}']
    opened = resolve_run(configure(words, on_cpu=True)).args.data
    assert "closes the thought" not in capsys.readouterr().out
    assert (opened.apply_chat_template, opened.chat_template_kwargs) == (False, None)
    assert all(
        row["problem"].endswith("<think>\n") for row in read_rows(Path(opened.prompt_dataset))
    )

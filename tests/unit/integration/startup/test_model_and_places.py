"""What is found out about model and machine before Ray starts."""

import pytest
import torch
from support.paths import POLICY, ROOT
from support.sizing import R1
from transformers import CONFIG_MAPPING

from openrlhf_swap.errors import ConfigError
from openrlhf_swap.flags.configuration import configure
from openrlhf_swap.integration.startup import model as model_checks
from openrlhf_swap.integration.startup import places as machine
from openrlhf_swap.scoring.backends import SHARED_PREFIX, ScoringBackend

PADDED = ["--no-ds.packing_samples", "--no-train.dynamic_batch_enable"]
MODEL = "--actor.model_name_or_path"


def run_of(folder, *flags):
    file = str(ROOT / "scripts" / "train_swap_1gpu.yaml")
    return configure(["--config", file, MODEL, str(folder), *flags], on_cpu=False)


@pytest.mark.parametrize(
    ("family", "reason"),
    [
        ("qwen2", None),
        ("gemma3_text", None),
        ("deepseek_v3", None),
        ("stablelm", None),
        ("qwen3_5_text", "reads on from one packed response into the next"),
        # transformers 5.15 makes its masks without the positions
        ("gpt_oss", "reads on from one packed response into the next"),
        ("mamba2", "could not be tried ("),
    ],
)
def test_what_cannot_be_packed_is_padded_and_the_console_says_so(family, reason, tmp_path):
    CONFIG_MAPPING[family]().save_pretrained(tmp_path)
    padded = run_of(tmp_path, *PADDED)
    assert model_checks.settle_packing(padded) == (padded, [])
    run = run_of(tmp_path)
    settled, lines = model_checks.settle_packing(run)
    if reason is None:
        assert (settled, lines) == (run, [])
        return
    assert run.args.ds.packing_samples and run.args.train.dynamic_batch_enable
    assert not (settled.args.ds.packing_samples or settled.args.train.dynamic_batch_enable)
    (line,) = lines
    assert line.startswith("responses are padded instead of packed") and reason in line


def test_need_is_refused_where_steps_cannot_be_hidden(tmp_path):
    shared = ScoringBackend(SHARED_PREFIX)
    for family in ("qwen2", "gemma3_text", "deepseek_v3"):
        CONFIG_MAPPING[family]().save_pretrained(tmp_path)
        model_checks.check_hidden_steps(run_of(tmp_path), shared)
    with pytest.raises(ConfigError, match="cannot be hidden to read need, because it is odd; use"):
        model_checks.check_hidden_steps(run_of(tmp_path), ScoringBackend("per_prefix", "it is odd"))
    CONFIG_MAPPING["qwen3_5_text"]().save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"recurrent layers.*use --swap.step_reward gain"):
        model_checks.check_hidden_steps(run_of(tmp_path), shared)


@pytest.mark.parametrize("family", ["qwen3_5", "gemma3"])
def test_a_multimodal_model_is_refused(family, tmp_path, tokenizer):
    """OpenRLHF calls it one too."""
    from openrlhf.utils.utils import is_vlm_model

    tokenizer.save_pretrained(tmp_path)
    CONFIG_MAPPING[family]().save_pretrained(tmp_path)
    assert is_vlm_model(str(tmp_path))
    refused = r"a multimodal model .* give a checkpoint of its language model alone"
    with pytest.raises(ConfigError, match=refused):
        model_checks.check_model(str(tmp_path), 100)


@pytest.mark.parametrize(
    ("family", "sizes", "taken"),
    [
        ("qwen2", {"hidden_size": 64, "num_attention_heads": 4}, False),
        ("qwen3", {"hidden_size": 64, "num_attention_heads": 4, "head_dim": 32}, True),
        ("deepseek_v3", {}, True),
        ("mamba2", {}, True),
    ],
)
def test_heads_that_the_engine_does_not_take_on_a_cpu_are_refused(family, sizes, taken, tmp_path):
    CONFIG_MAPPING[family](**sizes).save_pretrained(tmp_path)
    if taken:
        return model_checks.check_heads(run_of(tmp_path))
    refused = "have 16 dimensions, which vLLM does not take on a CPU: use a model wi"
    with pytest.raises(ConfigError, match=refused):
        model_checks.check_heads(run_of(tmp_path))


@pytest.mark.parametrize(("colocate_all", "needed"), [(True, 2), (False, 4)])
def test_gpus_that_are_not_there_are_said_before_ray_waits_for_them(
    monkeypatch, colocate_all, needed
):
    flags = [MODEL, str(POLICY), "--actor.num_gpus_per_node", "2", "--vllm.num_engines", "2"]
    run = configure([*flags, *["--train.colocate_all"] * colocate_all], on_cpu=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: needed - 1)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    refused = f"^the run takes {needed} GPUs .* but {needed - 1} are here"
    with pytest.raises(ConfigError, match=refused):
        machine.check_gpus(run)
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    assert machine.check_gpus(run) == (run, {})


GIB = 2**30
SHARED = [MODEL, R1 + "1.5B", "--train.colocate_all", "--vllm.enable_sleep", "--ds.enable_sleep"]
SHARED += ["--data.max_len", "14000", "--rollout.max_new_tokens", "12000"]
SHARED += ["--vllm.gpu_memory_utilization", "0.7"]
OPTIMIZER = "the optimizer"
LEAVES = f"{OPTIMIZER} leaves the GPU while vLLM generates:"
STAYS = f"{OPTIMIZER} stays on the GPU beside vLLM, which takes"
SHORT = ["--data.max_len", "3048", "--rollout.max_new_tokens", "2048", "--rollout.batch_size", "4"]
SHORT += ["--actor.num_gpus_per_node", "1", "--vllm.num_engines", "1"]  # 4 x 16 responses


@pytest.mark.parametrize(
    ("flags", "gpu", "sleep", "says"),
    [
        ([], 80, (False, True), [f"{STAYS} 70% of it and sleeps in turn: a step copies 6.6 GiB"]),
        ([], 24, (True, True), [f"{LEAVES} a step copies 11.6 GiB on each GPU"]),
        (SHORT, 80, (False, False), [f"{STAYS} 14% of it and never sleeps: a step copies 0.0"]),
        ([MODEL, "no/model"], 80, (True, True), [f"{LEAVES} --actor.model_name"]),
        (["--no-ds.enable_sleep"], 24, (False, True), []),
    ],
)
def test_what_fits_stays_on_the_gpu(flags, gpu, sleep, says):
    run = configure([*SHARED, *flags], on_cpu=False)
    placed, lines = machine.place_optimizer(run, gpu * GIB)
    assert (placed.args.ds.enable_sleep, placed.args.vllm.enable_sleep) == sleep
    assert placed.args.vllm.gpu_memory_utilization <= 0.7
    assert [line[: len(begins)] for line, begins in zip(lines, says, strict=True)] == says
    cache = machine.engine_cache(run, placed, gpu * GIB)
    assert list(cache) == ["kv_cache_memory_bytes"] * (True not in sleep)

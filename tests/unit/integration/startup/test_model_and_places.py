"""What is found out about model and machine before Ray starts."""

import copy
import sys
from dataclasses import replace

import pytest
import torch
from support.paths import POLICY, ROOT
from support.sizing import R1
from transformers import CONFIG_MAPPING, AutoConfig

from openrlhf_swap.config import RunConfig
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.flags.configuration import configure
from openrlhf_swap.integration.startup import places
from openrlhf_swap.integration.startup.model import TriedModel, check_heads, read_policy
from openrlhf_swap.integration.startup.settling import (
    advise_on_rate,
    check_old_thoughts,
    choose_scoring,
    settle_packing,
)
from openrlhf_swap.objectives.registry import build

PRESET = ROOT / "scripts" / "train_swap_1gpu.yaml"
PADDED = "--no-ds.packing_samples --no-train.dynamic_batch_enable"


def run_of(folder, flags=""):
    """The run of a preset on a model in this folder, with more flags."""
    words = f"--config {PRESET} --actor.model_name_or_path {folder} {flags}"
    return configure(words.split(), on_cpu=False)


@pytest.fixture
def model_of(tmp_path, tokenizer):
    """A model of a family, by what a folder with its configuration and a tokenizer says."""

    def model_of(family, **sizes):
        tokenizer.save_pretrained(tmp_path)
        CONFIG_MAPPING[family](**sizes).save_pretrained(tmp_path)
        return TriedModel.read(str(tmp_path), 100)

    return model_of


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
def test_what_cannot_be_packed_is_padded_and_the_console_says_so(family, reason, model_of):
    model = model_of(family)
    padded = run_of(model.path, PADDED)
    settled = settle_packing(padded, model)
    assert settled.configuration == padded
    assert settled.messages == ()
    run = run_of(model.path)
    settled = settle_packing(run, model)
    if reason is None:
        assert settled.configuration == run
        assert settled.messages == ()
        return
    assert run.args.ds.packing_samples
    assert run.args.train.dynamic_batch_enable
    assert not settled.configuration.args.ds.packing_samples
    assert not settled.configuration.args.train.dynamic_batch_enable
    (line,) = settled.messages
    assert line.startswith("responses are padded instead of packed")
    assert reason in line


@pytest.mark.parametrize(
    ("family", "reason"),
    [
        ("qwen3", None),
        ("gemma3_text", None),
        ("qwen3_5_text", "reads on from one packed response into the next"),
        ("gpt_oss", "reads on from one packed response into the next"),
    ],
)
def test_contexts_without_old_thoughts_need_a_model_that_packs(family, reason, model_of):
    model = model_of(family)
    run = run_of(model.path, "--swap.end_of_thought </think>")
    if reason is None:
        check_old_thoughts(run, model)
        return
    with pytest.raises(ConfigError, match=f"--agent.keep_thoughts is last.*{reason}"):
        check_old_thoughts(run, model)


def test_contexts_without_old_thoughts_need_a_head_without_adapters(model_of):
    model = model_of("qwen3")
    flags = "--swap.end_of_thought </think> --ds.lora.rank 8"
    check_old_thoughts(run_of(model.path, flags), model)
    run = run_of(model.path, f"{flags} --ds.lora.target_modules q_proj lm_head")
    with pytest.raises(ConfigError, match=r"keep_thoughts is last.*its head is a Linear"):
        check_old_thoughts(run, model)


@pytest.mark.parametrize(
    ("family", "flags", "obstacle"),
    [
        ("qwen2", "", None),
        ("gemma3_text", "", None),
        ("deepseek_v3", "", None),
        ("qwen2", "--swap.scoring per_prefix", "because --swap.scoring is per_prefix; use"),
        ("qwen3_5_text", "", "recurrent layers.*use --swap.step_reward gain"),
    ],
)
def test_need_is_refused_where_steps_cannot_be_hidden(family, flags, obstacle, model_of):
    model = model_of(family)
    run = run_of(model.path, f"--swap.step_reward need {PADDED} {flags}")
    objective = build(run.method)
    if obstacle is None:
        (line,) = choose_scoring(run, objective, model).messages
        assert "(shared_prefix)" in line
        return
    with pytest.raises(ConfigError, match=f"cannot be hidden to read need, .*{obstacle}"):
        choose_scoring(run, objective, model)


def test_the_small_model_is_made_once_and_no_trial_changes_it(model_of):
    model = model_of("qwen2")
    weights = copy.deepcopy(model.small.state_dict())
    attention = model.small.config._attn_implementation
    run = run_of(model.path)
    settle_packing(run, model)
    choose_scoring(run, build(run.method), model)
    assert model.small.config._attn_implementation == attention
    for name, weight in model.small.state_dict().items():
        assert torch.equal(weight, weights[name])


@pytest.mark.parametrize(
    ("sizes", "flags", "warns"),
    [
        ({}, "--actor.adam.lr 3e-4", True),
        ({}, "--actor.adam.lr 1e-5", False),
        ({}, "--actor.adam.lr 3e-4 --ds.lora.rank 32", False),
        ({"hidden_size": 64, "vocab_size": 1000}, "--actor.adam.lr 3e-4", False),
    ],
)
def test_a_rate_that_spoils_a_language_model_is_warned_about(sizes, flags, warns, model_of):
    sizes = {"num_hidden_layers": 1, "intermediate_size": 64, **sizes}
    model = model_of("qwen2", **sizes)
    lines = advise_on_rate(run_of(model.path, flags), model)
    assert len(lines) == warns
    assert "".join(lines).startswith("warning: --actor.adam.lr is 0.0003" if warns else "")


@pytest.mark.parametrize("family", ["qwen3_5", "gemma3"])
def test_a_multimodal_model_is_refused(family, tmp_path, tokenizer):
    """OpenRLHF calls it one too."""
    from openrlhf.utils.utils import is_vlm_model

    tokenizer.save_pretrained(tmp_path)
    CONFIG_MAPPING[family]().save_pretrained(tmp_path)
    assert is_vlm_model(str(tmp_path))
    refused = r"a multimodal model .* give a checkpoint of its language model alone"
    with pytest.raises(ConfigError, match=refused):
        TriedModel.read(str(tmp_path), 100)


@pytest.mark.parametrize(
    ("family", "sizes", "taken"),
    [
        ("qwen2", {"hidden_size": 64, "num_attention_heads": 4}, False),
        ("qwen3", {"hidden_size": 64, "num_attention_heads": 4, "head_dim": 32}, True),
        ("deepseek_v3", {}, True),
        ("mamba2", {}, True),
    ],
)
def test_heads_that_the_engine_does_not_take_on_a_cpu_are_refused(family, sizes, taken, model_of):
    model = model_of(family, **sizes)
    if taken:
        return check_heads(model)
    refused = "have 16 dimensions, which vLLM does not take on a CPU: use a model wi"
    with pytest.raises(ConfigError, match=refused):
        check_heads(model)


@pytest.mark.parametrize(
    ("on_cpu", "refused"),
    [(True, "need a GPU, but torch is a CPU build"), (False, "is not installed: pip install lig")],
)
def test_ligers_kernels_are_refused_where_they_cannot_run(monkeypatch, on_cpu, refused):
    # As in an environment without the package.
    monkeypatch.setitem(sys.modules, "liger_kernel", None)
    words = f"--actor.model_name_or_path {POLICY} --data.max_len 400 --rollout.max_new_tokens 300"
    run = configure([*words.split(), "--ds.use_liger_kernel"], on_cpu)
    with pytest.raises(ConfigError, match=f"^--ds.use_liger_kernel is True, .*{refused}"):
        read_policy(run)


@pytest.mark.parametrize(("colocate_all", "needed"), [(True, 2), (False, 4)])
def test_gpus_that_are_not_there_are_said_before_ray_waits_for_them(
    monkeypatch, colocate_all, needed, model_of
):
    model = model_of("qwen2")
    flags = "--actor.num_gpus_per_node 2 --vllm.num_engines 2 --actor.model_name_or_path"
    words = [*flags.split(), model.path]
    if colocate_all:
        words.append("--train.colocate_all")
    run = configure(words, on_cpu=False)
    objective = build(run.method)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: needed - 1)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    refused = f"^the run takes {needed} GPUs .* but {needed - 1} are here"
    with pytest.raises(ConfigError, match=refused):
        places.place(run, objective, model)
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    placed = places.place(run, objective, model)
    assert placed.flags == {"actor.gradient_checkpointing_enable": True}  # nobody counted
    assert placed.messages == ()


GIB = 2**30
SHARED = (
    f"--actor.model_name_or_path {R1}1.5B --train.colocate_all --vllm.enable_sleep "
    "--ds.enable_sleep --vllm.gpu_memory_utilization 0.7 --data.max_len 14000 "
    "--rollout.max_new_tokens 12000 "
)
# 4 x 16 responses.
SHORT = (
    "--data.max_len 3048 --rollout.max_new_tokens 2048 --rollout.batch_size 4 "
    "--actor.num_gpus_per_node 1 --vllm.num_engines 1"
)
OPTIMIZER = "the optimizer"
LEAVES = f"{OPTIMIZER} leaves the GPU while vLLM generates:"
STAYS = f"{OPTIMIZER} stays on the GPU beside vLLM, which takes"


@pytest.mark.parametrize(
    ("flags", "gpu", "sleep", "says"),
    [
        ("", 80, (False, True), f"{STAYS} 70% of it and sleeps in turn: a step copies 6.6 GiB"),
        ("", 24, (True, True), f"{LEAVES} a step copies 11.6 GiB on each GPU"),
        (SHORT, 80, (False, False), f"{STAYS} 14% of it and never sleeps: a step copies 0.0"),
        ("--actor.model_name_or_path no/model", 80, (True, True), f"{LEAVES} --actor.model_name"),
        ("--no-ds.enable_sleep", 24, (False, True), None),
    ],
)
def test_what_fits_stays_on_the_gpu(monkeypatch, flags, gpu, sleep, says):
    run = configure((SHARED + flags).split(), on_cpu=False)
    monkeypatch.setattr(places, "check_memory", lambda pinned: None)  # not this machine's
    placed = places.place_on_gpus(run, build(run.method), gpu * GIB)
    args = run.replace_flags(placed.flags).args
    assert (args.ds.enable_sleep, args.vllm.enable_sleep) == sleep
    assert args.vllm.gpu_memory_utilization <= 0.7
    lines = [line for line in placed.messages if line.startswith(OPTIMIZER)]
    assert len(lines) == (says is not None)
    for line in lines:
        assert line.startswith(says)
    limited = ["kv_cache_memory_bytes"] if sleep == (False, False) else []
    assert list(placed.engine_limits) == limited


UPDATE = "the update recomputes"


@pytest.mark.parametrize(
    ("flags", "gpu", "checkpoints", "keeps", "says"),
    [
        # 14,000 tokens keep 37.8 GiB, beside 14.3 of other things on each of eight GPUs; results of
        # products and attention take half.
        ("", 80, False, False, f"{UPDATE} nothing, because all activations fit; it holds the"),
        ("", 57, True, True, f"{UPDATE} all but products and attention, because"),
        ("", 35, True, False, f"{UPDATE} each layer, because not all"),
        (SHORT, 80, False, False, f"{UPDATE} nothing, because all"),
        # No formula: nobody can say what fits.
        ("--actor.model_name_or_path no/model", 141, True, False, None),
        # The flag is the user's word.
        (f"{SHORT} --actor.gradient_checkpointing_enable", 80, True, False, None),
        ("--no-actor.gradient_checkpointing_enable", 24, False, False, None),
    ],
)
def test_what_an_update_recomputes(monkeypatch, flags, gpu, checkpoints, keeps, says):
    run = configure((SHARED + flags).split(), on_cpu=False)
    monkeypatch.setattr(places, "check_memory", lambda pinned: None)  # not this machine's
    placed = places.place_on_gpus(run, build(run.method), gpu * GIB)
    args = run.replace_flags(placed.flags).args
    assert args.actor.gradient_checkpointing_enable == checkpoints
    assert run.run.replaced(**placed.settings).keeps_products == keeps
    lines = [line for line in placed.messages if line.startswith(UPDATE)]
    assert len(lines) == (says is not None)
    for line in lines:
        assert line.startswith(says)


ON_CPU = (
    "--actor.model_name_or_path Qwen/Qwen2.5-0.5B-Instruct --data.max_len 1024 "
    "--rollout.max_new_tokens 512 --swap.logits_chunk 256 --rollout.micro_batch_size 4 "
    "--actor.num_gpus_per_node 1 --vllm.num_engines 1 "
)


@pytest.mark.parametrize(
    ("flags", "gib", "lowered"),
    [
        # The policy's process was seen with 10.5 to 12.7 GB; with micro-batches of 8 Ray ended it
        # at 14.4, on a machine of 24 GB.
        ("--train.micro_batch_size 2", 19, None),
        ("--train.micro_batch_size 8", 19, (1, 1)),
        ("--train.micro_batch_size 8", 24, (2, 1)),
        ("--train.micro_batch_size 8", 28, None),
        # The whole run was seen with 9.9 GiB with micro-batches of 2, of shorter responses.
        ("--train.micro_batch_size 2 --ds.lora.rank 32", 12, None),
        ("--train.micro_batch_size 8 --ds.lora.rank 32", 16, (2, 1)),
    ],
)
def test_a_cpu_without_room_for_a_run_gets_smaller_micro_batches(monkeypatch, flags, gib, lowered):
    run = configure((ON_CPU + flags).split(), on_cpu=True)
    objective = build(run.method)
    limits = {"kv_cache_memory_bytes": 2**29}
    monkeypatch.setattr(places, "available_memory", lambda: gib * GIB)
    placed = places.place_on_cpu(run, objective, limits)
    args = run.replace_flags(placed.flags).args
    given = (run.args.train.micro_batch_size, run.args.rollout.micro_batch_size)
    assert (args.train.micro_batch_size, args.rollout.micro_batch_size) == (lowered or given)
    assert len(placed.messages) == (lowered is not None)
    assert placed.engine_limits == limits
    monkeypatch.setattr(places, "available_memory", lambda: 4 * GIB)
    refused = r"^4\.0 GiB of main memory are available, .*policy .*with --train\.micro_batch_size 1"
    with pytest.raises(ConfigError, match=refused) as error:
        places.place_on_cpu(run, objective, limits)
    # They are no remedy for a run that has them.
    assert ("train adapters" in str(error.value)) == ("lora" not in flags)


def limits(model, flags="", on_cpu=False, engines=8, **run):
    """The limits of each of so many engines, with these settings of the run."""
    words = f"--actor.model_name_or_path {model} --vllm.num_engines {engines} {flags}"
    configuration = configure(words.split(), on_cpu)
    config = AutoConfig.from_pretrained(model) if on_cpu else None  # GPUs do not look at it
    return places.engine_limits(replace(configuration, run=RunConfig(**run)), config)


def test_an_engine_is_given_all_of_a_step_whatever_its_gpu():
    model = R1 + "1.5B"
    assert limits(model) == {"max_num_seqs": 256, "max_num_batched_tokens": 8192}
    assert limits(model, engine_sequences=9) == {"max_num_seqs": 9, "max_num_batched_tokens": 8192}
    assert limits(model, engines=3)["max_num_seqs"] == 683  # 2,048 responses: 682 or 683 each
    assert limits(model, engines=1)["max_num_seqs"] == 1024
    many = {"max_num_seqs": 9000, "max_num_batched_tokens": 9000}
    assert limits(model, engine_sequences=9000) == many


def test_a_cache_on_a_cpu_is_as_large_as_what_an_engine_gets():
    def on_cpu(flags, **run):
        return limits(POLICY, flags, on_cpu=True, engines=1, **run)

    many = (
        "--rollout.batch_size 64 --rollout.n_samples_per_prompt 8 --train.batch_size 512 "
        "--rollout.max_new_tokens 320 --data.max_len"
    )
    # Four layers of two heads of 32, keys and values, two bytes each: 1,024 bytes a token.
    cache = {"kv_cache_memory_bytes": 64 * 8 * 400 * 1024}
    assert on_cpu(f"{many} 400") == cache
    assert on_cpu(f"{many} 400", engine_sequences=9) == {"max_num_seqs": 9, **cache}
    assert on_cpu(f"{many} 4000") == {"kv_cache_memory_bytes": GIB}
    few = "--rollout.batch_size 1 --rollout.n_samples_per_prompt 8 --data.max_len 4000"
    small = {"kv_cache_memory_bytes": GIB // 8}
    assert on_cpu(few) == small
    assert on_cpu(f"{few} --vllm.enable_prefix_caching") == {**small, "block_size": 32}

"""What stays on a GPU, by hand."""

from dataclasses import dataclass, replace

import pytest
from support.paths import ROOT
from support.sizing import R1

from openrlhf_swap.flags.configuration import configure
from openrlhf_swap.objectives.registry import build
from openrlhf_swap.sizing.engine import cache_bytes
from openrlhf_swap.sizing.fitting import Machine, copied_bytes, fit, place_optimizer
from openrlhf_swap.sizing.host import host_bytes
from openrlhf_swap.sizing.models import GIB, Model
from openrlhf_swap.sizing.settings import Settings, read_run


@dataclass
class Placed:
    """A run on a machine."""

    model: Model
    given: Settings  # as the flags say
    settings: Settings  # as it is placed


def place(gib, *flags, preset="1gpu", gpus=1):
    """Place a preset with more flags on nodes of so many GPUs of so many GiB."""
    file = str(ROOT / "scripts" / f"train_swap_{preset}.yaml")
    run = configure(["--config", file, *flags], on_cpu=False)
    model, given = read_run(run, build(run.method))
    machine = Machine(int(gib * GIB), gpus)
    return Placed(model, given, place_optimizer(model, given, machine))


def step_of(prompts, responses):
    """Flags of a step of so many prompts with so many responses each."""
    return [
        "--rollout.batch_size",
        str(prompts),
        "--rollout.n_samples_per_prompt",
        str(responses),
        "--train.batch_size",
        str(prompts * responses),
    ]


SHORT_RESPONSES = ["--data.max_len", "3048", "--rollout.max_new_tokens", "2048"]
SHORT = [*SHORT_RESPONSES, *step_of(8, 8)]
LORA = ["--actor.model_name_or_path", f"{R1}7B", "--ds.lora.rank", "32"]
BOTH_LEAVE = (True, True)  # the optimizer, and vLLM
ONE_STAYS = (False, True)
BOTH_STAY = (False, False)


@pytest.mark.parametrize(
    ("gib", "gpus", "preset", "flags", "leave"),
    [
        # 1,777,088,000 parameters take 2 + 12 bytes each and 4 GiB are kept free: 65.6% of 79.1
        # GiB are left. The cache of 65% less 3,554,176,000 bytes of weights and 1.5 GiB holds 281
        # responses of 6,200 tokens of 28,672 bytes: all 256.
        (79.1, 1, "1gpu", [], ONE_STAYS),
        # A response of full length takes 401 MB, and a GPU of 44 GiB leaves 38%: 12.6 GB, 70
        # responses instead of 159.
        (44, 1, "1gpu", [], BOTH_LEAVE),
        (44, 1, "1gpu", ["--swap.engine_sequences", "64"], ONE_STAYS),
        (79.1, 4, "1.5b", [], BOTH_LEAVE),  # two nodes: nobody reads the other's GPUs
        # 64 responses of 3,048 tokens of a 7B take 10.5 GiB on each of eight GPUs.
        (79.1, 8, "7b", [*SHORT_RESPONSES, *step_of(8, 64)], BOTH_STAY),
        # LoRA on 48 GB: 27.2 GiB of vLLM are 5.8 too many in the update.
        (48, 1, "1gpu", [*SHORT, *LORA], ONE_STAYS),
        (79.1, 1, "1gpu", ["--ds.adam_offload"], BOTH_LEAVE),
    ],
)
def test_what_fits_beside_the_others_stays(gib, gpus, preset, flags, leave):
    settings = place(gib, *flags, preset=preset, gpus=gpus).settings
    assert (settings.actor_sleeps, settings.vllm_sleeps) == leave


def test_neither_leaves_where_both_fit_with_all_responses_of_a_step():
    # 64 responses of 3,048 tokens and 32 of blocks, 28,672 bytes each, with 3,554,176,000 bytes of
    # weights, 1.5 GiB of activations and 1 GiB of graphs: 13.9997% of 79.1 GiB.
    run = place(79.1, *SHORT)
    neither = replace(run.given, actor_sleeps=False, vllm_sleeps=False, utilization=0.14)
    assert run.settings == neither
    gpu = int(79.1 * GIB)
    cache = cache_bytes(run.model, run.settings, gpu)
    assert cache == int(0.14 * gpu) - 3_554_176_000 - 5 * GIB // 2
    assert cache >= 64 * 3_080 * 28_672
    # A step with sleep moves the optimizer's 12 bytes and the weights' 2, out and in.
    assert copied_bytes(run.model, run.given) == 2 * (12 + 2) * 1_777_088_000
    weights_alone = replace(run.given, actor_sleeps=False)
    assert copied_bytes(run.model, weights_alone) == 2 * 2 * 1_777_088_000
    assert host_bytes(run.model, run.settings, 1) == {}  # nothing sleeps in main memory either


@pytest.mark.parametrize(
    ("tokens", "gib", "checkpointing", "keeps_products", "chunk"),
    [
        # 28 layers keep 103,480 bytes of each of 6,000 tokens, 16.2 GiB; with 3.3 of weights, 19.9
        # of the optimizer, 6.6 of gradients and 2.3 of their buckets, 4 that are kept free and
        # vLLM's 14%, 11.1: 63.6 GiB of 79.1, less than 90%.
        ("6000", 79.1, False, False, 8192),
        # 8.1 more: 71.7, more than 71.2. Results of products and attention, 52,272 bytes a token
        # and layer, are 12.3 GiB.
        ("9000", 79.1, True, True, 8192),
        # 22.0 of these, and 1.5 of the layer at work: 70.6. At the loss there are no buckets, half
        # of the gradients, and .9 of the head's: 64.7 beside the logits, which take 6 x 151,936
        # bytes a token, for 8,192 tokens 7.0.
        ("16140", 79.1, True, True, 4096),
        ("24000", 79.1, True, False, 8192),  # 32.7 and 2.2: 82.0
        ("14000", 141, False, False, 8192),
    ],
)
def test_an_update_keeps_the_most_that_leaves_a_tenth_free(
    tokens, gib, checkpointing, keeps_products, chunk
):
    placed = place(gib, *SHORT, "--train.max_tokens_per_gpu", tokens)
    assert placed.given.checkpointing
    assert placed.given.may_keep_all
    machine = Machine(int(gib * GIB), 1)
    fitted = fit(placed.model, placed.given, machine)
    assert fitted == replace(
        placed.settings,
        checkpointing=checkpointing,
        keeps_products=keeps_products,
        logits_chunk=chunk,
    )


@pytest.mark.parametrize("flag", ["--actor", "--no-actor"])
def test_a_flag_says_what_is_recomputed(flag):
    placed = place(141, *SHORT, f"{flag}.gradient_checkpointing_enable")
    fitted = fit(placed.model, placed.given, Machine(int(141 * GIB), 1))
    assert fitted == replace(placed.settings, logits_chunk=8192)
    assert fitted.checkpointing == (flag == "--actor")


@pytest.mark.parametrize(
    "flags",
    [
        ["--ds.lora.rank", "32"],
        ["--ds.use_liger_kernel"],
        ["--ds.zero_stage", "3"],
        ["--actor.gradient_checkpointing_reentrant"],
    ],
)
def test_where_results_cannot_be_kept_layers_are_recomputed(flags):
    placed = place(79.1, *SHORT, "--train.max_tokens_per_gpu", "24000", *flags)
    fitted = fit(placed.model, placed.given, Machine(int(79.1 * GIB), 1))
    assert fitted.checkpointing
    assert not fitted.keeps_products


def test_a_flag_says_how_many_logits_are_held():
    placed = place(141, *SHORT, "--swap.logits_chunk", "512")
    fitted = fit(placed.model, placed.given, Machine(int(141 * GIB), 1))
    assert fitted.logits_chunk == 512

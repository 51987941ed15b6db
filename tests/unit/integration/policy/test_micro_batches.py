"""Passes of a step over responses as long as a reasoning model's, by OpenRLHF's own code."""

from types import SimpleNamespace

import pytest
import torch
from support.paths import ROOT

import openrlhf_swap.integration  # noqa: F401  makes OpenRLHF importable
from openrlhf_swap.flags.configuration import configure

# Tokens of 64 responses of DeepSeek-R1-Distill-Qwen-1.5B and 7B to problems of AIME24 and AMC.
TRACES = """
12161 7057 3424 15624 6608 4767 15514 14872 15648 15139 9079 15154 8127 15407 5378 9069
3403 8007 4029 15248 15742 15128 14817 15389 15661 2413 1694 15583 1345 3561 5763 14633
3292 6521 4766 1389 7752 15287 4698 15388 2063 2701 15441 15453 15256 11879 15429 9077
6833 8014 7344 1882 15222 1458 2866 2846 15078 14727 1570 1067 4195 3244 15082 15380
"""
LENGTHS = [min(12_000, int(tokens)) for tokens in TRACES.split()]  # the recipe's limit
# And of a trial on short ones: what a model with random weights says before one of 100 end tokens
# comes up.
SHORT = [500 + 20 * number for number in range(64)]
PROMPT = 100
STEP = ["--rollout.batch_size", "8", "--rollout.n_samples_per_prompt", "8"]
STEP += ["--train.batch_size", "64"]
PADDED = ["--no-ds.packing_samples", "--no-train.dynamic_batch_enable"]


@pytest.fixture(scope="module")
def one_process(tmp_path_factory):
    store = torch.distributed.FileStore(str(tmp_path_factory.mktemp("store") / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def samples_of(lengths):
    from openrlhf.trainer.ppo_utils.experience import Experience

    for length in lengths:
        total = PROMPT + length
        actions = torch.ones(1, total - 1, dtype=torch.int64)
        actions[:, : PROMPT - 1] = 0
        ids = torch.ones(1, total, dtype=torch.int64)
        info = {"total_length": torch.tensor([total])}
        yield Experience(
            sequences=ids,
            attention_mask=ids,
            action_mask=actions,
            total_length=torch.tensor([total]),
            index=[0],
            info=info,
        )


def passes(lengths, *flags):
    """The micro-batches of the log-probabilities and of the update, as (B, T) masks of tokens."""
    from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
    from openrlhf.trainer.ppo_utils.replay_buffer import NaiveReplayBuffer

    words = ["--config", str(ROOT / "scripts" / "train_swap_1gpu.yaml"), *STEP, *flags]
    args = configure(words, on_cpu=False).args
    maker = SimpleNamespace(args=args, tokenizer=SimpleNamespace(pad_token_id=0))
    scored = RemoteExperienceMaker.split_rollout_samples(maker, list(samples_of(lengths)))

    sizes = args.train.micro_batch_size, 0, False
    buffer = NaiveReplayBuffer(*sizes, args.ds.packing_samples, args.train.dynamic_batch_enable)
    for batch in scored:
        buffer.append(batch)
    if args.train.dynamic_batch_enable:
        mesh = {"dp": SimpleNamespace(get_group=lambda: None)}
        buffer.setup_dynamic_batch(
            SimpleNamespace(args=args, ds_device_mesh=mesh, all_reduce=lambda counts, op: counts)
        )
    loader = torch.utils.data.DataLoader(
        buffer, batch_size=buffer.sample_batch_size, collate_fn=buffer.collate_fn
    )
    return (
        args,
        [batch.attention_mask for batch in scored],
        [batch.attention_mask for batch in loader],
    )


def counted(lengths, *flags):
    """Micro-batches of each pass, and the percentage of the tokens in them that is padding."""
    from openrlhf.models.ring_attn_utils import unpad_and_slice_tensor

    args, *both = passes(lengths, *flags)
    found = []
    for masks in both:
        inputs = [
            unpad_and_slice_tensor(mask, mask, None)[0] if args.ds.packing_samples else mask
            for mask in masks
        ]
        tokens, given = sum(int(mask.sum()) for mask in masks), sum(part.numel() for part in inputs)
        assert tokens == sum(lengths) + PROMPT * len(lengths)
        if args.ds.packing_samples:
            # OpenRLHF counts micro-batches that are filled one after the other, and then balances
            # them.
            assert (
                max(part.numel() for part in inputs)
                <= 1.02 * args.train.max_tokens_per_gpu
                == 1.02 * 14_000
            )
        found.append((len(masks), round(100 * (1 - tokens / given))))
    return found


FOUR = ["--rollout.micro_batch_size", "4", "--train.micro_batch_size", "4"]


@pytest.mark.parametrize(
    ("lengths", "flags", "expected"),
    [
        (LENGTHS, PADDED, [(64, 0), (64, 0)]),
        (LENGTHS, [*PADDED, *FOUR], [(16, 31), (16, 31)]),
        (LENGTHS, [], [(41, 0), (42, 0)]),
        (SHORT, PADDED, [(64, 0), (64, 0)]),
        (SHORT, [], [(6, 0), (6, 0)]),
    ],
    ids=["long, one row", "long, four rows", "long, packed", "short, one row", "short, packed"],
)
def test_micro_batches_and_padding(one_process, lengths, flags, expected):
    assert counted(lengths, *flags) == expected

"""What a plan holds in a node's main memory, against hand-worked numbers."""

from dataclasses import replace

from support.sizing import NODE, R1

from openrlhf_swap.sizing import memory
from openrlhf_swap.sizing.models import GIB, read_model

SMALL = read_model(R1 + "1.5B", 14_000)
MIB = 2**20


def test_pinned_blocks_are_powers_of_two_by_hand():
    """Of an engine's weights on a GPU, and of a rank's optimizer; 8 of each on a node."""
    # In each of 28 layers gate and up, 52.5 MiB, are allocated as 54 and pinned as 64, down with 26.25 as 32. The
    # smaller ones, 6 + 4.5 MiB a layer, fill 15 segments of 20 MiB, pinned as 32. Embedding and head: 445.1 as 512.
    engine = (28 * (64 + 32) + 15 * 32 + 2 * 512) * MIB
    # Master copy and moments: 4 x 222,136,000 bytes are 847.4 MiB.
    assert memory.host_bytes(SMALL, NODE, 8) == {
        "weights of sleeping vLLM": 8 * engine,
        "sleeping optimizer": 8 * 3 * 1024 * MIB,
    }
    # 4 x 1,777,088,000 bytes are 6.6 GiB: master copy and gradients take 8 each, the moments are not pinned; bf16
    # weights take 4 for 3.3. Gradients of earlier micro-batches: 4.5 as 8, .75 as 1 twice, 4.5 as 8, 26.25 as 32 three
    # times a layer; biases of 3,072 and twice 512 bytes as 4,096 and 512, two norms and the last of 3,072 as 4,096.
    earlier = 28 * (114 * MIB + 4096 + 2 * 512 + 2 * 4096) + 4096 + 2 * 512 * MIB
    assert memory.host_bytes(SMALL, replace(NODE, ranks=1, vllm_sleeps=False, adam_offload=True), 1) == {
        "optimizer": 20 * GIB + 8 * 1_777_088_000 + earlier
    }


def test_a_moving_average_is_one_in_float32_however_many_gpus_a_node_has():
    averaging = replace(NODE, averages=True)
    with_it, without = (memory.host_bytes(SMALL, settings, 8) for settings in (averaging, NODE))
    assert with_it == {"moving average": 4 * 1_777_088_000, **without}
    saved = memory.checkpoint_bytes(SMALL, averaging)["deepspeed"]
    assert saved == (2 + 12 + 4) * 1_777_088_000


def test_zero_3_pins_group_by_group():
    # 9.6e9 parameters on 8 ranks: a group of 1e9, 4e9 bytes as 4 GiB, one of 2e8, 8e8 bytes as 1 GiB; gradients 2.4e9
    # bytes as 4 GiB.
    model, settings = replace(SMALL, parameters=9_600_000_000), replace(NODE, stage=3, vllm_sleeps=False)
    assert memory.host_bytes(model, settings, 8) == {"sleeping optimizer": 8 * (3 * (4 + 1) + 4) * GIB}


def test_an_engine_on_two_gpus_pins_half_of_each_weight_on_both():
    # Gate and up 26.25 MiB as 32, down 13.1 as 16; the smaller ones half as many; 222.6 as 256.
    engine = 2 * (28 * (32 + 16) + 8 * 32 + 2 * 256) * MIB
    held = memory.host_bytes(SMALL, replace(NODE, tensor_parallel=2, engines=4), 8)
    assert held["weights of sleeping vLLM"] == 4 * engine

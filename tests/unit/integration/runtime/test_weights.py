"""What the policy sends to vLLM, in how many calls; tests/stack/test_families.py has vLLM."""

from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from support.paths import POLICY
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM
from vllm.distributed.weight_transfer import WeightTransferEngineFactory, packed_tensor

from openrlhf_swap.integration.runtime import (
    transport,
    weight_source,
    weight_transfer,
    weights,
    weights_nccl,
)
from openrlhf_swap.integration.runtime.weight_source import PIECE_BYTES, PolicyWeights
from openrlhf_swap.integration.runtime.weight_transfer import EngineClient
from openrlhf_swap.integration.runtime.weights_bytes import BytesSender
from openrlhf_swap.scoring.small_model import small_model

FAMILIES = ["qwen2", "qwen3_moe", "mixtral", "gpt_oss", "deepseek_v3", "qwen3_5_text"]
FAMILIES += ["olmo_hybrid", "nemotron_h"]
R1_1_5B = {"hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28}
R1_1_5B |= {"num_attention_heads": 12, "num_key_value_heads": 2, "vocab_size": 151_936}
R1_1_5B |= {"tie_word_embeddings": False}
QWEN3_30B = {"num_experts": 128, "num_hidden_layers": 48, "moe_intermediate_size": 768}
QWEN3_30B |= {"hidden_size": 2048}


class Calls(EngineClient):
    """Engines that note what they are called with."""

    def __init__(self, engines=1):
        self.made = []
        note = SimpleNamespace(remote=lambda *call: self.made.append(call))
        super().__init__([SimpleNamespace(transfer_weights=note)] * engines)


@pytest.fixture(autouse=True)
def without_ray(monkeypatch):
    ray = SimpleNamespace(put=lambda info: info, get=lambda refs: refs)
    for module in (weight_transfer, weights_nccl):
        monkeypatch.setattr(module, "ray", ray)


@pytest.mark.parametrize("piece", [PIECE_BYTES, 1])
@pytest.mark.parametrize("family", FAMILIES)
def test_weights_are_those_of_a_checkpoint(family, piece, tmp_path, monkeypatch):
    """Together, and where each parameter is gathered by itself."""
    monkeypatch.setattr(weight_source, "PIECE_BYTES", piece)
    model = small_model(CONFIG_MAPPING[family](), AutoModelForCausalLM.from_config)
    model.save_pretrained(tmp_path)
    written = load_file(tmp_path / "model.safetensors")
    source = PolicyWeights(model, model.named_parameters())
    sent, buffers = dict(source), dict(PolicyWeights(model, model.named_buffers()))
    assert written.keys() - buffers.keys() == sent.keys()
    assert all(torch.equal(weight, written[name]) for name, weight in sent.items())
    declared = [(meta.name, meta.dtype, meta.shape) for meta in source.metadata()]
    assert declared == [(name, weight.dtype, tuple(weight.shape)) for name, weight in sent.items()]
    assert source.largest == max(weight.nbytes for weight in sent.values())
    assert [name for name, _ in source.iter_full()] == list(sent)


def test_the_embedded_policy_travels_in_one_call_between_two():
    """Instead of one for each of its 50 parameters."""
    model, client = AutoModelForCausalLM.from_pretrained(POLICY), Calls()
    BytesSender(client=client, source=PolicyWeights(model, model.named_parameters())).send_weights()
    methods = [method for method, *_ in client.made]
    assert methods == ["start_weight_update", "update_weights", "finish_weight_update"]
    update = client.made[1][1]
    assert update["names"] == [name for name, _ in model.named_parameters()]
    assert len(update["content"]) == sum(parameter.nbytes for parameter in model.parameters())


@pytest.mark.parametrize(
    ("family", "shape", "tensors", "calls"),
    [("qwen2", R1_1_5B, 339, 8), ("qwen3_moe", QWEN3_30B, 18_867, 98)],
)
def test_vllms_sender_of_ipc_handles_needs_few_calls(monkeypatch, family, shape, tensors, calls):
    """A mixture's experts are sent as checkpoints have them."""
    with torch.device("meta"):
        config = AutoConfig.for_model(family, **shape)
        model = AutoModelForCausalLM.from_config(config, dtype="bfloat16")
    source = PolicyWeights(model, model.named_parameters())
    assert len(source.metadata()) == tensors
    stream = SimpleNamespace(synchronize=lambda: None)
    gpu = SimpleNamespace(
        empty=lambda size, dtype, device: torch.empty(size, dtype=dtype, device="meta"),
        uint8=torch.uint8,
        cuda=SimpleNamespace(current_stream=lambda: stream),
    )
    monkeypatch.setattr(packed_tensor, "torch", gpu)
    monkeypatch.setattr(packed_tensor, "reduce_tensor", lambda _: (None, ()))
    capacity = max(PIECE_BYTES, source.largest)
    pieces = packed_tensor.packed_ipc_producer(iter(source), "GPU-0", lambda x: x[1], capacity)
    assert sum(1 for _ in pieces) == calls


def test_ranks_that_do_not_send_gather_with_the_one_that_does():
    gathered, client = [], Calls()
    source = (gathered.append(name) or (name, torch.zeros(1)) for name in "abc")
    BytesSender(client=client, source=source, is_sender=False).send_weights()
    assert gathered == [*"abc"] and client.made == []


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("colocated", [False, True])
@pytest.mark.parametrize(("sync", "on_cpu"), [("nccl", False), ("gloo", True)])
def test_the_way_that_fits_where_policy_and_engines_are(
    monkeypatch, asynchronous, colocated, sync, on_cpu
):
    monkeypatch.setattr(transport, "is_cpu_build", lambda: on_cpu)
    train = SimpleNamespace(colocate_all=colocated, async_enable=asynchronous)
    args = SimpleNamespace(vllm=SimpleNamespace(sync_backend=sync), train=train)
    shared = "swap_ipc" if colocated and not asynchronous else "swap_nccl"
    way = "swap_bytes" if on_cpu else shared
    assert transport.engine_arguments(args) == {
        "worker_extension_cls": f"{weights.__name__}.{weights.WorkerExtension.__qualname__}",
        "weight_transfer_config": {"backend": way},
    }
    assert way in WeightTransferEngineFactory._registry


def test_the_id_of_nccls_group_goes_over_ray_and_nowhere_else(monkeypatch):
    """Two engines of two workers each: all five ranks make one group, without a port for it."""
    made, client = [], Calls(engines=2)

    def communicator(group, device):
        unique_id = bytes(group.broadcast_obj(None, src=0).internal)
        made.append((group.rank, group.world_size, unique_id, device))

    unique_id = weights_nccl.ncclUniqueId()
    for place in range(128):
        unique_id.internal[place] = 255 - place
    library = SimpleNamespace(ncclGetUniqueId=lambda: unique_id)
    monkeypatch.setattr(weights_nccl, "PyNcclCommunicator", communicator)
    monkeypatch.setattr(weights_nccl, "NCCLLibrary", lambda: library)
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 3)
    monkeypatch.setattr(torch.distributed, "TCPStore", None)
    sender = weights_nccl.nccl_sender(client, source=None, rank=0, workers=2)
    sizes = sender.packed_buffer_size_bytes, sender.packed_num_buffers
    for method, info in client.made:
        assert method == "init_weight_transfer_engine"
        for rank in (0, 1):
            receiver = weights_nccl.NcclReceiver.__new__(weights_nccl.NcclReceiver)
            receiver.parallel_config = SimpleNamespace(rank=rank)
            receiver.init_transfer_engine(receiver.parse_init_info(info))
            assert receiver.packed
            assert (receiver.packed_buffer_size_bytes, receiver.packed_num_buffers) == sizes
    assert made == [(rank, 5, bytes(range(255, 127, -1)), 3) for rank in range(5)]
    weights_nccl.nccl_sender(client, source=None, rank=1, workers=2)
    assert len(made) == 5  # the policy's other ranks join nothing

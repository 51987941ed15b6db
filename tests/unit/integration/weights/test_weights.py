"""What the policy sends to vLLM, and by which way; tests/stack/test_families.py has vLLM."""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from transformers import CONFIG_MAPPING, AutoModelForCausalLM
from vllm import envs
from vllm.distributed.weight_transfer import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.nccl_common import NCCLWeightTransferInitInfo

from openrlhf_swap.integration.weights import nccl, source, way, worker
from openrlhf_swap.integration.weights.source import PIECE_BYTES, PolicyWeights
from openrlhf_swap.scoring.small_model import small_model

FAMILIES = ["qwen2", "qwen3_moe", "gpt_oss", "deepseek_v3", "qwen3_5_text", "nemotron_h"]


@pytest.mark.parametrize(
    ("family", "piece"), [("qwen3_moe", PIECE_BYTES), *((family, 1) for family in FAMILIES)]
)
def test_weights_are_those_of_a_checkpoint(family, piece, tmp_path, monkeypatch):
    """Together, and where each parameter is gathered by itself."""
    monkeypatch.setattr(source, "PIECE_BYTES", piece)
    model = small_model(CONFIG_MAPPING[family](), AutoModelForCausalLM.from_config)
    model.save_pretrained(tmp_path)
    written = load_file(tmp_path / "model.safetensors")
    weights = PolicyWeights(model, model.named_parameters())
    sent = dict(weights)
    buffers = dict(PolicyWeights(model, model.named_buffers()))
    assert sent.keys() == written.keys() - buffers.keys()
    for name, weight in sent.items():
        assert torch.equal(weight, written[name])
    declared = [(meta.name, meta.dtype, meta.shape) for meta in weights.metadata()]
    assert declared == [(name, weight.dtype, tuple(weight.shape)) for name, weight in sent.items()]
    assert weights.largest == max(weight.nbytes for weight in sent.values())
    assert [name for name, _ in weights.iter_full()] == list(sent)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("colocated", [False, True])
@pytest.mark.parametrize(("sync", "on_cpu"), [("nccl", False), ("gloo", True)])
def test_the_way_that_fits_where_policy_and_engines_are(
    monkeypatch, asynchronous, colocated, sync, on_cpu
):
    monkeypatch.setattr(way, "is_cpu_build", lambda: on_cpu)
    train = SimpleNamespace(colocate_all=colocated, async_enable=asynchronous)
    args = SimpleNamespace(vllm=SimpleNamespace(sync_backend=sync), train=train)
    shared = "swap_ipc" if colocated and not asynchronous else "swap_nccl"
    backend = "swap_bytes" if on_cpu else shared
    assert way.engine_arguments(args) == {
        "worker_extension_cls": f"{worker.__name__}.{worker.WorkerExtension.__qualname__}",
        "weight_transfer_config": {"backend": backend},
    }
    assert backend in WeightTransferEngineFactory._registry


class Engine:
    """An engine of two workers, which join in threads of their own."""

    def __init__(self, threads):
        self.threads = threads
        self.receivers = [receiver(rank) for rank in (0, 1)]
        self.transfer_weights = SimpleNamespace(remote=self.call)

    def call(self, method, info):
        assert method == "init_weight_transfer_engine"
        given = NCCLWeightTransferInitInfo(**info)
        return [self.threads.submit(each.init_transfer_engine, given) for each in self.receivers]


def receiver(rank):
    parallel = SimpleNamespace(rank=rank, world_size=2, data_parallel_index=0)
    config = SimpleNamespace(parallel_config=parallel, model_config=None)
    return nccl.NcclReceiver(None, config, torch.device("cpu"), None)


def wait(joining):
    for workers in joining:
        for worker_joins in workers:
            worker_joins.result()


def test_all_workers_of_all_engines_meet_the_policy_at_a_rank_of_their_own(monkeypatch):
    """By vLLM's store; NCCL itself is left out."""
    monkeypatch.setattr(envs, "VLLM_DISABLE_PYNCCL", True, raising=False)
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(nccl.ray, "get", wait)
    monkeypatch.setattr(nccl.ray.util, "get_node_ip_address", lambda: "127.0.0.1")
    with ThreadPoolExecutor() as threads:
        engines = [Engine(threads), Engine(threads)]
        client = nccl.NcclClient(engines, workers=2)
        sender = nccl.nccl_sender(client, source=object(), rank=0)
        assert nccl.nccl_sender(client, source=object(), rank=1).model_update_group is None
    receivers = [*engines[0].receivers, *engines[1].receivers]
    groups = [each.model_update_group for each in (sender, *receivers)]
    assert [group.rank for group in groups] == [0, 1, 2, 3, 4]
    assert all(group.world_size == 5 for group in groups)
    for each in (sender, *receivers):
        assert each.packed
        assert each.packed_buffer_size_bytes == PIECE_BYTES
        assert each.packed_num_buffers == nccl.BUFFERS

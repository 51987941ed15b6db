"""What the policy sends to vLLM, and by which way; tests/stack/test_families.py has vLLM."""

import logging
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from transformers import CONFIG_MAPPING, AutoModelForCausalLM
from vllm.distributed.weight_transfer import WeightTransferEngineFactory

from openrlhf_swap.integration.weights import source as weight_source
from openrlhf_swap.integration.weights import way as transport
from openrlhf_swap.integration.weights import worker as weights
from openrlhf_swap.integration.weights.engine_phases import EnginePhases
from openrlhf_swap.integration.weights.source import PIECE_BYTES, PolicyWeights
from openrlhf_swap.scoring.small_model import small_model

FAMILIES = ["qwen2", "qwen3_moe", "gpt_oss", "deepseek_v3", "qwen3_5_text", "nemotron_h"]


@pytest.mark.parametrize(
    ("message", "words", "said"),
    [
        ("Starting to load model %s...", ["m"], "[swap] vLLM: it loads the weights\n"),
        ("Loading model from scratch...", [], "[swap] vLLM: it loads the weights\n"),
        ("GPU KV cache size: %s tokens, ", ["1,024"], "[swap] vLLM: it warms up, and captures "),
        ("%s KV cache size: %s tokens, ", ["GPU", "9"], "[swap] vLLM: it warms up, and captures "),
        ("%d tokens", [3], ""),
    ],
)
def test_the_start_of_an_engine_is_told_on_the_console(message, words, said, capsys):
    """Whatever the model runner: 0.29 and 0.31 word and fill in the messages in several ways."""
    record = logging.LogRecord("vllm.core", logging.INFO, "f.py", 1, message, tuple(words), None)
    EnginePhases().emit(record)
    shown = capsys.readouterr().out
    assert shown.startswith(said) and bool(shown) == bool(said)


@pytest.mark.parametrize(
    ("family", "piece"), [("qwen3_moe", PIECE_BYTES), *((family, 1) for family in FAMILIES)]
)
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

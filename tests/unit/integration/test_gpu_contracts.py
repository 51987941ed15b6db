"""Contracts that a run on GPUs relies on, and that would break without a word."""

import inspect
import os
from importlib import import_module
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import torch

from openrlhf_swap.errors import CompatibilityError
from openrlhf_swap.flags.configuration import configure
from openrlhf_swap.integration import patches
from openrlhf_swap.integration.runtime import attention
from openrlhf_swap.integration.startup import launch


def test_the_stand_in_is_seen_by_openrlhf_only():
    for name in (
        "bert_padding.index_first_axis",
        "bert_padding.pad_input",
        "bert_padding.rearrange",
        "bert_padding.unpad_input",
        "utils.distributed.all_gather",
        "ops.triton.cross_entropy.cross_entropy_loss",
    ):
        module, _, function = name.rpartition(".")
        assert hasattr(import_module(f"flash_attn.{module}"), function)
    assert find_spec("flash_attn") is None
    # What vLLM and transformers look for.
    for name in ("flash_attn", "flash_attn.ops.triton.rotary"):
        with pytest.raises(ModuleNotFoundError):
            import_module(name)
    assert os.environ["VLLM_USE_FLASHINFER_SAMPLER"] == "0"


@pytest.mark.parametrize("rows", [1, 5, attention.ROWS + 3])
def test_the_cross_entropy_is_torchs(rows):
    torch.manual_seed(0)
    logits = torch.randn(rows, 11, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(11, (rows,))
    weights = torch.randn(rows, dtype=torch.float64)
    ours = attention.cross_entropy_loss(logits, labels)[0]
    (gradient,) = torch.autograd.grad((ours * weights).sum(), logits)
    theirs = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    (expected,) = torch.autograd.grad((theirs * weights).sum(), logits)
    torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_expandable_segments_are_refused(monkeypatch, name):
    monkeypatch.setenv(name, "max_split_size_mb:128,expandable_segments:False")
    patches.check_versions()
    monkeypatch.setenv(name, "max_split_size_mb:128, expandable_segments:True")
    with pytest.raises(CompatibilityError, match=f"^{name} is .*: unset expandable_segments$"):
        patches.check_versions()


@pytest.mark.parametrize(
    ("family", "settings", "expected"),
    [
        ("qwen3_moe", {"num_experts": 4}, {"moe_backend": "triton"}),
        ("deepseek_v3", {"n_routed_experts": 4}, {"moe_backend": "triton"}),
        ("qwen3_moe", {"num_experts": 4, "quantization_config": {"quant_method": "fp8"}}, {}),
        ("qwen2", {}, {}),
    ],
)
def test_engines_of_experts_take_the_kernels_that_read_weights_as_they_are_sent(
    family, settings, expected
):
    import vllm
    from transformers import AutoConfig
    from vllm.model_executor.layers.fused_moe.oracle.unquantized import (
        UnquantizedMoeBackend,
        map_unquantized_backend,
    )

    prepared = SimpleNamespace(
        configuration=configure(["--actor.model_name_or_path", "a model"], on_cpu=False),
        model_config=AutoConfig.for_model(family, **settings),
        engine_limits={"max_num_seqs": 20},
    )
    given = launch.vllm_arguments(prepared)
    assert given["cudagraph_capture_sizes"] == [1, 2, 4, 8, 16, 20]
    assert {name: value for name, value in given.items() if name == "moe_backend"} == expected
    assert given.keys() <= inspect.signature(vllm.AsyncEngineArgs).parameters.keys()
    if expected:
        assert map_unquantized_backend(given["moe_backend"]) is UnquantizedMoeBackend.TRITON


@pytest.mark.parametrize("sequences", [1, 3, 8, 16, 64, 100, 256, 512, 1024])
def test_every_batch_of_responses_has_a_graph_that_is_hardly_larger(sequences):
    sizes = launch.graph_sizes(sequences)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == min(sequences, 512)
    for responses in range(1, sizes[-1] + 1):
        filled = min(size for size in sizes if size >= responses)
        assert filled - responses < 16
        assert filled < 2 * responses


def test_graphs_are_half_as_many_as_vllm_captures_by_itself():
    """Counted by hand: 1, 2, 4, then every eighth up to 256 and every sixteenth up to 512."""
    assert launch.graph_sizes(64) == [1, 2, 4, 8, 16, 32, 48, 64]  # of 19, up to 128
    assert len(launch.graph_sizes(128)) == 12  # of 35, up to 256
    assert len(launch.graph_sizes(256)) == 20  # of 51, up to 512

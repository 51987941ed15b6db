"""What OpenRLHF's DeepSpeed strategy does differently here; tests/stack has its updates.

Tensors on "meta" stand for those on a GPU.
"""

from types import SimpleNamespace

import pytest
from support.paths import POLICY

from openrlhf_swap.integration.policy import strategy
from openrlhf_swap.integration.runtime import attention

MODEL = SimpleNamespace(model_name_or_path=str(POLICY))


def make_strategy(place="actor", stage=2, dynamic=False):
    ds = SimpleNamespace(
        attn_implementation=attention.FLASH, param_dtype="bf16", overlap_comm=True, zpg=1
    )
    train = SimpleNamespace(dynamic_batch_enable=dynamic)
    args = SimpleNamespace(ds=ds, train=train, **{place: MODEL})
    return strategy.SwapStrategy(zero_stage=stage, args=args)


@pytest.mark.parametrize(("kind", "is_torchs"), [("AdamW", True), ("Muon", False)])
def test_adam_is_torchs_and_other_optimizers_stay(kind, is_torchs):
    optimizer = {"type": kind, "params": {"lr": 1e-6}}
    ours = make_strategy()
    taken = "flash_attention_2" if attention.is_installed() else "swap_rows"
    assert ours.args.ds.attn_implementation == taken
    config = ours.get_ds_train_config(optimizer)
    added = {"torch_adam": True, "fused": True} if is_torchs else {}
    assert config["optimizer"] == {"type": kind, "params": {"lr": 1e-6, **added}}
    assert config.get("zero_force_ds_cpu_optimizer", True) is not is_torchs


@pytest.mark.parametrize(("stage", "overlaps"), [(1, False), (2, True), (3, True)])
def test_an_update_of_dynamic_batches_ends_where_openrlhf_steps(stage, overlaps):
    """DeepSpeed refuses the overlap for stage 1 only where the caller ends updates."""
    config = make_strategy(stage=stage, dynamic=True).get_ds_train_config()
    assert config["managed_gradient_accumulation"] is False
    assert config["zero_optimization"].get("overlap_comm", False) is overlaps
    managed = make_strategy(stage=stage).get_ds_train_config()
    assert managed["managed_gradient_accumulation"] is True
    assert managed["zero_optimization"]["overlap_comm"] is True

"""What OpenRLHF's DeepSpeed strategy does differently here; tests/stack has its updates.

Tensors on "meta" stand for those on a GPU.
"""

import copy
from types import SimpleNamespace

import pytest
import torch
from deepspeed.runtime.zero.offload_states import offload_adam_states
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


def make_optimizer(device, offload_states):
    """A stage 3 optimizer as far as it sleeps: torch's Adam, and what DeepSpeed does with that."""
    adam = torch.optim.AdamW([torch.nn.Parameter(torch.ones(8, device=device))])
    optimizer = SimpleNamespace(optimizer=adam, offload_states=lambda: offload_states(adam))
    strategy._let_torchs_adam_sleep(optimizer)
    return optimizer


def test_moments_of_a_resumed_optimizer_get_new_places_in_main_memory():
    """torch loads the old ones onto the GPU, and DeepSpeed would move the moments there."""
    slept = make_optimizer("cpu", lambda adam: offload_adam_states(adam, "cpu"))
    (weight,) = slept.optimizer.param_groups[0]["params"]
    weight.grad = torch.ones(8)
    slept.optimizer.step()
    slept.offload_states()
    places = ("exp_avg_offload_buffer", "exp_avg_sq_offload_buffer")
    state = slept.optimizer.state[weight]
    kept = [state[name].data_ptr() for name in places]
    slept.offload_states()
    assert [state[name].data_ptr() for name in places] == kept  # places that stay are used again

    found = []
    resumed = make_optimizer(
        "meta", lambda adam: found.extend(dict(state) for state in adam.state.values())
    )
    resumed.optimizer.load_state_dict(copy.deepcopy(slept.optimizer.state_dict()))
    (state,) = resumed.optimizer.state.values()
    assert all(state[name].is_meta for name in places)
    resumed.offload_states()
    assert [set(state) for state in found] == [{"step", "exp_avg", "exp_avg_sq"}]

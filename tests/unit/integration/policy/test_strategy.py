"""What OpenRLHF's DeepSpeed strategy does differently here. Tensors on "meta" stand for those on a
GPU.
"""

import copy
from types import SimpleNamespace

import torch
from deepspeed.runtime.zero.offload_states import offload_adam_states

from openrlhf_swap.integration.policy import strategy


def make_optimizer(device, offload_states):
    """A stage 3 optimizer as far as it sleeps: torch's Adam, and what DeepSpeed does with that."""
    adam = torch.optim.AdamW([torch.nn.Parameter(torch.ones(8, device=device))])
    optimizer = SimpleNamespace(optimizer=adam, offload_states=lambda: offload_states(adam))
    strategy._let_torchs_adam_sleep(optimizer)
    return optimizer


def test_moments_of_a_resumed_optimizer_get_new_places_in_main_memory():
    """torch loads the old ones onto the GPU, and DeepSpeed would move the moments there: they would
    never leave.
    """
    slept = make_optimizer("cpu", lambda adam: offload_adam_states(adam, "cpu"))
    (weight,) = slept.optimizer.param_groups[0]["params"]
    weight.grad = torch.ones(8)
    slept.optimizer.step()
    slept.offload_states()
    places = {"exp_avg_offload_buffer", "exp_avg_sq_offload_buffer"}
    state = slept.optimizer.state[weight]
    kept = {name: state[name].data_ptr() for name in places}
    slept.offload_states()
    assert {
        name: state[name].data_ptr() for name in places
    } == kept  # those in main memory are used again

    found = []
    resumed = make_optimizer(
        "meta", lambda adam: found.extend(dict(state) for state in adam.state.values())
    )
    resumed.optimizer.load_state_dict(copy.deepcopy(slept.optimizer.state_dict()))
    (state,) = resumed.optimizer.state.values()
    assert all(state[name].is_meta for name in places)
    resumed.offload_states()
    assert [set(state) for state in found] == [{"step", "exp_avg", "exp_avg_sq"}]

"""How many GPUs a run takes."""

import pytest

from openrlhf_swap.config import RunConfig, SwapConfig
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.flags.placement import crowded, engine_gpus, gpu_actors, policy_ranks
from openrlhf_swap.flags.rules import checked_arguments
from openrlhf_swap.flags.stock import parse_arguments

NODES = ["--actor.num_nodes", "3", "--actor.num_gpus_per_node", "4"]
ENGINES = ["--vllm.num_engines", "5", "--vllm.tensor_parallel_size", "2"]
REFERENCE = ["--ref.num_nodes", "3", "--ref.num_gpus_per_node", "4"]


@pytest.mark.parametrize(("kl", "total"), [("0", 22), ("0.1", 34)])
def test_gpus_of_each_part(kl, total):
    args = parse_arguments([*NODES, *ENGINES, *REFERENCE, "--algo.kl.init_coef", kl])
    assert (policy_ranks(args), engine_gpus(args), gpu_actors(args)) == (12, 10, total)


def test_a_reference_on_the_policys_gpus_takes_none_of_its_own(monkeypatch):
    """It is still a process of its own."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    shared = [*NODES, *ENGINES, *REFERENCE, "--algo.kl.init_coef", "0.1", "--train.colocate_actor_ref"]
    args = parse_arguments(shared)
    assert gpu_actors(args) == 22
    assert crowded(args, cores=17).startswith("34 processes ")


def refusal(*flags):
    """Why a run with packed rows is refused; None if it is not."""
    given = ["--actor.model_name_or_path", "m", "--data.prompt_dataset", "d", "--data.label_key", "a"]
    packed = ["--train.dynamic_batch_enable", "--vllm.num_engines", "1", *flags]
    try:
        checked_arguments([*given, *packed], SwapConfig(), RunConfig(), on_cpu=False)
    except ConfigError as error:
        return str(error)
    return None


def test_packed_responses_are_shared_equally_too():
    """OpenRLHF trains each rank on `train.batch_size // ranks` of them and drops the rest."""
    assert refusal("--actor.num_gpus_per_node", "8") is None
    assert refusal("--actor.num_gpus_per_node", "8", "--train.micro_batch_size", "3") is None  # it packs by tokens
    assert refusal("--actor.num_nodes", "3", "--actor.num_gpus_per_node", "8") == (
        "--train.batch_size is 2048; 24 actors cannot share the responses of an update equally, and OpenRLHF would "
        "leave the rest of them out: use a number of actors that divides it"
    )

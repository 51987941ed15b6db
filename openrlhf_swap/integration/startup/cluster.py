"""Wait until all nodes of a Ray cluster are there, with their GPUs; and, for a training, join it or
start Ray.

    python -m openrlhf_swap.integration.startup.cluster --address http://127.0.0.1:8265 --nodes 2
    --gpus 8

scripts/train_swap_multinode.sh runs it before it submits: a training that asks for more than there
is would wait silently.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

import ray

from openrlhf_swap.command import Parser, run_command
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.flags.configuration import Configuration
from openrlhf_swap.flags.placement import engine_gpus, gpu_actors, policy_ranks
from openrlhf_swap.integration.patches import CPU_COMMAND, EVERY_CPU, VARIABLES, install
from openrlhf_swap.integration.runtime.cpu import THREADS
from openrlhf_swap.runs.process import ctrl_c_after

POLL_SECONDS = 2.0
# What OpenRLHF gives to its processes.
OPENRLHFS_VARIABLES = {
    "TOKENIZERS_PARALLELISM": "true",
    "NCCL_DEBUG": "WARN",
    "RAY_ENABLE_ZERO_COPY_TORCH_TENSORS": "1",
}
OBJECT_STORE_BYTES = (
    256 * 2**20
)  # enough for the embedded policy's rollouts; Ray would take 30% of memory


@contextmanager
def starting_ray(configuration: Configuration) -> Iterator[Callable[[], None]]:
    """Start Ray while the block imports, and shut it down at the end.

    Yields what waits for Ray. Until then a Ctrl-C is held back: in the middle of an import it may
    get lost.
    """
    args, on_cpu = configuration.args, configuration.on_cpu
    if on_cpu:
        install(CPU_COMMAND)
        os.environ.setdefault(THREADS, str(threads(args, len(os.sched_getaffinity(0)))))
    with ThreadPoolExecutor(1) as pool, ExitStack() as held:
        held.enter_context(ctrl_c_after())
        started = pool.submit(start_ray, gpu_actors(args), on_cpu)

        def wait() -> None:
            started.result()
            held.close()

        try:
            yield wait
        finally:
            pool.submit(ray.shutdown).result()


def threads(args: SimpleNamespace, cores: int) -> int:
    """Threads per process of a CPU run; engines and policy take turns with the cores, unless it is
    asynchronous.
    """
    actors, engines = policy_ranks(args), engine_gpus(args)
    return max(1, cores // (actors + engines if args.train.async_enable else max(actors, engines)))


def start_ray(places: int, on_cpu: bool) -> None:
    """Join the cluster that RAY_ADDRESS names or start Ray on this machine alone, without its
    dashboard.

    On a CPU a Ray of our own has as many slots as `places` for processes that ask for a GPU.
    """
    options: dict[str, Any] = {}
    variables = {name: os.environ.get(name, value) for name, value in OPENRLHFS_VARIABLES.items()}
    if joins := "RAY_ADDRESS" in os.environ:
        if on_cpu:
            variables = {
                name: os.environ[name]
                for name in (*VARIABLES[EVERY_CPU], *VARIABLES[CPU_COMMAND], THREADS)
            }
    else:
        options = {"address": "local", "include_dashboard": False}
        if on_cpu:
            os.environ.pop(
                "CUDA_VISIBLE_DEVICES", None
            )  # Ray counts these slots as GPUs, and would miss them there
            # One CPU more for the trainer, which asks for no GPU.
            options |= {
                "num_cpus": places + 1,
                "num_gpus": places,
                "object_store_memory": OBJECT_STORE_BYTES,
            }
    if joins or not on_cpu:
        options["runtime_env"] = {"env_vars": variables}
    ray.init(**options)


def main(argv: list[str]) -> None:
    """Read the command line and wait; raises ConfigError when the nodes are not there in time."""
    parser = Parser("openrlhf_swap.integration.startup.cluster", __doc__)
    parser.add_argument("--address", required=True, help="of the cluster's dashboard")
    parser.add_argument("--nodes", type=int, required=True, help="nodes of the run")
    parser.add_argument("--gpus", type=int, required=True, help="GPUs of each node")
    parser.add_argument(
        "--wait", type=int, default=600, help="seconds to wait (default: %(default)s)"
    )
    args = parser.parse_args(argv)
    from ray.util.state import list_nodes
    from ray.util.state.exception import RayStateApiException

    deadline, shown = time.monotonic() + args.wait, ""
    while True:
        try:
            alive = [node for node in list_nodes(address=args.address) if node.state == "ALIVE"]
        # Another server's answer raises the last two.
        except (ray.exceptions.RayError, RayStateApiException, KeyError, TypeError) as error:
            ready, state = -1, f"no Ray answers at {args.address} ({type(error).__name__})"
        else:
            ready = sum(node.resources_total.get("GPU", 0) >= args.gpus for node in alive)
            state = f"{ready} of {args.nodes} nodes with {args.gpus} GPUs are there"
        if ready >= args.nodes:
            return
        if time.monotonic() > deadline:
            raise ConfigError(f"{state} after {args.wait} s; see NUM_NODES, NUM_GPUS and WAIT")
        if state != shown:
            print(f"[ray] {state}", flush=True)
        shown = state
        time.sleep(POLL_SECONDS)


if __name__ == "__main__":
    sys.exit(run_command(main))

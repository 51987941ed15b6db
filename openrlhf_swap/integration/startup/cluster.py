"""Wait until all nodes of a Ray cluster are there, with their GPUs.

    python -m openrlhf_swap.integration.startup.cluster --address http://127.0.0.1:8265 --nodes 2
    --gpus 8

scripts/train_swap_multinode.sh runs it before it submits: a training that asks for more than there
is would wait silently.
"""

import sys
import time

import ray

from openrlhf_swap.command import Parser, run_command
from openrlhf_swap.errors import ConfigError

POLL_SECONDS = 2.0


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
    deadline = time.monotonic() + args.wait
    shown = ""
    while True:
        try:
            ready = _ready_nodes(args.address, args.gpus)
            if ready >= args.nodes:
                return
            state = f"{ready} of {args.nodes} nodes with {args.gpus} GPUs are there"
        except ConnectionError as error:
            state = str(error)
        if time.monotonic() > deadline:
            raise ConfigError(f"{state} after {args.wait} s; see NUM_NODES, NUM_GPUS and WAIT")
        if state != shown:
            print(f"[ray] {state}", flush=True)
        shown = state
        time.sleep(POLL_SECONDS)


def _ready_nodes(address: str, gpus: int) -> int:
    """How many nodes have so many GPUs; raises ConnectionError where no Ray answers."""
    from ray.util.state import list_nodes
    from ray.util.state.exception import RayStateApiException

    # Another server's answer raises the last two.
    failures = (ray.exceptions.RayError, RayStateApiException, KeyError, TypeError)
    try:
        nodes = list_nodes(address=address)
    except failures as error:
        kind = type(error).__name__
        raise ConnectionError(f"no Ray answers at {address} ({kind})") from error
    alive = [node for node in nodes if node.state == "ALIVE"]
    return sum(node.resources_total.get("GPU", 0) >= gpus for node in alive)


if __name__ == "__main__":
    sys.exit(run_command(main))

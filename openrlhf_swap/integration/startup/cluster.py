"""Wait until all nodes of a Ray cluster are there, with their GPUs.

    python -m openrlhf_swap.integration.startup.cluster --address http://127.0.0.1:8265 --nodes 2 --gpus 8

scripts/train_swap_multinode.sh runs it before it submits: a training that asks for more than there is would
wait silently.
"""

import sys
import time

from openrlhf_swap.command import Parser, run_command
from openrlhf_swap.errors import ConfigError

POLL_SECONDS = 2.0


def main(argv: list[str]) -> None:
    """Read the command line and wait; raises ConfigError when the nodes are not there in time."""
    parser = Parser("openrlhf_swap.integration.startup.cluster", __doc__)
    parser.add_argument("--address", required=True, help="of the cluster's dashboard")
    parser.add_argument("--nodes", type=int, required=True, help="nodes of the run")
    parser.add_argument("--gpus", type=int, required=True, help="GPUs of each node")
    parser.add_argument("--wait", type=int, default=600, help="seconds to wait (default: %(default)s)")
    args = parser.parse_args(argv)
    deadline, shown = time.monotonic() + args.wait, ""
    while True:
        ready, state = count_nodes(args.address, args.nodes, args.gpus)
        if ready >= args.nodes:
            return
        if time.monotonic() > deadline:
            raise ConfigError(f"{state} after {args.wait} s; see NUM_NODES, NUM_GPUS and WAIT")
        if state != shown:
            print(f"[ray] {state}", flush=True)
        shown = state
        time.sleep(POLL_SECONDS)


def count_nodes(address: str, nodes: int, gpus: int) -> tuple[int, str]:
    """Nodes that are alive and have the GPUs, -1 while Ray does not answer; and the same in words."""
    from ray.exceptions import RayError
    from ray.util.state import list_nodes
    from ray.util.state.exception import RayStateApiException

    try:
        alive = [node for node in list_nodes(address=address) if node.state == "ALIVE"]
    except (RayError, RayStateApiException, KeyError, TypeError) as error:  # the last two: another server's answer
        return -1, f"no Ray answers at {address} ({type(error).__name__})"
    ready = sum(node.resources_total.get("GPU", 0) >= gpus for node in alive)
    return ready, f"{ready} of {nodes} nodes with {gpus} GPUs are there"


if __name__ == "__main__":
    sys.exit(run_command(main))

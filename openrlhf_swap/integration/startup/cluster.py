r"""Wait until all nodes of a Ray cluster are there, with their GPUs.

    python -m openrlhf_swap.integration.startup.cluster --address http://127.0.0.1:8265 --pid-file FILE \
        --nodes 2 --gpus 8

scripts/train_swap_multinode.sh runs it before it submits: a training that asks for more than there is would
wait silently.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from openrlhf_swap.command import Parser, run_command
from openrlhf_swap.errors import ConfigError, LostActorError

POLL_SECONDS = 2.0


def main(argv: list[str]) -> None:
    """Read the command line and wait.

    Raises:
        ConfigError: for a bad command line, or when the nodes are not there in time.
        LostActorError: if the Ray of this node has ended.
    """
    parser = Parser("openrlhf_swap.integration.startup.cluster", __doc__)
    parser.add_argument("--address", required=True, help="of the cluster's dashboard")
    parser.add_argument("--pid-file", type=Path, required=True, help="file with the process that is this node's Ray")
    parser.add_argument("--nodes", type=int, required=True, help="nodes of the run")
    parser.add_argument("--gpus", type=int, required=True, help="GPUs of each node")
    parser.add_argument("--wait", type=int, default=600, help="seconds to wait (default: %(default)s)")
    args = parser.parse_args(argv)
    wait_for_nodes(args.address, args.pid_file, args.nodes, args.gpus, args.wait)


def wait_for_nodes(address: str, pid_file: Path, nodes: int, gpus: int, wait: int) -> None:
    """Return when `nodes` nodes with `gpus` GPUs each are there; prints every change.

    Raises:
        ConfigError: when they are not there after `wait` seconds.
        LostActorError: if the process that `pid_file` names has ended.
    """
    deadline = time.monotonic() + wait
    seen = ""
    while True:
        if process := ended_process(pid_file):
            raise LostActorError(f"the Ray of this node, process {process}, has ended; run head again")
        there, state = count_nodes(address, nodes, gpus)
        if there >= nodes:
            return
        if time.monotonic() > deadline:
            raise ConfigError(f"{state} after {wait} s; see NUM_NODES, NUM_GPUS and WAIT")
        if state != seen:
            print(f"[ray] {state}", flush=True)
        seen = state
        time.sleep(POLL_SECONDS)


def ended_process(pid_file: Path) -> str | None:
    """The process id in a file if that process has ended; None if it runs or there is no file."""
    if not pid_file.exists():
        return None
    process = pid_file.read_text().strip()
    try:
        runs = Path(f"/proc/{process}/cmdline").read_bytes()  # of a zombie it is empty
    except FileNotFoundError:
        runs = b""
    return None if runs else process


def count_nodes(address: str, nodes: int, gpus: int) -> tuple[int, str]:
    """Nodes that are alive and have the GPUs, -1 while Ray does not answer; and the same in words."""
    from ray.exceptions import RayError
    from ray.util.state import list_nodes
    from ray.util.state.exception import RayStateApiException

    try:
        alive = [node for node in list_nodes(address=address) if node.state == "ALIVE"]
    except (RayError, RayStateApiException, KeyError, TypeError) as error:  # the last two: another server's answer
        return -1, f"no Ray answers at {address} ({type(error).__name__})"
    there = sum(node.resources_total.get("GPU", 0) >= gpus for node in alive)
    return there, f"{there} of {nodes} nodes with {gpus} GPUs are there"


if __name__ == "__main__":
    sys.exit(run_command(main))

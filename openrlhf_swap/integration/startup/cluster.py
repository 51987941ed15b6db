r"""Wait until all nodes of a Ray cluster are there, with their GPUs; and notice when a Ray of our own has ended.

    python -m openrlhf_swap.integration.startup.cluster --address http://127.0.0.1:8265 --pid-file FILE \
        --nodes 2 --gpus 8

scripts/train_swap_multinode.sh runs it before it submits: a training that asks for more than there is would
wait silently.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from openrlhf_swap.command import Parser, run_command
from openrlhf_swap.errors import ConfigError, RunError

POLL_SECONDS = 2.0
GCS, GCS_SECONDS = "gcs_server", 0.5  # Ray's process that keeps a cluster's state, and how often we look at it


def main(argv: list[str]) -> None:
    """Read the command line and wait.

    Raises:
        ConfigError: for a bad command line, or when the nodes are not there in time.
        RunError: if the Ray of this node has ended.
    """
    parser = Parser("openrlhf_swap.integration.startup.cluster", __doc__)
    parser.add_argument("--address", required=True, help="of the cluster's dashboard")
    parser.add_argument("--pid-file", type=Path, required=True, help="file with the process that is this node's Ray")
    parser.add_argument("--nodes", type=int, required=True, help="nodes of the run")
    parser.add_argument("--gpus", type=int, required=True, help="GPUs of each node")
    parser.add_argument("--wait", type=int, default=600, help="seconds to wait (default: %(default)s)")
    args = parser.parse_args(argv)
    deadline, shown = time.monotonic() + args.wait, ""
    while True:
        if args.pid_file.exists() and not is_alive(process := int(args.pid_file.read_text())):
            raise RunError(f"the Ray of this node, process {process}, has ended; run head again")
        ready, state = count_nodes(args.address, args.nodes, args.gpus)
        if ready >= args.nodes:
            return
        if time.monotonic() > deadline:
            raise ConfigError(f"{state} after {args.wait} s; see NUM_NODES, NUM_GPUS and WAIT")
        if state != shown:
            print(f"[ray] {state}", flush=True)
        shown = state
        time.sleep(POLL_SECONDS)


def is_alive(process: int) -> bool:
    """Whether a process runs; a zombie does not."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    return False


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


@contextmanager
def watch_gcs(on_death: Callable[[int], object]) -> Iterator[None]:
    """Within the block, call `on_death` with the process id when a GCS that this process started ends.

    Ray then ends the driver itself, from C++: no exception reaches Python, and a signal's handler is not run while
    `ray.get` waits. So a thread looks at the process, and has RAY_gcs_rpc_server_reconnect_timeout_s to say why the
    run ends. Leave the block before `ray.shutdown`. The GCS of a cluster that was joined is elsewhere, and is not
    watched.
    """
    done = threading.Event()

    def watch() -> None:
        gcs: int | None = None
        while not done.wait(GCS_SECONDS):
            if gcs is None:
                with suppress(psutil.Error):  # another child that has just ended
                    gcs = next((child.pid for child in psutil.Process().children() if child.name() == GCS), None)
            elif not is_alive(gcs):
                on_death(gcs)
                return

    threading.Thread(target=watch, daemon=True, name="gcs watch").start()
    try:
        yield
    finally:
        done.set()


if __name__ == "__main__":
    sys.exit(run_command(main))

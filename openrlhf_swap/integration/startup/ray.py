"""Ray for a training: joined where RAY_ADDRESS names a cluster, else started on this machine."""

import atexit
import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

import ray
from ray.util.placement_group import placement_group, remove_placement_group

from openrlhf_swap.errors import ConfigError, RunError, first_line
from openrlhf_swap.flags.configuration import Configuration
from openrlhf_swap.flags.placement import engine_gpus, gpu_actors, gpus_of_run, policy_ranks
from openrlhf_swap.integration.patches import (
    CPU_COMMAND,
    EVERY_CPU,
    TRAINS,
    TRAINS_ALONE,
    VARIABLES,
    install,
)
from openrlhf_swap.integration.runtime.cpu import THREADS
from openrlhf_swap.integration.startup.head import Head, connect
from openrlhf_swap.process.console import say
from openrlhf_swap.process.ctrl_c import ctrl_c_after
from openrlhf_swap.runs import checkpoints
from openrlhf_swap.sizing.host import OBJECT_STORE

# OpenRLHF gives these to its processes.
OPENRLHFS_VARIABLES = {
    "TOKENIZERS_PARALLELISM": "true",
    "NCCL_DEBUG": "WARN",
    "RAY_ENABLE_ZERO_COPY_TORCH_TENSORS": "1",
}
PLACE = {"GPU": 1, "CPU": 1}  # what OpenRLHF reserves for each GPU of a run
NODES_SECONDS = 600  # within which the nodes of a cluster have to be there
OWN_SECONDS = 120  # within which a Ray on this machine has to have what it is asked for
POLL_SECONDS = 2.0
STARTS = 3  # tries to start a Ray on this machine
START_SECONDS = 30  # that Ray gives its processes to find each other
# For how long a head may be silent. One on this machine is gone then; a cluster may start it again.
SILENT_SECONDS = 0.0
CLUSTER_SILENT_SECONDS = 30.0
LOST_STATUS = 2  # of a command that ends with an error
GPU_FLAGS = "--actor.num_nodes, --actor.num_gpus_per_node, --vllm.num_engines"


@contextmanager
def starting_ray(configuration: Configuration) -> Iterator[Callable[[], None]]:
    """Start Ray while the block imports, and shut it down at the end.

    Yields a function that waits for Ray. Until then a Ctrl-C is held back: in the middle of an
    import it may get lost. Raises RunError when Ray's head ends during the block.
    """
    # Ray inherits the environment, so variables are set before its thread starts.
    args = configuration.args
    install(TRAINS)
    if "RAY_ADDRESS" in os.environ:
        check_address(os.environ["RAY_ADDRESS"])
    else:
        install(TRAINS_ALONE)
    if configuration.on_cpu:
        install(CPU_COMMAND)
        os.environ.setdefault(THREADS, str(threads(args, len(os.sched_getaffinity(0)))))
    with ThreadPoolExecutor(1) as pool, ExitStack() as held:
        held.enter_context(ctrl_c_after())
        started = pool.submit(start_ray, gpu_actors(args), configuration.on_cpu)

        head = Head()

        def wait() -> None:
            started.result()
            held.close()
            watch(head)
            wait_for_places(gpus_of_run(args), PLACE, GPU_FLAGS)

        try:
            yield wait
        except KeyboardInterrupt:
            if head.is_lost:
                raise RunError(describe_loss(head, args.ckpt)) from None
            raise
        finally:
            head.close()
            if head.answers():
                pool.submit(ray.shutdown).result()
            else:
                exit_without_shutdown()


def exit_without_shutdown() -> None:
    """Let this process skip Ray's shutdown when it exits, which would wait for a lost head.

    Python runs what was registered for the exit from the last to the first. Ray's shutdown was
    registered when Ray was imported, and the process is gone before its turn.
    """
    atexit.register(os._exit, LOST_STATUS)


def watch(head: Head) -> None:
    """Watch the head of a Ray that was started or joined; a ray:// client tells of it itself."""
    address = os.environ.get("RAY_ADDRESS", "")
    if not address.startswith("ray://"):
        head.watch(CLUSTER_SILENT_SECONDS if address else SILENT_SECONDS)


def describe_loss(head: Head, ckpt: SimpleNamespace) -> str:
    """That Ray's head has ended, and how to resume a run with these `--ckpt.*` settings."""
    return (
        f"Ray's head at {head.address} (gcs_server) has ended, and the run with it; a process that "
        "dies silently was usually killed for lack of memory (see the kernel's log): "
        f"{checkpoints.how_to_resume(ckpt)}"
    )


def check_address(address: str) -> None:
    """Raise ConfigError for a HOST:PORT where nothing answers: Ray would try for minutes.

    Ray itself finds what other addresses, such as auto, mean.
    """
    named = address.removeprefix("ray://")
    _, colon, port = named.rpartition(":")
    if not colon or not port.isdecimal():
        return
    try:
        connect(named)
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"RAY_ADDRESS is {address}, where no Ray answers ({first_line(error)}); start the "
            "cluster there, or unset RAY_ADDRESS to train on this machine alone"
        ) from error


def wait_for_places(count: int, place: Mapping[str, float], flags: str) -> None:
    """Wait until Ray has so many free places at a time, each with these resources.

    Whoever reserves them later would wait without a word and without an end. Raises ConfigError,
    with the `flags` that ask for fewer, if they are not there within two minutes, or ten minutes on
    a cluster.
    """
    seconds = NODES_SECONDS if "RAY_ADDRESS" in os.environ else OWN_SECONDS
    deadline = time.monotonic() + seconds
    asked = " and ".join(f"{amount:g} {name}" for name, amount in place.items())
    shown = ""
    places = placement_group([dict(place)] * count)
    try:
        while not places.wait(POLL_SECONDS):
            free = ray.available_resources()
            present = " and ".join(f"{free.get(name, 0):g} {name}" for name in place)
            state = f"{count} places with {asked} each are wanted, and Ray has {present} free"
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"{state} after {seconds} s; start more nodes, end what holds the others, or "
                    f"ask for fewer ({flags})"
                )
            if state != shown:
                say(state)
            shown = state
    finally:
        remove_placement_group(places)


def threads(args: SimpleNamespace, cores: int) -> int:
    """Threads of each process of a CPU run.

    Engines and policy take turns with the cores, unless the run is asynchronous.
    """
    actors = policy_ranks(args)
    engines = engine_gpus(args)
    at_work = actors + engines if args.train.async_enable else max(actors, engines)
    return max(1, cores // at_work)


def start_ray(places: int, on_cpu: bool) -> None:
    """Join the cluster that RAY_ADDRESS names, or start Ray without its dashboard.

    A Ray of our own has a CPU for each of `places`, which are the run's processes with a GPU, and
    one for tasks. On a CPU it also has as many slots for GPUs as `places`.
    """
    if "RAY_ADDRESS" in os.environ:
        ray.init(runtime_env={"env_vars": _variables(on_cpu)})
        return
    options: dict[str, Any] = {"address": "local", "include_dashboard": False}
    # With itself Ray starts a worker for each CPU. Those of all cores, of which the run uses few,
    # would take time from the imports.
    options["num_cpus"] = places + 1
    if on_cpu:
        # Ray counts these slots as GPUs, and would miss them there.
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        options["num_gpus"] = places
        options["object_store_memory"] = OBJECT_STORE
    else:
        # Ray's processes inherit them. With a `runtime_env`, an actor would have to wait for a new
        # process: those that Ray starts with itself have none.
        os.environ |= _variables(on_cpu)
    start_patiently(options)


def start_patiently(options: Mapping[str, Any]) -> None:
    """Start Ray, and start it again where a busy machine takes longer than it allows.

    Raises RunError when that has failed `STARTS` times.
    """
    for _ in range(STARTS):
        try:
            ray.init(**options)
            return
        except Exception as error:  # of which Ray makes no type of its own
            if "timed out during startup" not in str(error):
                raise
        say(f"Ray has not started within {START_SECONDS} s: the machine is busy")
    raise RunError(
        f"Ray has not started in {STARTS} tries of {START_SECONDS} s; end other programs on this "
        "machine, and start again"
    )


def _variables(on_cpu: bool) -> dict[str, str]:
    """The environment of the run's processes on other nodes, or under OpenRLHF's own settings."""
    if on_cpu:
        names = [*VARIABLES[EVERY_CPU], *VARIABLES[CPU_COMMAND], THREADS]
        return {name: os.environ[name] for name in names}
    return {name: os.environ.get(name, value) for name, value in OPENRLHFS_VARIABLES.items()}

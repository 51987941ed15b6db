"""What is refused before Ray starts, from plain facts; and where the facts come from."""

import copy
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from support.paths import POLICY
from support.sizing import R1

from openrlhf_swap.config import RunConfig, SwapConfig
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.flags.configuration import configure
from openrlhf_swap.integration.startup import gpus, launch

GIB = 2**30
H100 = gpus.Gpu("NVIDIA H100", 80 * GIB, 79 * GIB, (9, 0))
NODE = gpus.Machine("580.65.06", (13, 0), (H100,) * 8, 16 * GIB, 1500 * GIB)
NEEDS = gpus.Needs(8, 0.7, "13.0", {"weights of sleeping vLLM": 214 * GIB, "sleeping optimizer": 112 * GIB}, True)


def with_gpu(number, **changes):
    listed = list(NODE.gpus)
    listed[number] = replace(H100, **changes)
    return replace(NODE, gpus=tuple(listed))


def test_a_machine_that_has_everything_is_left_alone():
    assert list(gpus.find_problems(NODE, NEEDS)) == []


@pytest.mark.parametrize(
    ("machine", "message"),
    [
        (
            replace(NODE, driver="570.86.15", cuda=(12, 8)),
            "the NVIDIA driver 570.86.15 runs CUDA 12.8 at most, but torch is built for CUDA 13.0; update it to 580 "
            "or newer",
        ),
        (
            with_gpu(2, name="Tesla V100", capability=(7, 0)),
            "GPU 2 (Tesla V100) has compute capability 7.0 and no bfloat16, in which the run computes: use GPUs of "
            "8.0 or newer (Ampere), see CUDA_VISIBLE_DEVICES",
        ),
        (
            with_gpu(0, mig=True),
            "GPU 0 (NVIDIA H100) is divided by MIG, whose instances NCCL cannot connect; switch it off (nvidia-smi "
            "-mig 0), or use one instance",
        ),
        (
            with_gpu(3, compute_mode="EXCLUSIVE_PROCESS"),
            "GPU 3 (NVIDIA H100) is in compute mode EXCLUSIVE_PROCESS, but several processes of the run share it: "
            "change the mode (nvidia-smi -c DEFAULT, as root)",
        ),
        (
            with_gpu(7, free=55 * GIB),
            "GPU 7 (NVIDIA H100) has 55.0 of 80.0 GiB free, but vLLM takes 70% (--vllm.gpu_memory_utilization): end "
            "the processes that nvidia-smi shows on it, or choose others with CUDA_VISIBLE_DEVICES",
        ),
        (
            replace(NODE, shared_memory=64 * 2**20),
            "/dev/shm has 0.1 GiB free, but Ray and NCCL need at least 1.0 for 8 GPUs: enlarge it (docker run "
            "--shm-size=16g)",
        ),
        (
            replace(NODE, memory=325 * GIB),
            "325.0 GiB of main memory are available, but the run keeps 326.0 there (weights of sleeping vLLM 214.0, "
            "sleeping optimizer 112.0); use a larger --vllm.tensor_parallel_size (if the GPUs have the capacity), or "
            "nodes with more",
        ),
    ],
)
def test_what_cannot_work_is_one_line(machine, message):
    assert list(gpus.find_problems(machine, NEEDS)) == [message]


def test_gpus_that_the_run_does_not_take_may_be_anything():
    others = (replace(H100, free=0, capability=(7, 0), mig=True), replace(H100, total=1))
    machine = replace(NODE, gpus=(H100, *others), shared_memory=0)
    assert list(gpus.find_problems(machine, replace(NEEDS, gpus=1))) == []


def test_a_gpu_that_no_two_processes_share_may_be_exclusive_and_one_instance_of_mig_is_enough():
    exclusive = with_gpu(3, compute_mode="EXCLUSIVE_PROCESS")
    assert list(gpus.find_problems(exclusive, replace(NEEDS, shared=False))) == []
    assert list(gpus.find_problems(with_gpu(0, mig=True), replace(NEEDS, gpus=1))) == []


def test_the_memory_that_a_run_pins_is_the_plans(monkeypatch, arguments):
    args = copy.deepcopy(arguments)
    args.actor.model_name_or_path, args.actor.num_gpus_per_node, args.vllm.num_engines = R1 + "1.5B", 8, 8
    args.train.colocate_all = args.vllm.enable_sleep = args.ds.enable_sleep = True
    args.data.max_len = 14_000
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    run = SimpleNamespace(args=args, method=SwapConfig(), run=RunConfig())
    needs = gpus.read_needs(run)
    # By hand in tests/unit/sizing/test_host_memory.py.
    expected = {"weights of sleeping vLLM": 8 * 4192 * 2**20, "sleeping optimizer": 24 * GIB}
    assert needs == gpus.Needs(8, 0.2, "13.0", expected, shared=True)
    args.train.colocate_all = False
    apart = gpus.read_needs(run)
    assert (apart.gpus, apart.shared) == (16, False)
    args.train.colocate_actor_ref, args.algo.kl.init_coef = True, 0.01
    assert gpus.read_needs(run).shared
    args.actor.model_name_or_path = "no/such-model"
    assert gpus.read_needs(run).pinned == {}


class NVMLError(Exception):
    pass


def nvml(count, driver="580.65.06", cuda=13000, mig=(), exclusive=()):
    """NVIDIA's library on a machine with these GPUs; the last two are numbers of those with MIG and so on."""

    def mig_mode(handle):
        if handle == 0:
            raise NVMLError  # as of a GPU without MIG
        return [int(handle in mig), 0]

    def compute_mode(handle):
        if handle == 0:
            raise NVMLError  # as of a GPU without modes
        return 3 if handle in exclusive else 0

    def by_number(number):
        if number >= count:
            raise NVMLError
        return number

    return SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlSystemGetDriverVersion=lambda: driver,
        nvmlSystemGetCudaDriverVersion_v2=lambda: cuda,
        nvmlDeviceGetCount=lambda: count,
        nvmlDeviceGetHandleByIndex=by_number,
        nvmlDeviceGetHandleByUUID=lambda name: name if name.startswith("MIG-") else int(name[-1]),
        nvmlDeviceGetDeviceHandleFromMigDeviceHandle=lambda handle: int(handle[-1]),
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(total=10 if handle in range(count) else 5, free=4),
        nvmlDeviceGetName=lambda handle: f"number {handle}",
        nvmlDeviceGetCudaComputeCapability=lambda handle: (9, handle),
        nvmlDeviceGetMigMode=mig_mode,
        nvmlDeviceGetComputeMode=compute_mode,
    )


@pytest.mark.parametrize(
    ("visible", "found"),
    [(None, [0, 1, 2]), ("2,0", [2, 0]), ("GPU-1", [1]), ("1,-1,0", [1]), ("", []), (" 0 , 2", [0, 2])],
)
def test_the_gpus_are_those_that_a_process_would_see(monkeypatch, visible, found):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    machine = gpus.read_machine(nvml(3, "570.86.15", 12080, mig=[1], exclusive=[2]))
    modes = ("DEFAULT", "DEFAULT", "EXCLUSIVE_PROCESS")
    expected = tuple(gpus.Gpu(f"number {n}", 10, 4, (9, n), n == 1, modes[n]) for n in found)
    assert (machine.driver, machine.cuda, machine.gpus) == ("570.86.15", (12, 8), expected)
    assert machine.shared_memory > 0 and machine.memory > 0


def test_a_mig_instance_has_its_own_memory_and_its_gpus_name(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1")
    assert gpus.read_machine(nvml(3)).gpus == (gpus.Gpu("number 1", 5, 4, (9, 1), True),)


def test_what_the_driver_does_not_tell_is_not_checked(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")  # there is none
    assert gpus.read_machine(nvml(3)) is None
    if not torch.cuda.is_available():
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
        assert gpus.read_machine() is None  # the real library


def test_a_container_has_the_memory_that_its_limit_leaves(tmp_path):
    whole = gpus.available_memory(tmp_path)
    (tmp_path / "memory.stat").write_text(f"anon {GIB}\ninactive_file 0\nactive_file 0\n")
    for limit, left in (("max", whole), (str(3 * GIB), GIB)):
        (tmp_path / "memory.max").write_text(limit + "\n")
        (tmp_path / "memory.current").write_text(f"{2 * GIB}\n")
        assert gpus.available_memory(tmp_path) == pytest.approx(left, rel=0.2)
    # Files that were read and written fill a container's memory, until processes need it.
    (tmp_path / "memory.stat").write_text(f"anon {GIB}\ninactive_file {GIB // 2}\nactive_file {GIB // 4}\nfile 9\n")
    assert gpus.available_memory(tmp_path) == pytest.approx(1.75 * GIB)


def test_a_launch_ends_before_ray_where_the_machine_cannot_carry_the_run(monkeypatch):
    def started(*_, **__):
        raise AssertionError("Ray was started")

    run = configure(["--actor.model_name_or_path", str(POLICY), "--actor.num_gpus_per_node", "1"], on_cpu=False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    for name in ("run_openrlhf", "check_engine"):
        monkeypatch.setattr(launch, name, started if name == "run_openrlhf" else lambda *_: None)
    monkeypatch.setattr(launch.gpus, "read_machine", lambda: replace(NODE, driver="570.86.15", cuda=(12, 8)))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(ConfigError, match=r"^the NVIDIA driver 570\.86\.15 runs CUDA 12\.8 at most"):
        launch.launch(run)
    monkeypatch.setattr(launch.gpus, "read_machine", lambda: NODE)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ConfigError, match=r"^the run takes 2 GPUs"):  # the next check
        launch.launch(run)

"""Waits for Ray that end: for places, for a process of a run, for the engines of an evaluation."""

import threading
import time
from types import SimpleNamespace

import pytest
import ray
from ray.util.placement_group import placement_group, remove_placement_group
from support.paths import POLICY

from openrlhf_swap.errors import ConfigError, RunError
from openrlhf_swap.evaluation import generate, run
from openrlhf_swap.integration.driver.waiting import results
from openrlhf_swap.integration.startup import ray as ray_start
from openrlhf_swap.integration.startup.ray import PLACE, wait_for_places

pytestmark = pytest.mark.slow
GPUS = 2
MIB = 2**20
FOREVER = 600  # seconds, after which a test has failed


@pytest.fixture(scope="module", autouse=True)
def own_ray():
    options = {"address": "local", "include_dashboard": False, "object_store_memory": 100 * MIB}
    ray_start.start_patiently({**options, "num_cpus": 8, "num_gpus": GPUS})
    yield
    ray.shutdown()


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray_start, "POLL_SECONDS", 0.2)
    monkeypatch.setattr(ray_start, "OWN_SECONDS", 2)


def test_a_run_waits_for_places_that_others_hold(monkeypatch, capsys):
    monkeypatch.setattr(ray_start, "OWN_SECONDS", FOREVER)
    held = placement_group([PLACE] * GPUS)
    assert held.wait(FOREVER)
    freeing = threading.Timer(2, remove_placement_group, [held])
    freeing.start()
    wait_for_places(GPUS, PLACE, "--flags")
    freeing.join()
    first = capsys.readouterr().out.splitlines()[0]
    wanted = "2 places with 1 GPU and 1 CPU each are wanted, and Ray has 0 GPU and 6 CPU free"
    assert first == f"[swap] {wanted}"
    # They are given back to the run, which now takes them.
    for _ in range(2):
        wait_for_places(GPUS, PLACE, "--flags")


@pytest.mark.parametrize(
    ("place", "state"),
    [(PLACE, "3 places with 1 GPU and 1 CPU each"), ({"CPU": 4}, "3 places with 4 CPU each")],
)
def test_places_that_do_not_come_are_one_line(place, state):
    with pytest.raises(ConfigError, match=rf"^{state} are wanted.* after 2 s; .* \(--flags\)$"):
        wait_for_places(3, place, "--flags")
    wait_for_places(1, place, "--flags")


def test_a_process_that_never_answers_is_one_line():
    @ray.remote(num_cpus=0)
    class Policy:
        def fit(self):
            time.sleep(FOREVER)

    policy = Policy.remote()
    args = SimpleNamespace(
        swap_run=SimpleNamespace(generation_timeout=1.0),
        ckpt=SimpleNamespace(path="nowhere", load_enable=False),
    )
    with pytest.raises(RunError, match=r"^fit\(\) of the policy did not end within 2 seconds: "):
        results([policy.fit.remote()], args, "fit() of the policy", least=2)
    ray.kill(policy)


@pytest.fixture
def sample(tmp_path, monkeypatch):
    """Samples with engines of this class."""

    def start(engine, count=2):
        monkeypatch.setattr(generate, "EvaluationEngine", engine)
        monkeypatch.setattr(generate, "is_cpu_build", lambda: True)
        words = ["--model", str(POLICY), "--output", str(tmp_path), "--engines", str(count)]
        requests = [generate.SampleRequest("own", "p", number, "1") for number in range(4)]
        generate.sample(run.parse_flags(words), requests, len(requests))

    return start


def test_engines_without_a_place_are_one_line(sample):
    with pytest.raises(ConfigError, match=r"^9 places with 1 CPU each are .* \(--engines, "):
        sample(generate.EvaluationEngine, count=9)


def test_engines_that_do_not_start_are_one_line(sample, monkeypatch):
    class Engine:
        """The class is defined in the test, so that Ray sends it to the actors."""

        def __init__(self, model, **options):
            time.sleep(FOREVER)

    monkeypatch.setattr(generate, "START_SECONDS", 2)
    with pytest.raises(RunError, match=r"^0 of 2 engines have started within 2 s; .*evaluate\.log"):
        sample(Engine)


def test_an_engine_that_is_stuck_is_one_line(sample, monkeypatch):
    class Engine:
        def __init__(self, model, **options):
            pass

        def sample(self, requests, settings):
            time.sleep(FOREVER)
            yield

    monkeypatch.setattr(generate, "SAMPLE_SECONDS", 2)
    with pytest.raises(RunError, match=r"^no sample was finished within 2 s: .* are missing$"):
        sample(Engine)

"""Waits that end."""

import math
from types import SimpleNamespace

import pytest
import ray

from openrlhf_swap.errors import RunError
from openrlhf_swap.integration.driver.waiting import LEAST_SECONDS, results, tell_engines


def arguments(timeout):
    ckpt = SimpleNamespace(path="nowhere", load_enable=False)
    return SimpleNamespace(swap_run=SimpleNamespace(generation_timeout=timeout), ckpt=ckpt)


@pytest.mark.parametrize(
    ("given", "least", "limit"),
    [
        (20.0, LEAST_SECONDS, 3600.0),
        (5000.0, LEAST_SECONDS, 5000.0),
        (20.0, 0, 20.0),  # of engines
        (math.inf, LEAST_SECONDS, None),
        (math.inf, 0, None),
    ],
)
def test_work_gets_an_hour_or_what_engines_get_if_that_is_more(monkeypatch, given, least, limit):
    monkeypatch.setattr(ray, "get", lambda refs, timeout: [refs, timeout])
    assert results("refs", arguments(given), "an update", least) == ["refs", limit]


def test_a_process_that_never_answers_is_one_line(monkeypatch):
    def never(refs, timeout):
        raise ray.exceptions.GetTimeoutError

    monkeypatch.setattr(ray, "get", never)
    nothing = "; no checkpoint was written yet; "
    with pytest.raises(RunError, match=rf"^fit\(\) of the policy .* 3600 s.* stuck{nothing}raise"):
        results("refs", arguments(20.0), "fit() of the policy")
    with pytest.raises(
        RunError, match=r"^sleep.* engines .* 20 seconds.* --swap.generation_timeout"
    ):
        tell_engines([], arguments(20.0), "sleep")


def test_every_engine_is_told(monkeypatch):
    told = []

    def engine(name):
        def wake_up(**options):
            told.append((name, options))
            return name

        return SimpleNamespace(wake_up=SimpleNamespace(remote=wake_up))

    monkeypatch.setattr(ray, "get", lambda refs, timeout: told.append((refs, timeout)))
    tell_engines([engine("a"), engine("b")], arguments(7.0), "wake_up", tags=["weights"])
    options = {"tags": ["weights"]}
    assert told == [("a", options), ("b", options), (["a", "b"], 7.0)]

"""A wait for the policy that ends."""

import math
from types import SimpleNamespace

import pytest
import ray

from openrlhf_swap.errors import RunError
from openrlhf_swap.integration.driver.waiting import results


@pytest.mark.parametrize(("given", "limit"), [(20.0, 3600.0), (5000.0, 5000.0), (math.inf, None)])
def test_work_gets_an_hour_or_what_engines_get_if_that_is_more(monkeypatch, given, limit):
    args = SimpleNamespace(swap_run=SimpleNamespace(generation_timeout=given))
    monkeypatch.setattr(ray, "get", lambda refs, timeout: [refs, timeout])
    assert results("refs", args, "an update") == ["refs", limit]


def test_a_process_that_never_answers_is_one_line(monkeypatch):
    def never(refs, timeout):
        raise ray.exceptions.GetTimeoutError

    args = SimpleNamespace(swap_run=SimpleNamespace(generation_timeout=20.0))
    monkeypatch.setattr(ray, "get", never)
    with pytest.raises(RunError, match=r"^fit\(\) of the policy .* 3600 s.* --ckpt.load_enable"):
        results("refs", args, "fit()")
